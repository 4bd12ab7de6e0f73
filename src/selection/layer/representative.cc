#include "src/selection/layer/representative.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "src/base/check.h"
#include "src/kv/kv_quant.h"
#include "src/tensor/half.h"

namespace mneme {
namespace {

// Puts the `top` tokens with the most mass into order[0, top).
void rank(const float* mass, std::int32_t top, std::vector<std::int32_t>& order) {
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](std::int32_t a, std::int32_t b) {
    const float x = mass[a], y = mass[b];
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) == std::isnan(y) ? a > b : std::isnan(y);
    return x != y ? x > y : a > b;
  };
  std::partial_sort(order.begin(), order.begin() + top, order.end(), before);
}

// Stores scaled `values` in the cache's dtype.
void store(std::span<const float> values, float scale, DType dtype, std::byte* to) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kBF16)
      reinterpret_cast<bf16*>(to)[i] = bf16(values[i] * scale);
    else
      reinterpret_cast<f16*>(to)[i] = f16(values[i] * scale);
  }
}

// 1 / length; 1 for a zero vector.
float inverse_length(std::span<const float> values) {
  double square = 0;
  for (float x : values) square += x * double{x};
  return square > 0 ? static_cast<float>(1 / std::sqrt(square)) : 1.0f;
}

void expect_mass(const UnitTokens& unit, const MassWindow& mass) {
  MNEME_CHECK(mass.begin() <= unit.begin && unit.end <= mass.end(), "mass of [{}, {}), a unit of [{}, {})",
              mass.begin(), mass.end(), unit.begin, unit.end);
}

}  // namespace

namespace {

// The sums of each query head's `top` keys.
std::vector<float>& sum_top_keys(const UnitTokens& unit, const MassWindow& mass, const AttentionShape& shape,
                                 std::int32_t top) {
  expect_mass(unit, mass);
  const std::int32_t n = unit.end - unit.begin, d = shape.head_dim, n_kv = unit.cache->shape().n_kv_heads;
  top = std::min(top, n);
  thread_local std::vector<std::int32_t> order;
  thread_local std::vector<float> sums;
  order.resize(n);
  sums.assign(std::int64_t{n_kv} * shape.group * d, 0.0f);
  for (std::int32_t h = 0; h < n_kv * shape.group; ++h) {
    rank(mass.row(h, unit.begin), top, order);
    std::sort(order.begin(), order.begin() + top);  // so that equal sets give equal sums
    float* sum = sums.data() + std::int64_t{h} * d;
    for (std::int32_t i = 0; i < top; ++i) {
      const std::byte* key = unit.cache->token(unit.layer, h / shape.group, unit.begin + order[i]);
      for (std::int32_t c = 0; c < d; ++c) sum[c] += load_kv(key, c, shape.kv_dtype, d);
    }
  }
  return sums;
}

}  // namespace

void build_representative(const UnitTokens& unit, const MassWindow& mass, const AttentionShape& shape, std::int32_t top,
                          std::byte* entry) {
  const std::vector<float>& sums = sum_top_keys(unit, mass, shape, top);
  store(sums, inverse_length(sums), shape.wide().kv_dtype, entry);
}

void build_mean_keys(const UnitTokens& unit, const MassWindow& mass, const AttentionShape& shape, std::int32_t top,
                     std::byte* entry) {
  const std::int32_t n = std::min(top, unit.end - unit.begin);
  store(sum_top_keys(unit, mass, shape, top), 1.0f / static_cast<float>(n), shape.wide().kv_dtype, entry);
}

void build_key_rows(const UnitTokens& unit, const MassWindow& mass, const AttentionShape& shape, std::int32_t top,
                    std::byte* entry) {
  const std::int32_t n = unit.end - unit.begin, d = shape.head_dim, n_kv = unit.cache->shape().n_kv_heads;
  thread_local std::vector<std::int32_t> order;
  thread_local std::vector<float> sums, keys;
  order.resize(n);
  sums.assign(n, 0.0f);
  if (top < n) {
    expect_mass(unit, mass);
    for (std::int32_t h = 0; h < n_kv * shape.group; ++h)
      for (std::int32_t t = 0; t < n; ++t) sums[t] += mass.row(h, unit.begin)[t];
  }
  rank(sums.data(), top, order);
  std::sort(order.begin(), order.begin() + top);
  keys.resize(n_kv * d);
  const float repeated = 1 / std::sqrt(static_cast<float>(shape.group));
  for (std::int32_t i = 0; i < top; ++i) {
    for (std::int32_t m = 0; m < n_kv; ++m) {
      const std::byte* key = unit.cache->token(unit.layer, m, unit.begin + order[i]);
      for (std::int32_t c = 0; c < d; ++c) keys[m * d + c] = load_kv(key, c, shape.kv_dtype, d);
    }
    store(keys, repeated * inverse_length(keys), shape.wide().kv_dtype, entry + i * keys.size() * 2);
  }
}

}  // namespace mneme
