#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/selection/topk/rank.h"

namespace mneme {

void rank_ref(std::span<const float> scores, UnitSize size, std::int64_t n_tokens, std::vector<std::int32_t>& ids) {
  ids.resize(scores.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = scores[a], y = scores[b];
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) == std::isnan(y) ? a > b : std::isnan(y);
    return x != y ? x > y : a > b;
  });
  std::size_t n = 0;
  for (std::int64_t tokens = 0; n < ids.size() && tokens < n_tokens; ++n) tokens += size(ids[n]);
  ids.resize(n);
}

}  // namespace mneme
