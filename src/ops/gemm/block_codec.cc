// Blocks of 32 values to and from f32.
#include "src/ops/gemm/block_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/base/size32.h"

namespace mneme {
namespace {

bool all_finite(const float* x) {
  return std::all_of(x, x + kQuantBlock, [](float v) { return std::isfinite(v); });
}

// Nibble of value i, in the order of q4_0.
template <typename Block>
std::uint8_t nibble(const Block& b, int i) {
  return b.q[i % 16] >> (i < 16 ? 0 : 4) & 15;
}
template <typename Block>
void put_nibble(int level, int i, Block& b) {
  b.q[i % 16] |= low_byte((level & 15) << (i < 16 ? 0 : 4));
}
template <typename Block>
std::uint8_t five_bits(const Block& b, int i) {
  return (nibble(b, i) | (b.h[i / 8] >> (i % 8) & 1) << 4) & 31;
}
template <typename Block>
void put_five_bits(int level, int i, Block& b) {
  put_nibble(level, i, b);
  b.h[i / 8] |= low_byte((level >> 4) << (i % 8));
}

float signed_largest(const float* x) {
  return *std::max_element(x, x + kQuantBlock, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}

// A level of five bits; 0 for the NaN of a range that overflows.
float to_31(float v) {
  return std::min(31.0f, std::max(0.0f, v));
}

// Level whose value is next to v; the higher one where two are equally near.
int nearest_iq4_value(float v) {
  const int above = count32(
      std::upper_bound(kIq4Values, kIq4Values + 16, v, [](float a, std::int8_t b) { return a < b; }) - kIq4Values);
  if (above == 0) return 0;
  if (above == 16) return 15;
  return v - kIq4Values[above - 1] < kIq4Values[above] - v ? above - 1 : above;
}

}  // namespace

void quantise_block(const float* x, BlockQ8_0& y) {
  if (!all_finite(x)) {
    y = {f16(std::numeric_limits<float>::quiet_NaN()), {}};
    return;
  }
  float largest = 0.0f;
  for (int i = 0; i < kQuantBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float d = largest / 127.0f;
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  y.d = f16(d);
  // A d below 2^-128 has an infinite inverse; the clamp keeps the conversion defined.
  for (int i = 0; i < kQuantBlock; ++i) {
    const float v = x[i] == 0.0f ? 0.0f : std::round(x[i] * inverse);
    y.q[i] = static_cast<std::int8_t>(std::clamp(v, -127.0f, 127.0f));
  }
}

void quantise_block(const float* x, BlockQ4_0& y) {
  if (!all_finite(x)) {
    y = {f16(std::numeric_limits<float>::quiet_NaN()), {}};
    return;
  }
  const float d = signed_largest(x) / -8.0f;
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  y.d = f16(d);
  const auto level = [&](float v) {
    const float scaled = v == 0.0f ? 0.0f : v * inverse;
    return static_cast<std::uint8_t>(std::clamp(scaled + 8.5f, 0.0f, 15.0f));
  };
  for (int i = 0; i < kQuantBlock / 2; ++i) y.q[i] = two_nibbles(level(x[i]), level(x[i + kQuantBlock / 2]));
}

void quantise_block(const float* x, BlockQ4_1& y) {
  if (!all_finite(x)) {
    const f16 nan(std::numeric_limits<float>::quiet_NaN());
    y = {nan, nan, {}};
    return;
  }
  const auto range = std::minmax_element(x, x + kQuantBlock);  // no binding: clang 14 does not capture one
  const float least = *range.first, d = (*range.second - least) / 15.0f;
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  y.d = f16(d);
  y.m = f16(least);
  // A d below 2^-128 has an infinite inverse, which times zero is NaN.
  const auto level = [&](float v) {
    const float above = v - least;
    const float scaled = above == 0.0f ? 0.0f : above * inverse;
    return static_cast<std::uint8_t>(std::clamp(scaled + 0.5f, 0.0f, 15.0f));
  };
  for (int i = 0; i < kQuantBlock / 2; ++i) y.q[i] = two_nibbles(level(x[i]), level(x[i + kQuantBlock / 2]));
}

void quantise_block(const float* x, BlockQ5_0& y) {
  y = BlockQ5_0{};
  if (!all_finite(x)) {
    y.d = f16(std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const float d = signed_largest(x) / -16.0f;
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  y.d = f16(d);
  for (int i = 0; i < kQuantBlock; ++i) {
    const float scaled = x[i] == 0.0f ? 0.0f : x[i] * inverse;
    put_five_bits(static_cast<int>(to_31(scaled + 16.5f)), i, y);
  }
}

void quantise_block(const float* x, BlockQ5_1& y) {
  y = BlockQ5_1{};
  if (!all_finite(x)) {
    y.d = y.m = f16(std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const auto range = std::minmax_element(x, x + kQuantBlock);
  const float least = *range.first, d = (*range.second - least) / 31.0f;
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  y.d = f16(d);
  y.m = f16(least);
  for (int i = 0; i < kQuantBlock; ++i) {
    const float above = x[i] - least, scaled = above == 0.0f ? 0.0f : above * inverse;
    put_five_bits(static_cast<int>(to_31(scaled + 0.5f)), i, y);
  }
}

// Takes, of the scale that gives the largest value the largest level and of 15 near it, the one with the least error
// weighted with x^2, and fits it to its rounding.
void quantise_block(const float* x, BlockIQ4_NL& y) {
  y = BlockIQ4_NL{};
  if (!all_finite(x)) {
    y.d = f16(std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const float largest = signed_largest(x);
  float scale = 0.0f, best = 0.0f;
  const auto attempt = [&](float inverse, bool first) {
    float sum_qx = 0.0f, sum_q2 = 0.0f;
    for (int i = 0; i < kQuantBlock; ++i) {
      const float q = kIq4Values[nearest_iq4_value(inverse * x[i])];
      const float w = x[i] * x[i];
      sum_qx += w * q * x[i];
      sum_q2 += w * q * q;
    }
    if (!first && !(sum_q2 > 0.0f && sum_qx * sum_qx > best * sum_q2)) return;
    scale = sum_q2 > 0.0f ? sum_qx / sum_q2 : 0.0f;
    best = scale * sum_qx;
  };
  if (std::fabs(largest) >= 1e-15f) {
    attempt(1.0f / (-largest / kIq4Values[0]), true);
    for (int step = -7; step <= 7; ++step) attempt(static_cast<float>(step + kIq4Values[0]) / largest, false);
  }
  y.d = f16(scale);
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  for (int i = 0; i < kQuantBlock; ++i) put_nibble(nearest_iq4_value(inverse * x[i]), i, y);
}

void quantise_block(const float* x, BlockMXFP4& y) {
  y = BlockMXFP4{};
  if (!all_finite(x)) {
    y.e = 255;
    std::memset(y.q, 0x77, sizeof(y.q));
    return;
  }
  const float largest = std::fabs(signed_largest(x));
  // 6, the largest value, is 1.5 * 2^2. Numbers below 2^-125 have exponent 0.
  const int exponent = largest > 0.0f ? std::ilogb(largest) - 2 + 127 : 0;
  y.e = low_byte(std::max(exponent, 0));
  const float scale = mxfp4_scale(y.e);
  for (int i = 0; i < kQuantBlock; ++i) {
    int best = 0;
    for (int level = 1; level < 16; ++level)
      if (std::fabs(scale * kFp4Values[level] - x[i]) < std::fabs(scale * kFp4Values[best] - x[i])) best = level;
    put_nibble(best, i, y);
  }
}

void dequantise_block(const BlockQ8_0& b, float* y) {
  const float d = b.d;
  for (int i = 0; i < kQuantBlock; ++i) y[i] = d * b.q[i];
}

void dequantise_block(const BlockQ4_0& b, float* y) {
  const float d = b.d;
  for (int i = 0; i < kQuantBlock / 2; ++i) {
    y[i] = d * ((b.q[i] & 15) - 8.0f);
    y[i + kQuantBlock / 2] = d * ((b.q[i] >> 4) - 8.0f);
  }
}

// The product is exact in f32, so that a fused multiply-add gives the same bits.
void dequantise_block(const BlockQ4_1& b, float* y) {
  const float d = b.d, m = b.m;
  for (int i = 0; i < kQuantBlock / 2; ++i) {
    y[i] = d * (b.q[i] & 15) + m;
    y[i + kQuantBlock / 2] = d * (b.q[i] >> 4) + m;
  }
}

void dequantise_block(const BlockQ5_0& b, float* y) {
  for (int i = 0; i < kQuantBlock; ++i) y[i] = b.d * (five_bits(b, i) - 16.0f);
}

void dequantise_block(const BlockQ5_1& b, float* y) {
  for (int i = 0; i < kQuantBlock; ++i) y[i] = b.d * five_bits(b, i) + b.m;
}

void dequantise_block(const BlockFp8& b, float* y) {
  for (int i = 0; i < kFp8Block; ++i) y[i] = b.d * (kFp8OfF16 * static_cast<float>(fp8_as_f16(b.q[i])));
}

void dequantise_block(const BlockInt4& b, float* y) {
  for (int i = 0; i < kQuantBlock; ++i) {
    const float scale = b.scale();  // both products are exact, and so is their difference
    y[i] = scale * static_cast<float>(nibble(b, i)) - scale * static_cast<float>(b.zero());
  }
}

void dequantise_block(const BlockInt8& b, float* y) {
  for (int i = 0; i < kQuantBlock; ++i) y[i] = b.d * b.q[i];
}

void dequantise_block(const BlockIQ4_NL& b, float* y) {
  for (int i = 0; i < kQuantBlock; ++i) y[i] = b.d * kIq4Values[nibble(b, i)];
}

void dequantise_block(const BlockMXFP4& b, float* y) {
  for (int i = 0; i < kQuantBlock; ++i) y[i] = mxfp4_scale(b.e) * kFp4Values[nibble(b, i)];
}

void dequantise_block(const BlockNVFP4& b, float* y) {
  for (int i = 0; i < kNvfp4Block; ++i) {
    const std::uint8_t both = b.q[i / kQuantBlock * 16 + i % 16];
    y[i] = nvfp4_scale(b, i / kNvfp4Group) * kFp4Values[i % kQuantBlock < 16 ? both & 15 : both >> 4];
  }
}

}  // namespace mneme
