#include "src/selection/summary/sketch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "src/base/check.h"
#include "src/selection/summary/half_values.h"
#include "src/selection/summary/packed_dots.h"
#include "src/selection/summary/spread.h"

namespace mneme {
namespace {

constexpr int kRounds = 10;

// Keys less their page's mean, which is left in `mean`.
void centre(const float* keys, std::int32_t n, std::int32_t dim, std::vector<float>& mean, std::vector<float>& out) {
  mean.assign(dim, 0.0f);
  for (std::int32_t t = 0; t < n; ++t)
    for (std::int32_t c = 0; c < dim; ++c) mean[c] += keys[t * dim + c];
  for (float& x : mean) x /= static_cast<float>(n);
  out.resize(std::size_t{1} * n * dim);
  for (std::int32_t t = 0; t < n; ++t)
    for (std::int32_t c = 0; c < dim; ++c) out[t * dim + c] = keys[t * dim + c] - mean[c];
}

bool finite(const std::vector<float>& x) {
  return std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
}

// Gram-Schmidt, row after row. A row that the others span is replaced by the first channel that they do not.
void orthonormalise(float* u, std::int32_t r, std::int64_t dim) {
  const auto dot = [&](const float* a, const float* b) { return std::inner_product(a, a + dim, b, 0.0f); };
  for (std::int32_t i = 0; i < r; ++i) {
    float* row = u + i * dim;
    const float before = dot(row, row);
    const auto project = [&] {
      for (int twice = 0; twice < 2; ++twice)
        for (std::int32_t j = 0; j < i; ++j) {
          const float x = dot(row, u + j * dim);
          for (std::int64_t c = 0; c < dim; ++c) row[c] -= x * u[j * dim + c];
        }
      return dot(row, row);
    };
    float norm = project();
    for (std::int64_t c = 0; c < dim && !(norm > 1e-10f * before && norm > 1e-30f); ++c) {
      std::fill_n(row, dim, 0.0f);
      row[c] = 1.0f;
      norm = project();
      if (norm > 1e-3f) break;
    }
    for (std::int64_t c = 0; c < dim; ++c) row[c] /= std::sqrt(norm);
  }
}

// Rows that start a subspace iteration: the channels of the largest variance.
void largest_channels(const float* cov, std::int32_t r, std::int64_t dim, float* u) {
  std::vector<std::int64_t> order(dim);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return cov[a * (dim + 1)] > cov[b * (dim + 1)]; });
  std::fill_n(u, r * dim, 0.0f);
  for (std::int32_t i = 0; i < r; ++i) u[i * dim + order[i]] = 1.0f;
}

// (1 - U^T U) cov (1 - U^T U), trace 1.
void remainder(const float* u, std::int32_t r, std::int64_t dim, std::vector<float>& cov) {
  std::vector<float> uc(r * dim);
  // First from the left, cov - U^T (U cov); then from the right.
  row_products_cpu(u, r, cov.data(), dim, dim, uc.data());
  for (std::int64_t i = 0; i < dim; ++i)
    for (std::int32_t k = 0; k < r; ++k)
      for (std::int64_t j = 0; j < dim; ++j) cov[i * dim + j] -= u[k * dim + i] * uc[k * dim + j];
  row_products_cpu(u, r, cov.data(), dim, dim, uc.data());
  for (std::int64_t i = 0; i < dim; ++i)
    for (std::int32_t k = 0; k < r; ++k)
      for (std::int64_t j = 0; j < dim; ++j) cov[i * dim + j] -= uc[k * dim + i] * u[k * dim + j];
  float trace = 0.0f;
  for (std::int64_t c = 0; c < dim; ++c) trace += cov[c * (dim + 1)];
  for (float& x : cov) x = trace > 1e-30f ? x / trace : 0.0f;
}

}  // namespace

std::size_t sketch_entry_bytes(std::int32_t head_dim, std::int32_t page, std::int32_t r) {
  return std::size_t{1} * head_dim + std::size_t{1} * r * page / 2 + 6;
}
std::int64_t sketch_frame_floats(std::int32_t head_dim, std::int32_t r) {
  return std::int64_t{head_dim} * (head_dim + r + 1) + r;
}

void sketch_fit_cpu(const float* keys, std::int32_t n_pages, std::int32_t page, std::int32_t head_dim, std::int32_t r,
                    float* frame) {
  const std::int64_t dim = head_dim;
  std::fill_n(frame, sketch_frame_floats(head_dim, r), 0.0f);
  std::vector<float> mean, x, cov(dim * dim, 0.0f);
  std::int32_t used = 0;
  for (std::int32_t p = 0; p < n_pages; ++p) {
    centre(keys + p * page * dim, page, head_dim, mean, x);
    if (!finite(x)) continue;
    ++used;
    for (std::int64_t c = 0; c < dim; ++c) frame[c] += mean[c];
    add_outer_cpu(x.data(), page, dim, cov.data());
  }
  for (std::int64_t c = 0; c < dim && used > 0; ++c) frame[c] /= static_cast<float>(used);
  float* u = frame + dim;
  largest_channels(cov.data(), r, dim, u);
  std::vector<float> next(r * dim);
  for (int round = 0; round < kRounds; ++round) {
    row_products_cpu(u, r, cov.data(), dim, dim, next.data());
    std::copy(next.begin(), next.end(), u);
    orthonormalise(u, r, dim);
  }
  row_products_cpu(u, r, cov.data(), dim, dim, next.data());
  float* deviation = u + (r + dim) * dim;
  for (std::int32_t i = 0; i < r; ++i) {
    const float square = std::inner_product(u + i * dim, u + (i + 1) * dim, next.data() + i * dim, 0.0f);
    const auto n = static_cast<float>(std::max(used, 1) * page);
    deviation[i] = square > 0.0f ? std::sqrt(square / n) : 1.0f;
  }
  remainder(u, r, dim, cov);
  std::copy(cov.begin(), cov.end(), u + r * dim);
}

