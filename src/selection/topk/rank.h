// Units in descending order of score, until they hold as many tokens as are asked for.
//
//   scores    [n]  f32
//   size      tokens of unit i, at least 1
//   n_tokens  how many are wanted
//   ids       out: the shortest beginning of the ranking that holds n_tokens or more; all units where they hold fewer
//
// Requires  n < 2^31.
// Ties      the larger index first, on every backend.   NaN  below -inf; -inf is a score like any other.
// Threads   one row is one thread's work; a scratch belongs to one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/function_ref.h"
#include "src/kernels/topk.h"

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
