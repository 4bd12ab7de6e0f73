// Drop rules: which of a head's stored tokens to keep. Pure functions of scores, by rank (0: the oldest).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mneme/recipe.h"
#include "src/kv/sequence_cache.h"
#include "src/selection/topk/topk.h"

namespace mneme {

// Replaces every score by the mean or maximum of the `kernel` scores around it. At the ends the mean pads with zeros,
// the maximum uses what exists.
//
// Requires  kernel odd, at least 1 (1: no change).   Source  SnapKV (Li et al. 2024).
void smooth(std::span<float> scores, std::int32_t kernel, SmoothBy by, std::vector<float>& scratch);

// Working memory of one thread, kept between calls.
struct KeepScratch {
  TopkScratch topk;
  std::vector<std::int32_t> ids;
  std::vector<float> smoothed;
};

// Keeps the first `sink` and the last `recent` of n = scores.size() tokens, and of those between the ones with the
// largest scores, `n_keep` in total (sinks and recent first, even where they are more). n <= n_keep keeps all.
//
// Ties  the newer token wins.   NaN  ranks below -inf.
void keep_largest(std::span<const float> scores, std::int32_t sink, std::int32_t recent, std::int32_t n_keep,
                  KeepScratch& scratch, std::vector<TokenRange>& kept);

// Stopping rule along a ranking: the norm of the prefix, averaged over heads, is within `loss` of the norm of all
// tokens.
struct NormRule {
  float loss = 0.01f;         // strictly below; 0: keep everything
  std::int32_t sink = 4;      // first tokens, always kept
  bool sink_in_norm = false;  // include them in both norms
};

// Attention of n tokens, one row per query head.
struct HeadAttention {
  const float* a = nullptr;  // row h: a + h * stride
  std::int64_t stride = 0;
  std::int32_t n_heads = 0, n = 0;
};

// The shortest sufficient suffix: keep [0, sink) and [result, n). Keeps all (returns `sink`) where the whole norm is 0
// or NaN, or n <= sink + 1.
//
// Source  ReFreeKV, its section on the stopping criterion; NormRule::sink_in_norm is the formula read literally.
std::int32_t norm_suffix(const HeadAttention& rows, const NormRule& rule);
// The same along another ranking: the sinks, then the others by their mean over heads, descending.
void norm_largest(const HeadAttention& rows, const NormRule& rule, std::vector<TokenRange>& kept);

}  // namespace mneme