void sketch_build_cpu(const float* keys, std::int32_t page, std::int32_t head_dim, std::int32_t r, const float* frame,
                      std::byte* entry) {
  MNEME_CHECK(page % 8 == 0 && page <= kMaxSummaryTokens && r <= kMaxSketchRank, "a sketch of {} tokens, {} rows", page,
              r);
  const std::int64_t dim = head_dim;
  thread_local std::vector<float> mean, x, z;
  centre(keys, page, head_dim, mean, x);
  std::memset(entry, 0, sketch_entry_bytes(head_dim, page, r));
  std::byte* nibbles = entry + dim;
  std::byte* scales = nibbles + std::size_t{1} * r * page / 2;
  if (!finite(x)) {
    put_f16(NAN, scales);
    return;
  }
  float largest = 0.0f;
  for (std::int64_t c = 0; c < dim; ++c) largest = std::max(largest, std::abs(mean[c] -= frame[c]));
  float scale = put_f16(largest / 127.0f, scales), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (std::int64_t c = 0; c < dim; ++c)
    entry[c] = static_cast<std::byte>(
        static_cast<std::int8_t>(std::clamp(std::nearbyint(mean[c] * inverse), -127.0f, 127.0f)));
  z.resize(std::size_t{1} * page * r);
  row_products_cpu(x.data(), page, frame + dim, r, dim, z.data());
  largest = 0.0f;
  float within = 0.0f, captured = 0.0f;
  const float* deviation = frame + dim * (1 + r + dim);
  for (std::int32_t i = 0; i < page * r; ++i) {
    captured += z[i] * z[i];
    largest = std::max(largest, std::abs(z[i] /= deviation[i % r]));
  }
  for (float v : x) within += v * v;
  scale = put_f16(largest / 7.0f, scales + 2), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (std::int32_t t = 0; t < page; ++t)
    for (std::int32_t i = 0; i < r; ++i) {
      const auto code = static_cast<unsigned>(std::clamp(std::nearbyint(z[t * r + i] * inverse), -7.0f, 7.0f) + 8.0f);
      nibbles[i * (page / 2) + t / 2] |= static_cast<std::byte>(code << (t % 2 * 4));
    }
  const float left = std::max(0.0f, within - captured) / static_cast<float>(page);
  scales[4] = std::byte{variance_code(left)};
}

void sketch_score_cpu(const SummaryScores& t, std::int32_t r, bool by_token) {
  if (t.n == 0) return;
  const std::int64_t dim = t.head_dim, page = t.page;
  const std::size_t bytes = sketch_entry_bytes(t.head_dim, t.page, r);
  const float *u = t.frame + dim, *cov = u + r * dim, *deviation = cov + dim * dim;
  thread_local std::vector<float> dots, cq, uq, weights, tokens;
  dots.resize(t.group * t.n), cq.resize(dim), uq.resize(r), weights.resize(r), tokens.resize(t.n * page);
  int8_dots_cpu(
      t.q, t.group,
      {.entries = t.entries, .entry_bytes = bytes, .first = 0, .n_entries = t.n, .rows = 1, .length = t.head_dim},
      dots.data(), t.n);
  const float c = spread_limit(static_cast<float>(page));
  for (std::int32_t g = 0; g < t.group; ++g) {
    const float* q = t.q + g * dim;
    float base = 0.0f, w = 0.0f;
    row_products_cpu(q, 1, t.frame, 1, dim, &base);
    row_products_cpu(q, 1, u, r, dim, uq.data());
    row_products_cpu(q, 1, cov, dim, dim, cq.data());
    row_products_cpu(q, 1, cq.data(), 1, dim, &w);
    w = std::max(0.0f, w * t.alpha * t.alpha);
    for (std::int64_t e = 0; e < t.n; ++e) {
      const std::byte* nibbles = t.entries + e * bytes + dim;
      const std::byte* scales = nibbles + std::size_t{1} * r * page / 2;
      const float step = t.alpha * get_f16(scales + 2);
      for (std::int32_t i = 0; i < r; ++i) weights[i] = step * uq[i] * deviation[i];
      float* x = tokens.data() + e * page;
      nibble_sum_cpu(weights.data(), nibbles, r, t.page, x);
      const float gain = spread_gain(w * decode_variance(std::to_integer<std::uint8_t>(scales[4])), c);
      const float all = t.alpha * (base + get_f16(scales) * dots[g * t.n + e]) + gain;
      for (std::int64_t i = 0; i < page; ++i) x[i] += all;
    }
    float* out = t.scores + g * t.stride;
    if (!by_token) log_sum_exp_rows_cpu(tokens.data(), t.n, t.page, out);
    const std::int64_t n_out = by_token ? t.n * page : t.n;
    for (std::int64_t i = 0; i < n_out; ++i) out[i] = (by_token ? tokens[i] : out[i]) / t.alpha;
  }
}

}  // namespace mneme
