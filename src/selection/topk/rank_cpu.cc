// Ranks only the best few: finds the k largest (topk_cpu), and repeats with a larger k where they hold too few tokens.
#include <algorithm>
#include <bit>
#include <cmath>

#include "src/base/size32.h"
#include "src/selection/topk/rank.h"

namespace mneme {
namespace {

// Sort key: ascending in score, NaN first, -0 and 0 equal; among equals ascending in index.
std::uint64_t key_of(float score, std::int32_t id) {
  std::uint32_t order = 0;
  if (!std::isnan(score)) {
    const auto bits = std::bit_cast<std::uint32_t>(score + 0.0f);
    order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  }
  return (std::uint64_t{order} << 32) | static_cast<std::uint32_t>(id);
}

}  // namespace

void rank_cpu(std::span<const float> scores, UnitSize size, std::int64_t n_tokens, std::vector<std::int32_t>& ids,
              RankScratch& scratch) {
  const std::int64_t n = scores.size();
  // Assumes 16 tokens per unit, with a margin: one round if that is the mean.
  std::int64_t k = std::min(n, n_tokens / 12 + 16);
  for (;;) {
    ids.resize(k);
    topk_cpu(scores, count32(k), ids.data(), scratch.topk);
    std::int64_t tokens = 0;
    for (std::int32_t id : ids) tokens += size(id);
    if (tokens >= n_tokens || k == n) break;
    k = std::min(n, std::max(2 * k, k * n_tokens / std::max<std::int64_t>(tokens, 1)));
  }
  scratch.keys.clear();
  for (std::int32_t id : ids) scratch.keys.push_back(key_of(scores[id], id));
  std::sort(scratch.keys.begin(), scratch.keys.end(), std::greater<>());
  ids.clear();
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < scratch.keys.size() && tokens < n_tokens; ++i) {
    ids.push_back(static_cast<std::int32_t>(scratch.keys[i] & 0xffffffffu));
    tokens += size(ids.back());
  }
}

}  // namespace mneme
