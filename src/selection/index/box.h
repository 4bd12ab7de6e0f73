// Bounding boxes of the keys of a unit, and the upper bound that they give on a query's scores (Quest).
//
// A box holds, for each of D channels, maximum and minimum (min-max), or centre plus and minus the mean distance to it
// (cuboid-mean). Stored as [hi: D | lo: D] in the dtype of the keys, units contiguous.
//
// Source  min-max: Quest (Tang et al. 2024); cuboid-mean: ArkVale's published code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "mneme/recipe.h"
#include "src/kv/kv_run.h"

namespace mneme {

// Box of all tokens of `runs` (the keys of their [K | V] pairs).
//   box  [2, D] of shape.kv_dtype out
// Requires  at least one token.   NaN  a channel with a NaN key is NaN.
// Rounding  min and max are exact in the keys' dtype; the mean form is computed in f32 and rounded to nearest even.
void box_build_ref(std::span<const KvRun> runs, const AttentionShape& shape, BoxKind kind, std::byte* box);
void box_build_cpu(std::span<const KvRun> runs, const AttentionShape& shape, BoxKind kind, std::byte* box);

// scores[g, u] = sum over channels c of max(q[g, c] * hi[u, c], q[g, c] * lo[u, c]), for n contiguous boxes.
//   q       [G, D]        f32
//   boxes   [n, 2, D]     shape.kv_dtype
//   scores  [G, n]        f32 out, row stride `score_stride` floats
// With min-max boxes an upper bound of q . k over the unit's tokens. shape.scale is not applied. With hi >= lo the
// maximum is q+ hi + q- lo (q+ = max(q, 0), q- = min(q, 0)): one dot product of length 2 D.
// Ties  equal boxes score equal, bit for bit, at any index.
// NaN   in a unit's box: that unit's scores; in q[g]: all of head g. An infinite bound gives an infinity or NaN.
void box_score_ref(const float* q, const AttentionShape& shape, const std::byte* boxes, std::int64_t n, float* scores,
                   std::int64_t score_stride);
void box_score_cpu(const float* q, const AttentionShape& shape, const std::byte* boxes, std::int64_t n, float* scores,
                   std::int64_t score_stride);

// scores[g, t] = q[g] . k[t] for every token of `runs`: exact scores, for the controls and for tokens without an index
// entry.
//   scores  [G, total tokens] f32 out, row stride `score_stride` floats
void key_score_ref(const float* q, const AttentionShape& shape, std::span<const KvRun> runs, float* scores,
                   std::int64_t score_stride);
void key_score_cpu(const float* q, const AttentionShape& shape, std::span<const KvRun> runs, float* scores,
                   std::int64_t score_stride);

}  // namespace mneme
