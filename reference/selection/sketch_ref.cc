#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "reference/sums.h"
#include "src/selection/summary/half_values.h"
#include "src/selection/summary/sketch.h"
#include "src/selection/summary/spread.h"

namespace mneme {
namespace {

using Matrix = std::vector<std::vector<double>>;

// Keys of a page less their mean, and the mean.
Matrix centred(const float* keys, std::int32_t n, std::int32_t dim, std::vector<double>& mean) {
  Matrix x;
  mean.assign(dim, 0.0);
  for (std::int32_t t = 0; t < n; ++t) {
    x.emplace_back(keys + t * dim, keys + (t + 1) * dim);
    for (std::int32_t c = 0; c < dim; ++c) mean[c] += x.back()[c] / n;
  }
  for (auto& row : x)
    for (std::int32_t c = 0; c < dim; ++c) row[c] -= mean[c];
  return x;
}

bool finite(const Matrix& x) {
  for (const auto& row : x)
    for (double v : row)
      if (!std::isfinite(v)) return false;
  return true;
}

void orthonormalise(Matrix& u) {
  for (std::size_t i = 0; i < u.size(); ++i) {
    const double before = dot(u[i], u[i]);
    const auto project = [&] {
      for (int twice = 0; twice < 2; ++twice)
        for (std::size_t j = 0; j < i; ++j) {
          const double x = dot(u[i], u[j]);
          for (std::size_t c = 0; c < u[i].size(); ++c) u[i][c] -= x * u[j][c];
        }
      return dot(u[i], u[i]);
    };
    double norm = project();
    for (std::size_t c = 0; c < u[i].size() && !(norm > 1e-10 * before && norm > 1e-30); ++c) {
      std::fill(u[i].begin(), u[i].end(), 0.0);
      u[i][c] = 1;
      norm = project();
      if (norm > 1e-3) break;
    }
    for (double& x : u[i]) x /= std::sqrt(norm);
  }
}

Matrix times(const Matrix& a, const Matrix& b) {
  Matrix out(a.size(), std::vector<double>(b[0].size(), 0.0));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t k = 0; k < b.size(); ++k)
      for (std::size_t j = 0; j < b[0].size(); ++j) out[i][j] += a[i][k] * b[k][j];
  return out;
}

}  // namespace

void sketch_fit_ref(const float* keys, std::int32_t n_pages, std::int32_t page, std::int32_t head_dim, std::int32_t r,
                    float* frame) {
  const std::size_t dim = head_dim;
  std::vector<double> mean, all(dim, 0.0);
  Matrix cov(dim, std::vector<double>(dim, 0.0));
  double used = 0;
  for (std::int32_t p = 0; p < n_pages; ++p) {
    const Matrix x = centred(keys + std::int64_t{p} * page * head_dim, page, head_dim, mean);
    if (!finite(x)) continue;
    ++used;
    for (std::size_t c = 0; c < dim; ++c) all[c] += mean[c];
    for (const auto& row : x)
      for (std::size_t a = 0; a < dim; ++a)
        for (std::size_t b = 0; b < dim; ++b) cov[a][b] += row[a] * row[b];
  }
  std::vector<std::size_t> order(dim);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return cov[a][a] > cov[b][b]; });
  Matrix u(r, std::vector<double>(dim, 0.0));
  for (std::int32_t i = 0; i < r; ++i) u[i][order[i]] = 1;
  for (int round = 0; round < 10; ++round) {
    u = times(u, cov);
    orthonormalise(u);
  }
  Matrix keep(dim, std::vector<double>(dim, 0.0));  // 1 - U^T U
  for (std::size_t a = 0; a < dim; ++a)
    for (std::size_t b = 0; b < dim; ++b) {
      keep[a][b] = a == b ? 1 : 0;
      for (const auto& row : u) keep[a][b] -= row[a] * row[b];
    }
  const Matrix left = times(times(keep, cov), keep), uc = times(u, cov);
  double trace = 0;
  for (std::size_t c = 0; c < dim; ++c) trace += left[c][c];
  float* at = frame;
  for (double x : all) *at++ = used > 0 ? static_cast<float>(x / used) : 0.0f;
  for (const auto& row : u) at = std::copy(row.begin(), row.end(), at);
  for (const auto& row : left)
    for (double x : row) *at++ = trace > 1e-30 ? static_cast<float>(x / trace) : 0.0f;
  for (std::int32_t i = 0; i < r; ++i) {
    const double square = dot(u[i], uc[i]);
    *at++ = square > 0 ? static_cast<float>(std::sqrt(square / (std::max(used, 1.0) * page))) : 1.0f;
  }
}

