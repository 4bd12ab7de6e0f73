// Pools the scores of a GQA group's query heads into one score per unit for their KV head.
//
//   scores  [G, n]  f32, row stride `score_stride` floats; may be overwritten
//   pooled  [n]     f32 out; may alias row 0 of scores
//
//   kMaxQk, kMeanQk  of the raw scores
//   kMaxS, kMeanS    of the softmax over units of alpha * score, per head, in the log domain: kMeanS gives log of the sum
//                    over heads of exp(alpha * score - lse of that head): the same order as the mean of probabilities,
//                    without underflow (bounds of pages differ by over 100)
//
// Pooling of the queries themselves (kMaxQ, kMeanQ) happens before scoring, see pool_queries.
//
// Requires  pools_scores(pool); group 1 to 16; kMaxS, kMeanS: alpha > 0 and finite. n = 0 does nothing.
// NaN       a unit with a NaN score is left out of the sums (it counts as -inf) and its pooled score is NaN.
// Infinity  -inf has probability 0 (a head with only -inf gives no unit any probability); +inf counts as the largest
// float.
// Ties      equal scores give equal pooled scores, bit for bit, at any index.
#pragma once

#include <cstdint>
#include <span>

#include "mneme/recipe_enums.h"
#include "src/cuda/host_device.h"

namespace mneme {

// Whether the pool is of the queries, before they are scored; of softmax weights; of scores or of their weights. Neither
// of queries nor of scores: every query head selects for itself (kNone), or all heads of the layer together (kConcat).
MNEME_HOST_DEVICE constexpr bool pools_queries(Pool pool) {
  return pool == Pool::kMaxQ || pool == Pool::kMeanQ;
}
MNEME_HOST_DEVICE constexpr bool pools_weights(Pool pool) {
  return pool == Pool::kMaxS || pool == Pool::kMeanS;
}
MNEME_HOST_DEVICE constexpr bool pools_scores(Pool pool) {
  return pool == Pool::kMaxQk || pool == Pool::kMeanQk || pools_weights(pool);
}

void group_pool_ref(float* scores, std::int64_t score_stride, std::int32_t group, std::int64_t n, Pool pool,
                    float alpha, float* pooled);
void group_pool_cpu(float* scores, std::int64_t score_stride, std::int32_t group, std::int64_t n, Pool pool,
                    float alpha, float* pooled);

// Share of a softmax over units, exp(scale * scores) over [0, n), that falls to units that are wanted and missing.
//
//   scores         [n]  f32
//   wanted, there  units, ascending; missing are those of `wanted` that are not in `there`
//
// Returns   0 to 1: 0 where nothing is missing, 1 where something is and no unit has a finite score or +inf.
// NaN       counts as -inf: weight 0.   Infinity  +inf counts as the largest float.
float missing_mass_ref(std::span<const float> scores, float scale, std::span<const std::int32_t> wanted,
                       std::span<const std::int32_t> there);
float missing_mass_cpu(std::span<const float> scores, float scale, std::span<const std::int32_t> wanted,
                       std::span<const std::int32_t> there);

// Channel by channel over the group's queries: q [G, D] f32, pooled [D] f32 out. Requires  pools_queries(pool).
void pool_queries(const float* q, std::int32_t group, std::int32_t head_dim, Pool pool, float* pooled);

// Cosine of a and b, both [n] f32; 0 when either is the zero vector. f32 accumulation; NaN propagates.
float cosine(const float* a, const float* b, std::int64_t n);

}  // namespace mneme
