#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "src/base/check.h"
#include "src/selection/index/one_bit.h"
#include "src/tensor/half_value.h"

namespace mneme {
namespace {

float load_bf16(const std::byte* elements, std::int64_t i) {
  return load_half(elements, i, DType::kBF16);
}

void store_bf16(double x, std::byte* elements, std::int64_t i) {
  bf16 rounded(static_cast<float>(x));
  if (std::isnan(x)) rounded.bits = 0x7fc0;
  std::memcpy(elements + 2 * i, &rounded, sizeof(rounded));
}

// Location of the bit of channel c of token t.
struct BitPosition {
  std::int64_t byte;
  std::byte mask;
};
BitPosition bit_position(std::int64_t dim, std::int64_t g, std::int64_t c, std::int64_t t) {
  return {4 * dim + (c / 4 * g + t) / 2, std::byte{1} << (t % 2 * 4 + c % 4)};
}

bool bit_of(const std::byte* group, std::int64_t dim, std::int64_t g, std::int64_t c, std::int64_t t) {
  const BitPosition bit = bit_position(dim, g, c, t);
  return (group[bit.byte] & bit.mask) != std::byte{0};
}

}  // namespace

void one_bit_build_ref(std::span<const KvRun> runs, const AttentionShape& shape, std::int32_t g, OneBitLevels levels,
                       std::byte* out) {
  const std::int32_t dim = shape.head_dim;
  std::memset(out, 0, one_bit_group_bytes(dim, g));
  for (std::int32_t c = 0; c < dim; ++c) {
    std::vector<double> k;
    for (const KvRun& run : runs)
      for (std::int32_t t = 0; t < run.n_tokens; ++t)
        k.push_back(load_half(run.kv + t * shape.token_bytes(), c, shape.kv_dtype));
    MNEME_CHECK(std::ssize(k) == g, "{} tokens for a group of {}", k.size(), g);

    if (!std::all_of(k.begin(), k.end(), [](double x) { return std::isfinite(x); })) {
      store_bf16(NAN, out, c);
      store_bf16(NAN, out, dim + c);
      continue;
    }
    const double largest = *std::max_element(k.begin(), k.end());
    const double smallest = *std::min_element(k.begin(), k.end());
    double sum = 0.0;
    for (const double x : k) sum += x;
    store_bf16(levels == OneBitLevels::kMinMax ? (largest + smallest) / 2.0 : sum / g, out, c);
    const double z = load_bf16(out, c);
    double distance = 0.0;
    for (const double x : k) distance += std::fabs(x - z);
    store_bf16(levels == OneBitLevels::kMinMax ? (largest - smallest) / 2.0 : distance / g, out, dim + c);
    for (std::int32_t t = 0; t < g; ++t)
      if (k[t] >= z) out[bit_position(dim, g, c, t).byte] |= bit_position(dim, g, c, t).mask;
  }
  one_bit_round_steps(out + 2 * dim, dim);
}

void one_bit_dequantise(const std::byte* group, std::int32_t head_dim, std::int32_t g, std::int32_t t, float* k) {
  for (std::int32_t c = 0; c < head_dim; ++c) {
    const bool set = bit_of(group, head_dim, g, c, t);
    const float z = load_bf16(group, c);
    const float s = load_bf16(group, head_dim + c);
    k[c] = set ? z + s : z - s;
  }
}

void one_bit_score_ref(const float* q, const AttentionShape& shape, const std::byte* groups, std::int64_t n_groups,
                       std::int32_t g, float* scores, std::int64_t score_stride) {
  const std::int32_t dim = shape.head_dim;
  for (std::int64_t i = 0; i < n_groups; ++i) {
    const std::byte* group = groups + i * one_bit_group_bytes(dim, g);
    for (std::int32_t t = 0; t < g; ++t)
      for (std::int32_t h = 0; h < shape.group; ++h) {
        double sum = 0.0;
        for (std::int32_t c = 0; c < dim; ++c) {
          const bool set = bit_of(group, dim, g, c, t);
          const double z = load_bf16(group, c);
          const double s = load_bf16(group, dim + c);
          sum += double{q[h * dim + c]} * (set ? z + s : z - s);
        }
        scores[h * score_stride + i * g + t] = static_cast<float>(sum);
      }
  }
}

}  // namespace mneme
