// Scores of a group's query heads to one score a unit for their KV head.
//
//   scores  [G, n]  f32, rows `score_stride` floats apart; may be overwritten
//   pooled  [n]     f32 out; may be row 0 of scores
//
//   kMax, kMean            of the raw scores                                        (FreeKV's paper: MaxQK, MeanQK)
//   kMaxProb, kMeanProb    of the softmax over units of alpha * score, by head      (MaxS, MeanS), in the log domain:
//                          kMeanProb gives log sum over heads of exp(alpha * score - lse of that head): the same order
//                          as the mean of probabilities, and it never underflows (bounds of pages differ by more than
//                          100)
// Pooling the queries themselves (MaxQ, MeanQ) happens before scoring, see pool_queries.
//
// NaN  a unit with a NaN score is left out of the sums (it counts as -inf) and its pooled score is NaN.   n = 0:
// nothing happens. Requires  group 1 to 16; kMaxProb, kMeanProb: alpha > 0 and finite. Infinity  -inf has probability 0
// (a head whose scores are all -inf gives probability to none), +inf counts as the largest float. Equal scores of a
// unit give equal pooled scores, bit for bit, wherever the unit stands.
#pragma once

#include <cstdint>
#include <span>

namespace mneme {

enum class GroupPool : std::uint8_t { kMax, kMean, kMaxProb, kMeanProb };

void group_pool_ref(float* scores, std::int64_t score_stride, std::int32_t group, std::int64_t n, GroupPool pool,
                    float alpha, float* pooled);
void group_pool_cpu(float* scores, std::int64_t score_stride, std::int32_t group, std::int64_t n, GroupPool pool,
                    float alpha, float* pooled);

// How much of a softmax over units falls to those that are wanted and not there: exp(scale * scores), one of [0, n).
//
//   scores         [n]  f32
//   wanted, there  units, ascending
//
// Returns  0 to 1: 0 where nothing is missing, 1 where something is and no unit has a finite score or +inf.
// NaN      counts as -inf: it weighs nothing.   Infinity  +inf counts as the largest float.
float missing_mass_ref(std::span<const float> scores, float scale, std::span<const std::int32_t> wanted,
                       std::span<const std::int32_t> there);
float missing_mass_cpu(std::span<const float> scores, float scale, std::span<const std::int32_t> wanted,
                       std::span<const std::int32_t> there);

enum class QueryPool : std::uint8_t { kMax, kMean };  // channel by channel over the group's queries

// q [G, D] f32, pooled [D] f32 out.
void pool_queries(const float* q, std::int32_t group, std::int32_t head_dim, QueryPool pool, float* pooled);

// Cosine of a and b, both [n] f32; 0 when either is the zero vector. Accumulates in f32 lanes, NaN goes through.
float cosine(const float* a, const float* b, std::int64_t n);

}  // namespace mneme
