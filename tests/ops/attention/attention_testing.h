// Keys and values in runs of every kind, and plain attention as the error baseline of the fast forms.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "src/ops/attention/attention.h"

namespace mneme::testing {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Runs a check under every instruction set that Highway compiled for and this machine supports, including scalar. Other
// targets are hidden, so that kernels with their own dispatch (AVX512-BF16) are limited too: they run only under AVX3.
template <class Check>
void each_supported_target(const Check& check) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    check();
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
}

enum class Layout { kPages, kSingles, kRagged, kOneRun };

inline std::vector<float> random_floats(std::size_t n, std::mt19937& rng, float sigma = 1.0f) {
  std::normal_distribution<float> normal(0.0f, sigma);
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  return v;
}

// Tokens 0..n-1 of one sequence; runs are stored in shuffled order.
struct KvStore {
  std::vector<std::byte> bytes;
  std::vector<KvRun> runs;
  std::vector<std::byte*> tokens;

  KvStore(int n_tokens, const AttentionShape& shape, Layout layout, std::mt19937& rng, float sigma = 1.0f) {
    const std::size_t token_bytes = shape.token_bytes();
    std::vector<int> lengths;
    for (int left = n_tokens; left > 0;) {
      int n = left;
      if (layout == Layout::kPages) n = 32;
      if (layout == Layout::kSingles) n = 1;
      if (layout == Layout::kRagged) n = std::uniform_int_distribution<int>(0, 70)(rng);
      lengths.push_back(std::min(n, left));
      left -= lengths.back();
    }
    std::vector<std::size_t> place(lengths.size());
    std::iota(place.begin(), place.end(), 0);
    std::shuffle(place.begin(), place.end(), rng);
    const auto widest =
        static_cast<std::size_t>(lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()));
    bytes.resize(lengths.size() * widest * token_bytes + 64);
    // No bytes after the last token, so that AddressSanitizer detects a read past it.
    std::byte* base = bytes.data() + bytes.size() - lengths.size() * widest * token_bytes;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      std::byte* kv = base + (place[i] * widest + widest - lengths[i]) * token_bytes;
      runs.push_back({kv, lengths[i]});
      for (int t = 0; t < lengths[i]; ++t) tokens.push_back(kv + t * token_bytes);
    }
    const std::size_t d = shape.head_dim;
    std::normal_distribution<float> normal(0.0f, sigma);
    std::vector<float> kv(2 * d);
    for (std::byte* token : tokens) {
      for (float& x : kv) x = normal(rng);
      store_kv(kv.data(), kv.data() + d, shape, token);
    }
  }
};

// Element i of a token's [K | V].
inline float kv_at(const std::byte* token, std::size_t i, DType dtype) {
  std::uint16_t bits;
  std::memcpy(&bits, token + 2 * i, 2);
  if (dtype == DType::kBF16) return std::bit_cast<float>(std::uint32_t{bits} << 16);
  f16 h;
  h.bits = bits;
  return static_cast<float>(h);
}

inline void set_kv(std::byte* token, std::size_t i, DType dtype, float value) {
  const std::uint16_t bits = dtype == DType::kBF16 ? bf16(value).bits : f16(value).bits;
  std::memcpy(token + 2 * i, &bits, 2);
}

struct Entry {
  const float* q;
  const std::byte* token;
  float bias;
};

enum class Arithmetic { kF32, kBF16 };

// Textbook attention in f32, or with the query and the probabilities rounded to bf16 (f32 sums). Writes out [D].
inline void plain_attend(const std::vector<Entry>& entries, const AttentionShape& shape, Arithmetic arithmetic,
                         float* out) {
  const std::size_t d_head = shape.head_dim;
  const auto rounded = [&](float x) { return arithmetic == Arithmetic::kBF16 ? static_cast<float>(bf16(x)) : x; };
  std::fill_n(out, d_head, 0.0f);
  std::vector<float> scores;
  float top = -kInf;
  for (const Entry& e : entries) {
    float s = 0;
    for (std::size_t d = 0; d < d_head; ++d) s += rounded(e.q[d] * shape.scale) * kv_at(e.token, d, shape.kv_dtype);
    scores.push_back(s + e.bias);
    top = std::max(top, scores.back());
  }
  if (top == -kInf) return;
  float sum = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const float p = std::exp(scores[i] - top);
    sum += p;
    for (std::size_t d = 0; d < d_head; ++d) out[d] += rounded(p) * kv_at(entries[i].token, d_head + d, shape.kv_dtype);
  }
  for (std::size_t d = 0; d < d_head; ++d) out[d] /= sum;
}

inline double max_error(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double diff = std::abs(a[i] - double{b[i]});
    if (!(diff <= worst)) worst = diff;  // NaN sticks
  }
  return worst;
}

inline double max_abs(const std::vector<float>& a) {
  double worst = 0;
  for (const float x : a) worst = std::max(worst, double{std::abs(x)});
  return worst;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace mneme::testing
