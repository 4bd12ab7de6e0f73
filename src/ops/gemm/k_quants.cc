// Dequantising of blocks of 256: each value by the formula of quant.h. The products are exact in f32, so that a fused
// multiply-add gives the same bits.
#include "src/ops/gemm/block_codec.h"

namespace mneme {
namespace {

float product(f16 d, int scale) {
  return d * static_cast<float>(scale);
}

// P of quant.h: value i of q2_k and q3_k.
std::uint8_t two_bits(const std::uint8_t (&q)[64], int i) {
  return q[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
}

// W of quant.h: value i of q4_k and q5_k.
std::uint8_t four_bits(const std::uint8_t (&q)[128], int i) {
  return q[32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2)) & 15;
}

std::uint8_t high_bit(const std::uint8_t (&h)[32], int i) {
  return h[i % 32] >> (i / 32) & 1;
}

}  // namespace

void dequantise_block(const BlockQ2_K& b, float* y) {
  for (int i = 0; i < kSuperBlock; ++i) {
    const int s = b.s[i / 16];
    y[i] = product(b.d, s & 15) * two_bits(b.q, i) - product(b.dmin, s >> 4);
  }
}

void dequantise_block(const BlockQ3_K& b, float* y) {
  for (int i = 0; i < kSuperBlock; ++i) {
    const int j = i / 16, low = j < 8 ? b.s[j] & 15 : b.s[j - 8] >> 4;
    const int scale = low + 16 * (b.s[8 + j % 4] >> (2 * (j / 4)) & 3) - 32;
    y[i] = product(b.d, scale) * (two_bits(b.q, i) - 4.0f + 4.0f * high_bit(b.h, i));
  }
}

void dequantise_block(const BlockQ4_K& b, float* y) {
  for (int i = 0; i < kSuperBlock; ++i) {
    const auto [scale, minimum] = scale_and_minimum(b.s, i / 32);
    y[i] = product(b.d, scale) * four_bits(b.q, i) - product(b.dmin, minimum);
  }
}

void dequantise_block(const BlockQ5_K& b, float* y) {
  for (int i = 0; i < kSuperBlock; ++i) {
    const auto [scale, minimum] = scale_and_minimum(b.s, i / 32);
    const float level = four_bits(b.q, i) + 16.0f * high_bit(b.h, i);
    y[i] = product(b.d, scale) * level - product(b.dmin, minimum);
  }
}

void dequantise_block(const BlockQ6_K& b, float* y) {
  for (int i = 0; i < kSuperBlock; ++i) {
    const int half = i / 128, r = i % 128;
    const std::uint8_t low = b.l[64 * half + r % 64] >> (r < 64 ? 0 : 4) & 15;
    const std::uint8_t high = b.h[32 * half + r % 32] >> (2 * (r / 32)) & 3;
    y[i] = product(b.d, b.s[i / 16]) * (low + 16.0f * high - 32.0f);
  }
}

void dequantise_block(const BlockIQ4_XS& b, float* y) {
  for (int i = 0; i < kSuperBlock; ++i) {
    const int j = i / 32, at = i % 32;
    const int scale = (b.s[j / 2] >> (4 * (j % 2)) & 15) + 16 * (b.u >> (2 * j) & 3) - 32;
    const int nibble = b.q[16 * j + at % 16] >> (at < 16 ? 0 : 4) & 15;
    y[i] = product(b.d, scale) * kIq4Values[nibble];
  }
}

}  // namespace mneme