void sketch_build_ref(const float* keys, std::int32_t page, std::int32_t head_dim, std::int32_t r, const float* frame,
                      std::byte* entry) {
  const std::size_t dim = head_dim;
  std::vector<double> mean;
  const Matrix x = centred(keys, page, head_dim, mean);
  std::memset(entry, 0, sketch_entry_bytes(head_dim, page, r));
  std::byte *nibbles = entry + dim, *scales = nibbles + std::size_t{1} * r * page / 2;
  if (!finite(x)) {
    put_f16(NAN, scales);
    return;
  }
  double largest = 0;
  for (std::size_t c = 0; c < dim; ++c) largest = std::max(largest, std::abs(mean[c] -= frame[c]));
  double scale = put_f16(static_cast<float>(largest / 127), scales);
  for (std::size_t c = 0; c < dim; ++c) {
    const double code = scale > 0 ? std::clamp(std::nearbyint(mean[c] / scale), -127.0, 127.0) : 0.0;
    entry[c] = static_cast<std::byte>(static_cast<std::int8_t>(code));
  }
  Matrix z;
  largest = 0;
  double left = 0;
  for (const auto& row : x) {
    z.emplace_back();
    left += dot(row, row) / page;
    for (std::int32_t i = 0; i < r; ++i) {
      const float* u = frame + dim + i * dim;
      const double x_u = dot(row, std::vector<double>(u, u + dim));
      z.back().push_back(x_u / frame[dim * (1 + r + dim) + i]);
      largest = std::max(largest, std::abs(z.back().back()));
      left -= x_u * x_u / page;
    }
  }
  scale = put_f16(static_cast<float>(largest / 7), scales + 2);
  for (std::int32_t t = 0; t < page; ++t)
    for (std::int32_t i = 0; i < r; ++i) {
      const double code = scale > 0 ? std::clamp(std::nearbyint(z[t][i] / scale), -7.0, 7.0) : 0.0;
      nibbles[i * (page / 2) + t / 2] |= static_cast<std::byte>(static_cast<unsigned>(code + 8) << (t % 2 * 4));
    }
  scales[4] = std::byte{variance_code(static_cast<float>(std::max(left, 0.0)))};
}

void sketch_score_ref(const SummaryScores& t, std::int32_t r, bool by_token) {
  const std::int32_t dim = t.head_dim;
  const double c = spread_limit(static_cast<float>(t.page)), alpha = t.alpha;
  const float *u = t.frame + dim, *cov = u + std::int64_t{r} * dim;
  for (std::int32_t g = 0; g < t.group; ++g) {
    const float* q = t.q + g * dim;
    double w = 0;
    for (std::int32_t a = 0; a < dim; ++a)
      for (std::int32_t b = 0; b < dim; ++b) w += alpha * q[a] * cov[a * dim + b] * alpha * q[b];
    for (std::int64_t e = 0; e < t.n; ++e) {
      const std::byte* entry = t.entries + e * sketch_entry_bytes(dim, t.page, r);
      const std::byte *nibbles = entry + dim, *scales = nibbles + std::size_t{1} * r * t.page / 2;
      double base = 0;
      for (std::int32_t i = 0; i < dim; ++i)
        base += q[i] * (t.frame[i] + double{get_f16(scales)} * static_cast<std::int8_t>(entry[i]));
      const double s2 = std::max(w, 0.0) * decode_variance(std::to_integer<std::uint8_t>(scales[4]));
      const double gain = std::sqrt(s2) < c ? s2 / 2 : c * std::sqrt(s2) - c * c / 2;
      std::vector<double> x;
      for (std::int32_t token = 0; token < t.page; ++token) {
        double dots = 0;
        for (std::int32_t i = 0; i < r; ++i) {
          double qu = 0;
          for (std::int32_t a = 0; a < dim; ++a) qu += double{q[a]} * u[i * dim + a];
          qu *= cov[dim * dim + i];
          dots += qu * (std::to_integer<int>(nibbles[i * (t.page / 2) + token / 2] >> (token % 2 * 4)) % 16 - 8);
        }
        x.push_back(alpha * (base + get_f16(scales + 2) * dots) + gain);
        if (by_token) t.scores[g * t.stride + e * t.page + token] = static_cast<float>(x.back() / alpha);
      }
      if (by_token) continue;
      double sum = 0, largest = x[0];
      for (double v : x) largest = std::isnan(v) ? v : std::max(largest, v);
      for (double v : x) sum += std::exp(v - largest);
      t.scores[g * t.stride + e] = static_cast<float>((largest + std::log(sum)) / alpha);
    }
  }
}

}  // namespace mneme
