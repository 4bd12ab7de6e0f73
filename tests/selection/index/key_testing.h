// Keys and queries for the tests of selection, and error measures.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "src/ops/attention/attention.h"
#include "src/tensor/half.h"

namespace mneme {

// Tokens of [K | V] with NaN values, so that reading V is detected.
class Keys {
 public:
  Keys(std::int32_t n_tokens, const AttentionShape& shape)
      : shape_(shape), bits_(2 * n_tokens * shape.head_dim, 0xffff) {}

  void set_bits(std::int64_t t, std::int64_t c, std::uint16_t bits) { bits_[at(t, c)] = bits; }
  void set(std::int64_t t, std::int64_t c, float x) {
    set_bits(t, c, shape_.kv_dtype == DType::kBF16 ? bf16(x).bits : f16(x).bits);
  }
  float get(std::int64_t t, std::int64_t c) const {
    const std::uint16_t bits = bits_[at(t, c)];
    return shape_.kv_dtype == DType::kBF16 ? static_cast<float>(std::bit_cast<bf16>(bits))
                                           : static_cast<float>(std::bit_cast<f16>(bits));
  }
  KvRun run(std::int64_t first, std::int32_t n) const {
    return {reinterpret_cast<const std::byte*>(bits_.data() + at(first, 0)), n};
  }

  template <class Value>
  void fill(const Value& value) {
    const auto n = std::ssize(bits_) / (2 * shape_.head_dim);
    for (std::int64_t t = 0; t < n; ++t)
      for (std::int64_t c = 0; c < shape_.head_dim; ++c) set(t, c, static_cast<float>(value()));
  }

 private:
  std::size_t at(std::int64_t t, std::int64_t c) const { return 2 * t * shape_.head_dim + c; }

  AttentionShape shape_;
  std::vector<std::uint16_t> bits_;
};

inline std::vector<float> normal_vector(std::size_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  return v;
}

inline std::vector<float> integer_vector(std::size_t n, std::mt19937& rng) {
  std::vector<float> v(n);
  for (float& x : v) x = static_cast<float>(static_cast<int>(rng() % 9) - 4);
  return v;
}

// NaN where only one of the two is NaN, so that `error <= tolerance` fails.
inline double max_error(const std::vector<float>& got, const std::vector<float>& expected) {
  double error = got.size() == expected.size() ? 0.0 : NAN;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(expected[i])) continue;
    if (got[i] == expected[i]) continue;  // infinities
    const double e = std::fabs(got[i] - double{expected[i]});
    if (!(e <= error)) error = e;
  }
  return error;
}

// Bitwise equal: NaN equals NaN, -0 differs from 0.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace mneme
