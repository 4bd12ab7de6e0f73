#include "src/selection/summary/moments.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "src/selection/summary/packed_dots.h"
#include "src/selection/summary/spread.h"

namespace mneme {

std::size_t moments_entry_bytes(std::int32_t head_dim) {
  return 2 * std::size_t{1} * head_dim + 2 * sizeof(float);
}

void moments_build_cpu(const float* keys, std::int32_t n, std::int32_t head_dim, std::byte* entry) {
  const std::int64_t dim = head_dim;
  thread_local std::vector<float> mean, variance;
  mean.assign(dim, 0.0f), variance.assign(dim, 0.0f);
  for (std::int32_t t = 0; t < n; ++t)
    for (std::int64_t c = 0; c < dim; ++c) mean[c] += keys[t * dim + c];
  float largest = 0.0f, widest = 0.0f;
  bool finite = true;
  for (float& x : mean) {
    x /= static_cast<float>(n);
    finite = finite && std::isfinite(x);
    largest = std::max(largest, std::abs(x));
  }
  for (std::int32_t t = 0; t < n; ++t)
    for (std::int64_t c = 0; c < dim; ++c) {
      const float x = keys[t * dim + c] - mean[c];
      variance[c] += x * x;
    }
  for (float& x : variance) widest = std::max(widest, x /= static_cast<float>(n));
  const float scales[2] = {finite ? largest / 127.0f : NAN, widest / 255.0f};
  for (std::int64_t c = 0; c < dim; ++c) {
    const float m = finite && scales[0] > 0.0f ? std::nearbyint(mean[c] / scales[0]) : 0.0f;
    const float v = finite && scales[1] > 0.0f ? std::nearbyint(variance[c] / scales[1]) : 0.0f;
    entry[c] = static_cast<std::byte>(static_cast<std::int8_t>(std::clamp(m, -127.0f, 127.0f)));
    entry[dim + c] = static_cast<std::byte>(std::clamp(v, 0.0f, 255.0f));
  }
  std::memcpy(entry + 2 * dim, scales, sizeof(scales));
}

void moments_score_cpu(const SummaryScores& t) {
  if (t.n == 0) return;
  const std::int64_t dim = t.head_dim, n = t.n;
  const std::size_t bytes = moments_entry_bytes(t.head_dim);
  thread_local std::vector<float> squares, means, variances;
  squares.resize(t.group * dim), means.resize(t.group * n), variances.resize(t.group * n);
  for (std::int64_t i = 0; i < t.group * dim; ++i) squares[i] = t.q[i] * t.q[i];
  PackedEntries rows{
      .entries = t.entries, .entry_bytes = bytes, .first = 0, .n_entries = n, .rows = 1, .length = t.head_dim};
  int8_dots_cpu(t.q, t.group, rows, means.data(), n);
  rows.first += dim;
  uint8_dots_cpu(squares.data(), t.group, rows, variances.data(), n);
  const float size = std::log(static_cast<float>(t.page)), c = spread_limit(static_cast<float>(t.page));
  for (std::int32_t g = 0; g < t.group; ++g)
    for (std::int64_t e = 0; e < n; ++e) {
      float scales[2];
      std::memcpy(scales, t.entries + e * bytes + 2 * dim, sizeof(scales));
      const float m = t.alpha * scales[0] * means[g * n + e];
      const float v = t.alpha * t.alpha * scales[1] * variances[g * n + e];
      t.scores[g * t.stride + e] = (m + size + spread_gain(v, c)) / t.alpha;
    }
}

}  // namespace mneme
