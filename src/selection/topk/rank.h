// Ranks units by descending score until they hold a given number of tokens.
//
//   scores    [n]  f32
//   size      tokens of unit i, at least 1
//   n_tokens  tokens wanted
//   ids       out: the shortest prefix of the ranking with n_tokens or more tokens; all units where they hold fewer
//
// Requires  n < 2^31.
// Ties      the larger index first, on every backend.   NaN  below -inf; -inf is a score like any other.
// Threads   one thread per row; a scratch belongs to one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/function_ref.h"
#include "src/selection/topk/topk.h"

namespace mneme {

using UnitSize = FunctionRef<std::int32_t(std::int32_t unit)>;

struct RankScratch {
  TopkScratch topk;
  std::vector<std::uint64_t> keys;
};

void rank_ref(std::span<const float> scores, UnitSize size, std::int64_t n_tokens, std::vector<std::int32_t>& ids);
void rank_cpu(std::span<const float> scores, UnitSize size, std::int64_t n_tokens, std::vector<std::int32_t>& ids,
              RankScratch& scratch);

}  // namespace mneme
