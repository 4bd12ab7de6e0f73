// The mean of a unit's keys, and how queries score against it.
//
//   centroid  [D]  in the dtype of the keys; units' centroids follow one another
//
// Build   f32 sums in the order of the tokens, divided by their number, rounded to nearest even. A channel with a NaN
// key
//         gives NaN. Requires  at least one token.
// Score   scores[g, u] = q[g] . centroid[u]: q [G, D] f32; scores [G, n] f32 out, rows `score_stride` floats apart.
//         shape.scale is not applied. Equal centroids score equal, bit for bit, wherever they stand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/kernels/attention.h"

namespace mneme {

void centroid_build_ref(std::span<const KvRun> runs, const AttentionShape& shape, std::byte* centroid);
void centroid_build_cpu(std::span<const KvRun> runs, const AttentionShape& shape, std::byte* centroid);

void centroid_score_ref(const float* q, const AttentionShape& shape, const std::byte* centroids, std::int64_t n,
                        float* scores, std::int64_t score_stride);
void centroid_score_cpu(const float* q, const AttentionShape& shape, const std::byte* centroids, std::int64_t n,
                        float* scores, std::int64_t score_stride);

}  // namespace mneme
