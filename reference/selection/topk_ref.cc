#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "src/base/check.h"
#include "src/base/size32.h"
#include "src/selection/topk/topk.h"

namespace mneme {

std::int32_t topk_ref(std::span<const float> scores, std::int32_t k, std::int32_t* ids) {
  MNEME_CHECK(k >= 0, "k = {}", k);
  const auto before = [&](std::int32_t a, std::int32_t b) {
    const float x = scores[a];
    const float y = scores[b];
    if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
    if (x > y || x < y) return x > y;
    return a > b;
  };
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), before);
  order.resize(std::min<std::size_t>(order.size(), k));
  std::sort(order.begin(), order.end());
  std::copy(order.begin(), order.end(), ids);
  return size32(order);
}

}  // namespace mneme
