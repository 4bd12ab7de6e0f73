// Centroids: the mean of a unit's keys, and the scores of queries against it.
//
//   centroid  [D]  in the dtype of the keys; centroids of units are contiguous
//
// Build  f32 sums in the order of the tokens, divided by their number, rounded to nearest even. A channel with a NaN
// key is NaN. Requires  at least one token.
// Score  scores[g, u] = q[g] . centroid[u]: q [G, D] f32; scores [G, n] f32 out, row stride `score_stride` floats.
// shape.scale is not applied. Equal centroids score equal, bit for bit, at any index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/kv/kv_run.h"

namespace mneme {

void centroid_build_ref(std::span<const KvRun> runs, const AttentionShape& shape, std::byte* centroid);
void centroid_build_cpu(std::span<const KvRun> runs, const AttentionShape& shape, std::byte* centroid);

void centroid_score_ref(const float* q, const AttentionShape& shape, const std::byte* centroids, std::int64_t n,
                        float* scores, std::int64_t score_stride);
void centroid_score_cpu(const float* q, const AttentionShape& shape, const std::byte* centroids, std::int64_t n,
                        float* scores, std::int64_t score_stride);

}  // namespace mneme
