// What stays of a head's stored tokens when the rest is dropped: pure functions of scores, by rank (0: the oldest).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/cache/sequence_cache.h"
#include "src/kernels/topk.h"

namespace mneme {

enum class SmoothBy : std::uint8_t { kMean, kMax };

// Every score becomes the mean or the maximum of the `kernel` scores around it, before anybody is ranked. At the ends
// the mean counts zeros, the maximum what there is.
//
// Requires  kernel odd, at least 1 (which changes nothing).   Source  SnapKV (Li et al. 2024).
void smooth(std::span<float> scores, std::int32_t kernel, SmoothBy by, std::vector<float>& scratch);

// Memory of one thread between calls.
struct KeepScratch {
  TopkScratch topk;
  std::vector<std::int32_t> ids;
  std::vector<float> smoothed;
};

// The first `sink` and the last `recent` of n = scores.size() tokens, and of those between the ones with the largest
// scores, `n_keep` in all (sinks and recent ones first, even where they are more). n <= n_keep: all.
//
// Ties  the newer token first.   NaN  below -inf.
void keep_largest(std::span<const float> scores, std::int32_t sink, std::int32_t recent, std::int32_t n_keep,
                  KeepScratch& scratch, std::vector<TokenRange>& kept);

// When a beginning of a ranking is enough: its norm, mean over heads, is within `loss` of the norm of all tokens.
struct NormRule {
  float loss = 0.01f;         // strictly below; 0: everything is kept
  std::int32_t sink = 4;      // first tokens, which are kept in any case
  bool sink_in_norm = false;  // count them in both norms
};

// Attention of n tokens, one row a query head.
struct HeadRows {
  const float* a = nullptr;  // row h: a + h * stride
  std::int64_t stride = 0;
  std::int32_t n_heads = 0, n = 0;
};

// The newest tokens that are enough: [0, sink) and [result, n) stay. All (the result is `sink`) where the whole norm is
// 0 or NaN, or n <= sink + 1.
//
// Source  ReFreeKV, its section on the stopping criterion; NormRule::sink_in_norm is the formula read literally.
std::int32_t norm_suffix(const HeadRows& rows, const NormRule& rule);
// The same along another ranking: the sinks, then the others by their mean over heads, largest first.
void norm_largest(const HeadRows& rows, const NormRule& rule, std::vector<TokenRange>& kept);

}  // namespace mneme
