#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "src/selection/summary/moments.h"
#include "src/selection/summary/spread.h"

namespace mneme {

void moments_build_ref(const float* keys, std::int32_t n, std::int32_t head_dim, std::byte* entry) {
  std::vector<double> mean(head_dim, 0.0), variance(head_dim, 0.0);
  for (std::int32_t t = 0; t < n; ++t)
    for (std::int32_t c = 0; c < head_dim; ++c) mean[c] += double{keys[t * head_dim + c]} / n;
  for (std::int32_t t = 0; t < n; ++t)
    for (std::int32_t c = 0; c < head_dim; ++c) variance[c] += std::pow(keys[t * head_dim + c] - mean[c], 2) / n;
  double largest = 0, widest = 0;
  bool finite = true;
  for (std::int32_t c = 0; c < head_dim; ++c) {
    finite = finite && std::isfinite(mean[c]);
    largest = std::max(largest, std::abs(mean[c]));
    widest = std::max(widest, variance[c]);
  }
  const float scales[2] = {finite ? static_cast<float>(largest / 127) : NAN, static_cast<float>(widest / 255)};
  for (std::int32_t c = 0; c < head_dim; ++c) {
    const double m = finite && scales[0] > 0 ? std::clamp(std::nearbyint(mean[c] / scales[0]), -127.0, 127.0) : 0;
    const double v = finite && scales[1] > 0 ? std::clamp(std::nearbyint(variance[c] / scales[1]), 0.0, 255.0) : 0;
    entry[c] = static_cast<std::byte>(static_cast<std::int8_t>(m));
    entry[head_dim + c] = static_cast<std::byte>(v);
  }
  std::memcpy(entry + 2 * std::size_t{1} * head_dim, scales, sizeof(scales));
}

void moments_score_ref(const SummaryScores& t) {
  const double n = t.page, c = std::sqrt(2 * std::log(n));
  for (std::int32_t g = 0; g < t.group; ++g)
    for (std::int64_t e = 0; e < t.n; ++e) {
      const std::byte* entry = t.entries + e * moments_entry_bytes(t.head_dim);
      float scales[2];
      std::memcpy(scales, entry + 2 * std::size_t{1} * t.head_dim, sizeof(scales));
      double m = 0, v = 0;
      for (std::int32_t i = 0; i < t.head_dim; ++i) {
        const double x = double{t.alpha} * t.q[g * t.head_dim + i];
        m += x * scales[0] * static_cast<std::int8_t>(entry[i]);
        v += x * x * scales[1] * std::to_integer<int>(entry[t.head_dim + i]);
      }
      const double gain = std::sqrt(v) <= c ? v / 2 : c * std::sqrt(v) - c * c / 2;
      t.scores[g * t.stride + e] = static_cast<float>((m + std::log(n) + gain) / t.alpha);
    }
}

}  // namespace mneme
