// k-means on the keys themselves, in f64; the fast form works on their Gram matrix.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/base/ratio.h"
#include "src/selection/summary/centroids.h"
#include "src/selection/summary/half_values.h"
#include "src/selection/summary/spread.h"

namespace mneme {
namespace {

using Point = std::vector<double>;

double distance(const Point& a, const Point& b) {
  double sum = 0;
  for (std::size_t c = 0; c < a.size(); ++c) sum += (a[c] - b[c]) * (a[c] - b[c]);
  return sum;
}

Point mean_of(const std::vector<Point>& points) {
  Point mean(points.at(0).size(), 0.0);
  for (const Point& p : points)
    for (std::size_t c = 0; c < p.size(); ++c) mean[c] += ratio(p[c], points.size());
  return mean;
}

struct Clusters {
  std::vector<std::vector<Point>> members;
  std::vector<Point> centroids;  // of those with members
};

Clusters clusters_of(const std::vector<Point>& points, std::int32_t k) {
  const Point centre = mean_of(points);
  std::vector<Point> seeds;
  std::vector<double> nearest(points.size());
  for (std::size_t t = 0; t < points.size(); ++t) nearest[t] = distance(points[t], centre);
  for (std::int32_t j = 0; j < k; ++j) {
    seeds.push_back(points[std::max_element(nearest.begin(), nearest.end()) - nearest.begin()]);
    for (std::size_t t = 0; t < points.size(); ++t) {
      const double d = distance(points[t], seeds.back());
      nearest[t] = j == 0 ? d : std::min(nearest[t], d);
    }
  }
  Clusters result{.members = {}, .centroids = seeds};
  for (int round = 0; round <= 6; ++round) {
    std::vector<std::vector<Point>> members(k);
    for (const Point& p : points) {
      std::int32_t best = -1;
      for (std::int32_t j = 0; j < k; ++j)
        if (!result.centroids[j].empty() &&
            (best < 0 || distance(p, result.centroids[j]) < distance(p, result.centroids[best])))
          best = j;
      members[best].push_back(p);
    }
    for (std::int32_t j = 0; j < k; ++j) result.centroids[j] = members[j].empty() ? Point{} : mean_of(members[j]);
    result.members = std::move(members);
  }
  return result;
}

std::vector<Point> points_of(const float* keys, std::int32_t n, std::int32_t dim) {
  std::vector<Point> points;
  for (std::int32_t t = 0; t < n; ++t) points.emplace_back(keys + t * dim, keys + (t + 1) * dim);
  return points;
}

bool finite(const std::vector<Point>& points) {
  return std::all_of(points.begin(), points.end(), [](const Point& p) {
    return std::all_of(p.begin(), p.end(), [](double x) { return std::isfinite(x); });
  });
}

}  // namespace

void centroids_fit_ref(const float* keys, std::int32_t n_pages, std::int32_t page, std::int32_t head_dim,
                       std::int32_t k, float* frame) {
  std::vector<Point> all;
  std::vector<double> cov(std::size_t{1} * head_dim * head_dim, 0.0);
  for (std::int32_t p = 0; p < n_pages; ++p) {
    const auto points = points_of(keys + std::int64_t{p} * page * head_dim, page, head_dim);
    if (!finite(points)) continue;
    all.insert(all.end(), points.begin(), points.end());
    const Clusters clusters = clusters_of(points, k);
    for (std::size_t j = 0; j < clusters.members.size(); ++j)
      for (const Point& x : clusters.members[j])
        for (std::int32_t a = 0; a < head_dim; ++a)
          for (std::int32_t b = 0; b < head_dim; ++b)
            cov[a * head_dim + b] += (x[a] - clusters.centroids[j][a]) * (x[b] - clusters.centroids[j][b]);
  }
  std::fill_n(frame, centroids_frame_floats(head_dim), 0.0f);
  std::fill_n(frame + std::int64_t{head_dim} * (head_dim + 1), head_dim, 1.0f);
  if (all.empty()) return;
  const Point mean = mean_of(all);
  double trace = 0;
  for (std::int32_t c = 0; c < head_dim; ++c) {
    frame[c] = static_cast<float>(mean[c]);
    trace += cov[c * head_dim + c];
  }
  for (std::size_t i = 0; i < cov.size() && trace > 0; ++i) frame[head_dim + i] = static_cast<float>(cov[i] / trace);
  for (std::int32_t c = 0; c < head_dim; ++c) {
    double sum = 0;
    for (const Point& x : all) sum += ratio((x[c] - mean[c]) * (x[c] - mean[c]), all.size());
    frame[head_dim * (head_dim + 1) + c] = sum > 0 ? static_cast<float>(std::sqrt(sum)) : 1.0f;
  }
}

void centroids_build_ref(const float* keys, std::int32_t n, std::int32_t head_dim, std::int32_t k, const float* frame,
                         std::byte* entry) {
  const auto points = points_of(keys, n, head_dim);
  const std::int32_t row = head_dim / 2;
  std::memset(entry, 0, centroids_entry_bytes(head_dim, k));
  std::byte *scales = entry + k * row, *counts = scales + 2 * k;
  if (!finite(points)) {
    for (std::int32_t j = 0; j < k; ++j) put_f16(NAN, scales + 2 * j), counts[j] = std::byte{1};
    return;
  }
  const Clusters clusters = clusters_of(points, k);
  for (std::int32_t j = 0; j < k; ++j) {
    const auto& members = clusters.members[j];
    Point centroid = members.empty() ? Point(head_dim, 0.0) : clusters.centroids[j];
    double largest = 0, variance = 0;
    for (const Point& x : members) variance += ratio(distance(x, centroid), members.size());
    for (std::int32_t c = 0; c < head_dim && !members.empty(); ++c)
      largest =
          std::max(largest, std::abs(centroid[c] = (centroid[c] - frame[c]) / frame[head_dim * (head_dim + 1) + c]));
    const double scale = put_f16(static_cast<float>(largest / 7), scales + 2 * j);
    for (std::int32_t c = 0; c < head_dim; ++c) {
      const double value = scale > 0 ? std::clamp(std::nearbyint(centroid[c] / scale), -7.0, 7.0) : 0.0;
      entry[j * row + c / 2] |= static_cast<std::byte>(static_cast<unsigned>(value + 8) << (c % 2 * 4));
    }
    counts[j] = static_cast<std::byte>(members.size());
    counts[k + j] = std::byte{variance_code(static_cast<float>(variance))};
  }
}

void centroids_score_ref(const SummaryScores& t, std::int32_t k) {
  const std::int32_t dim = t.head_dim, row = dim / 2;
  const double c = spread_limit(static_cast<float>(t.page) / static_cast<float>(k)), alpha = t.alpha;
  for (std::int32_t g = 0; g < t.group; ++g) {
    const float* q = t.q + g * dim;
    double w = 0;
    for (std::int32_t a = 0; a < dim; ++a)
      for (std::int32_t b = 0; b < dim; ++b) w += alpha * q[a] * t.frame[dim + a * dim + b] * alpha * q[b];
    for (std::int64_t e = 0; e < t.n; ++e) {
      const std::byte* entry = t.entries + e * centroids_entry_bytes(dim, k);
      const std::byte *scales = entry + k * row, *counts = scales + 2 * k;
      double sum = 0, largest = -std::numeric_limits<double>::infinity();
      std::vector<double> x;
      for (std::int32_t j = 0; j < k; ++j) {
        if (counts[j] == std::byte{0}) continue;
        double dot = 0;
        for (std::int32_t i = 0; i < dim; ++i) {
          const int code = std::to_integer<int>(entry[j * row + i / 2] >> (i % 2 * 4)) % 16 - 8;
          dot += q[i] * (t.frame[i] + double{t.frame[dim * (dim + 1) + i]} * get_f16(scales + 2 * j) * code);
        }
        const double s2 = std::max(w, 0.0) * decode_variance(std::to_integer<std::uint8_t>(counts[k + j]));
        const double gain = std::sqrt(s2) < c ? s2 / 2 : c * std::sqrt(s2) - c * c / 2;
        x.push_back(alpha * dot + gain + std::log(std::to_integer<int>(counts[j])));
        largest = std::isnan(x.back()) ? x.back() : std::max(largest, x.back());
      }
      for (double v : x) sum += std::exp(v - largest);
      t.scores[g * t.stride + e] = static_cast<float>((largest + std::log(sum)) / alpha);
    }
  }
}

}  // namespace mneme
