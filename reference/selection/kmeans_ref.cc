#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/base/check.h"
#include "src/base/size32.h"
#include "src/selection/cluster/kmeans.h"
#include "src/tensor/half.h"
#include "src/tensor/half_value.h"

namespace mneme {
namespace {

using Vector = std::vector<std::int32_t>;

std::vector<std::vector<float>> keys_of(const KmeansTask& task) {
  std::vector<std::vector<float>> keys;
  for (const KvRun& run : task.runs)
    for (std::int32_t t = 0; t < run.n_tokens; ++t) {
      const std::byte* token = run.kv + t * task.shape.token_bytes();
      auto& key = keys.emplace_back();
      for (std::int32_t c = 0; c < task.shape.head_dim; ++c) key.push_back(load_half(token, c, task.shape.kv_dtype));
    }
  return keys;
}

bool finite(const std::vector<float>& key) {
  return std::all_of(key.begin(), key.end(), [](float x) { return std::isfinite(x); });
}

std::vector<float> mean_of(const std::vector<std::vector<float>>& keys) {
  std::vector<float> sum(keys[0].size(), 0.0f);
  float n = 0;
  for (std::size_t begin = 0; begin < keys.size(); begin += kKmeansPiece) {
    std::vector<float> piece(sum.size(), 0.0f);
    for (std::size_t t = begin; t < std::min(keys.size(), begin + kKmeansPiece); ++t) {
      if (!finite(keys[t])) continue;
      for (std::size_t c = 0; c < sum.size(); ++c) piece[c] += keys[t][c];
      n += 1;
    }
    for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += piece[c];
  }
  for (float& x : sum) x /= std::max(n, 1.0f);
  return sum;
}

std::vector<float> centred(const std::vector<float>& key, const std::vector<float>& mean) {
  std::vector<float> y;
  for (std::size_t c = 0; c < key.size(); ++c) y.push_back(key[c] - mean[c]);
  if (!finite(y)) y.assign(y.size(), 0.0f);
  return y;
}

float largest_of(const std::vector<float>& y) {
  float largest = 0;
  for (float x : y) largest = std::max(largest, std::fabs(x));
  return largest;
}

Vector direction_of(const std::vector<float>& y) {
  Vector x(y.size(), 0);
  const float largest = largest_of(y);
  if (largest < 1e-30f) return x;
  const float scale = 2047.0f / largest;
  std::int32_t norm2 = 0;
  std::vector<float> z;
  for (float v : y) {
    z.push_back(std::nearbyint(v * scale));
    norm2 += static_cast<std::int32_t>(z.back()) * static_cast<std::int32_t>(z.back());
  }
  const float length = 32767.0f / std::sqrt(static_cast<float>(norm2));
  for (std::size_t c = 0; c < x.size(); ++c) x[c] = static_cast<std::int32_t>(std::nearbyint(z[c] * length));
  return x;
}

// 127 / m, with m of kmeans.h.
float scale_of(const std::vector<std::vector<float>>& ys) {
  float largest = 0, total = 0;
  for (std::size_t begin = 0; begin < ys.size(); begin += kKmeansPiece) {
    std::vector<float> piece(ys[0].size(), 0.0f);
    for (std::size_t t = begin; t < std::min(ys.size(), begin + kKmeansPiece); ++t) {
      largest = std::max(largest, largest_of(ys[t]));
      for (std::size_t c = 0; c < piece.size(); ++c) piece[c] += std::fabs(ys[t][c]);
    }
    float of_piece = 0;
    for (float x : piece) of_piece += x;
    total += of_piece;
  }
  if (largest < 1e-30f) return 0;
  return 127.0f / std::min(largest, 16.0f * (total / static_cast<float>(ys.size() * ys[0].size())));
}

std::vector<Vector> whole(const KmeansTask& task) {
  const auto keys = keys_of(task);
  const std::vector<float> mean = mean_of(keys);
  std::vector<std::vector<float>> ys;
  for (const auto& key : keys) ys.push_back(centred(key, mean));
  const float scale = scale_of(ys);
  std::vector<Vector> xs;
  for (const auto& y : ys) {
    if (task.metric == KmeansMetric::kCosine) {
      xs.push_back(direction_of(y));
      continue;
    }
    xs.emplace_back();
    for (float v : y)
      xs.back().push_back(static_cast<std::int32_t>(std::nearbyint(std::clamp(v * scale, -127.0f, 127.0f))));
  }
  return xs;
}

std::int32_t nearest(const Vector& x, const std::vector<Vector>& centroids, KmeansMetric metric) {
  std::int32_t best = 0;
  std::int64_t largest = 0;
  for (std::size_t k = 0; k < centroids.size(); ++k) {
    std::int64_t dot = 0, norm2 = 0;
    for (std::size_t c = 0; c < x.size(); ++c) {
      dot += std::int64_t{x[c]} * centroids[k][c];
      norm2 += std::int64_t{centroids[k][c]} * centroids[k][c];
    }
    if (metric == KmeansMetric::kDistance) dot -= norm2 / 2;
    if (k == 0 || dot > largest) {
      largest = dot;
      best = count32(k);
    }
  }
  return best;
}

// Centroid of the members; `before` if there are none.
Vector centroid_of(std::int32_t k, const std::vector<Vector>& x, const std::int32_t* cluster, const Vector& before,
                   KmeansMetric metric) {
  std::vector<double> sum(before.size(), 0.0);
  double size = 0;
  for (std::size_t t = 0; t < x.size(); ++t) {
    if (cluster[t] != k) continue;
    size += 1;
    for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += x[t][c];
  }
  double norm2 = 0;
  for (double s : sum) norm2 += s * s;
  if (size == 0 || (norm2 == 0 && metric == KmeansMetric::kCosine)) return before;
  Vector centroid;
  for (double s : sum)
    centroid.push_back(static_cast<std::int32_t>(
        std::nearbyint(metric == KmeansMetric::kCosine ? s * (32767.0 / std::sqrt(norm2)) : s / size)));
  return centroid;
}

}  // namespace

void kmeans_ref(const KmeansTask& task, std::int32_t* cluster) {
  const std::vector<Vector> x = whole(task);
  const std::int64_t n = x.size();
  MNEME_CHECK(n >= 1 && n <= 65535 && task.n_clusters >= 1 && task.n_clusters <= n && task.iterations >= 1,
              "{} clusters of {} tokens in {} iterations", task.n_clusters, n, task.iterations);
  std::vector<Vector> centroids;
  for (std::int64_t k = 0; k < task.n_clusters; ++k) centroids.push_back(x[k * n / task.n_clusters]);
  for (std::int32_t i = 0; i < task.iterations; ++i) {
    for (std::size_t t = 0; t < x.size(); ++t) cluster[t] = nearest(x[t], centroids, task.metric);
    if (i + 1 == task.iterations) break;
    for (std::int32_t k = 0; k < task.n_clusters; ++k) {
      Vector& centroid = centroids[k];
      centroid = centroid_of(k, x, cluster, centroid, task.metric);
    }
  }
}

}  // namespace mneme
