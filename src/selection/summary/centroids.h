// k centroids of a page's keys: index=centroids:k.
//
// Build  k-means of the page's keys less their mean: the first seed is the key farthest from it, each next the key
//        farthest from its nearest seed; 6 rounds of assignment and means, squared distance. Ties: the smaller index. A
//        centroid is stored less the head's mean key and in units of each channel's deviation d, in 4 bits a channel
//        with one f16 scale (largest channel / 7): a channel 20 times as wide as the others takes no bits from them.
//        Beside it stand, each in a byte, the number of its keys and their mean squared distance to it (spread.h).
// Score  of a page for query q, at softmax scale alpha:
//
//     e_j   = alpha q . c_j + gain(alpha^2 q^T C q var_j)     C: covariance of keys around their centroids, trace 1
//     score = log(sum over centroids j of n_j exp(e_j)) / alpha
//
//        gain is spread_gain with c of page / k samples: the estimate of what index=keys computes.
//
// Layout of an entry: [k, D / 2] nibbles, [k] f16 scales, [k] u8 numbers of keys, [k] u8 variances.
// Frame, one a head, f32: [D] mean key, [D, D] C, [D] d.
//
// NaN       a key that is not finite makes its page's scores NaN.
// Ties      equal entries score equal, bit for bit, at any index.
// Requires  pages of at most 128 tokens; k from 1 to 16, at most the page's tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/kv/kv_run.h"

namespace mneme {

inline constexpr std::int32_t kMaxSummaryTokens = 128, kMaxCentroids = 16;

std::size_t centroids_entry_bytes(std::int32_t head_dim, std::int32_t k);
std::int64_t centroids_frame_floats(std::int32_t head_dim);

// The frame of pages of `page` consecutive tokens: the mean of their keys, and C.
//   keys  [n_pages * page, D]  f32
void centroids_fit_ref(const float* keys, std::int32_t n_pages, std::int32_t page, std::int32_t head_dim,
                       std::int32_t k, float* frame);
void centroids_fit_cpu(const float* keys, std::int32_t n_pages, std::int32_t page, std::int32_t head_dim,
                       std::int32_t k, float* frame);

// One page.   keys [n, D] f32; entry [centroids_entry_bytes] out
void centroids_build_ref(const float* keys, std::int32_t n, std::int32_t head_dim, std::int32_t k, const float* frame,
                         std::byte* entry);
void centroids_build_cpu(const float* keys, std::int32_t n, std::int32_t head_dim, std::int32_t k, const float* frame,
                         std::byte* entry);

struct SummaryScores {
  const float* q = nullptr;      // [group, D]
  const float* frame = nullptr;  // of the head
  const std::byte* entries = nullptr;
  std::int64_t n = 0;  // entries
  std::int32_t group = 1, head_dim = 0;
  std::int32_t page = 32;   // tokens of a page
  float alpha = 1.0f;       // softmax scale
  float* scores = nullptr;  // [group, n] out; of tokens: [group, n * page]
  std::int64_t stride = 0;  // floats between rows
};
void centroids_score_ref(const SummaryScores& task, std::int32_t k);
void centroids_score_cpu(const SummaryScores& task, std::int32_t k);

}  // namespace mneme
