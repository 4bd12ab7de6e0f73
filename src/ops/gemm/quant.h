// Memory layout of the quantised weight types.
#pragma once

#include <bit>
#include <cstdint>

#include "src/tensor/half.h"

namespace mneme {

inline constexpr int kQuantBlock = 32;
inline constexpr int kSuperBlock = 256;

struct BlockQ8_0 {
  f16 d;
  std::int8_t q[kQuantBlock];
};

// Value i < 16: d * (low nibble of q[i] - 8); i >= 16: d * (high nibble of q[i - 16] - 8).
struct BlockQ4_0 {
  f16 d;
  std::uint8_t q[kQuantBlock / 2];
};

// Value i < 16: d * (low nibble of q[i]) + m; i >= 16: d * (high nibble of q[i - 16]) + m.
struct BlockQ4_1 {
  f16 d, m;
  std::uint8_t q[kQuantBlock / 2];
};

// N: the nibble of value i, in the order of q4_0. H: bit i of h, a little-endian number of 32 bits.
//
//   q5_0    d * (N + 16 H - 16)
//   q5_1    d * (N + 16 H) + m
//   iq4_nl  d * kIq4Values[N]
//   mxfp4   2^(e - 128) * kFp4Values[N]; blocks lie at any address
struct BlockQ5_0 {
  f16 d;
  std::uint8_t h[4];
  std::uint8_t q[kQuantBlock / 2];
};
struct BlockQ5_1 {
  f16 d, m;
  std::uint8_t h[4];
  std::uint8_t q[kQuantBlock / 2];
};
struct BlockIQ4_NL {
  f16 d;
  std::uint8_t q[kQuantBlock / 2];
};
struct BlockMXFP4 {
  std::uint8_t e;
  std::uint8_t q[kQuantBlock / 2];
};

inline constexpr std::int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
// Twice the values of e2m1, which are 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
inline constexpr std::int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 2^(e - 128), the scale of mxfp4; a subnormal number for e < 2.
constexpr float mxfp4_scale(std::uint8_t e) {
  return std::bit_cast<float>(e < 2 ? std::uint32_t{0x00200000} << e : (std::uint32_t{e} - 1) << 23);
}

// What quantised safetensors (src/formats/safetensors/quantised.h) and type 40 of GGUF files (nvfp4) become.
//
//   fp8    d * e4m3(q[i]). Codes 0x7f and 0xff, which are NaN in e4m3, are 480 and -480 here: the maker of a block
//          that has one sets d to NaN.
//   int4   scale * (N - zero point), N the nibble of value i in the order of q4_0. The upper 24 bits of `scale_and_zero`
//          are those of an f32, which has bits to spare for any f16 or bf16; the lower 8 are the zero point.
//   int8   d * q[i]
//   nvfp4  d / 2 * e4m3(s[i / 16]) * kFp4Values[N], N the nibble of value i % 32 in the order of q4_0, from
//          q + 16 (i / 32) on. d is the same in all blocks of a row. No scale is a NaN of e4m3 (0x7f, 0xff).
//          Kernels round d / 2 times the scale to f32, and that times the value.
inline constexpr int kFp8Block = 64;
struct BlockFp8 {
  float d;
  std::uint8_t q[kFp8Block];
};
struct BlockInt4 {
  std::uint32_t scale_and_zero;
  std::uint8_t q[kQuantBlock / 2];
  float scale() const { return std::bit_cast<float>(scale_and_zero & ~0xffu); }
  int zero() const { return static_cast<int>(scale_and_zero & 0xff); }
};
struct BlockInt8 {
  float d;
  std::int8_t q[kQuantBlock];
};

inline constexpr int kNvfp4Block = 64, kNvfp4Group = 16;
struct BlockNVFP4 {
  float d;
  std::uint8_t s[kNvfp4Block / kNvfp4Group];
  std::uint8_t q[kNvfp4Block / 2];
};

// A code of e4m3 times 2^-8, which is an f16 exactly.
inline f16 fp8_as_f16(std::uint8_t code) {
  f16 half;
  half.bits = static_cast<std::uint16_t>((code & 0x80) << 8 | (code & 0x7f) << 7);
  return half;
}
inline constexpr float kFp8OfF16 = 256.0f;

// What multiplies kFp4Values in group g of a block of nvfp4.
inline float nvfp4_scale(const BlockNVFP4& b, int g) {
  return 0.5f * b.d * (kFp8OfF16 * static_cast<float>(fp8_as_f16(b.s[g])));
}

// Blocks of 256 values, whose scales are small integers themselves.
//
//   P: bits 2 (i / 32 % 4) and above of q[32 (i / 128) + i % 32], two of them
//   W: the low nibble of q[32 (i / 64) + i % 32] where i / 32 is even, else the high one
//
//   q2_k    d * (low nibble of s[i / 16]) * P - dmin * (high nibble of s[i / 16])
//   q3_k    d * (S - 32) * (P - 4 + 4 * bit i / 32 of h[i % 32]); j = i / 16,
//           S = (low nibble of s[j] for j < 8, else high one of s[j - 8])
//               + 16 * bits 2 (j / 4) and above of s[8 + j % 4], two of them
//   q4_k    d * scale * W - dmin * minimum; both of 6 bits, packed as scale_and_minimum() reads them
//   q5_k    d * scale * (W + 16 * bit i / 32 of h[i % 32]) - dmin * minimum
//   q6_k    d * s[i / 16] * (L + 16 H - 32); r = i % 128,
//           L = low nibble of l[64 (i / 128) + r % 64] for r < 64, else the high one,
//           H = bits 2 (r / 32) and above of h[32 (i / 128) + r % 32], two of them
//   iq4_xs  d * (S - 32) * kIq4Values[N]; j = i / 32, N as q4_0's of q[16 j ..],
//           S = nibble j % 2 of s[j / 2] + 16 * bits 2 j and above of u, two of them
//
// Source  the blocks of ggml, of llama.cpp
struct BlockQ2_K {
  std::uint8_t s[16];
  std::uint8_t q[64];
  f16 d, dmin;
};
struct BlockQ3_K {
  std::uint8_t h[32];
  std::uint8_t q[64];
  std::uint8_t s[12];
  f16 d;
};
struct BlockQ4_K {
  f16 d, dmin;
  std::uint8_t s[12];
  std::uint8_t q[128];
};
struct BlockQ5_K {
  f16 d, dmin;
  std::uint8_t s[12];
  std::uint8_t h[32];
  std::uint8_t q[128];
};
struct BlockQ6_K {
  std::uint8_t l[128];
  std::uint8_t h[64];
  std::int8_t s[16];
  f16 d;
};
struct BlockIQ4_XS {
  f16 d;
  std::uint16_t u;
  std::uint8_t s[4];
  std::uint8_t q[128];
};

// Scale and minimum of values 32 j to 32 j + 31 of q4_k and q5_k, 0 to 63 each.
// The low eight bits.
constexpr std::uint8_t low_byte(int bits) {
  return static_cast<std::uint8_t>(bits & 255);
}
// The low four bits of two values.
constexpr std::uint8_t two_nibbles(int low, int high) {
  return low_byte((low & 15) | (high & 15) << 4);
}

struct ScaleAndMinimum {
  int scale, minimum;
};
constexpr ScaleAndMinimum scale_and_minimum(const std::uint8_t (&s)[12], int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {(s[j + 4] & 15) + 16 * (s[j - 4] >> 6), (s[j + 4] >> 4) + 16 * (s[j] >> 6)};
}

static_assert(sizeof(BlockQ8_0) == 34 && alignof(BlockQ8_0) == 2);
static_assert(sizeof(BlockQ4_0) == 18 && alignof(BlockQ4_0) == 2);
static_assert(sizeof(BlockQ4_1) == 20 && alignof(BlockQ4_1) == 2);
static_assert(sizeof(BlockQ5_0) == 22 && alignof(BlockQ5_0) == 2);
static_assert(sizeof(BlockQ5_1) == 24 && alignof(BlockQ5_1) == 2);
static_assert(sizeof(BlockIQ4_NL) == 18 && alignof(BlockIQ4_NL) == 2);
static_assert(sizeof(BlockMXFP4) == 17 && alignof(BlockMXFP4) == 1);
static_assert(sizeof(BlockFp8) == 68 && alignof(BlockFp8) == 4);
static_assert(sizeof(BlockInt4) == 20 && alignof(BlockInt4) == 4);
static_assert(sizeof(BlockInt8) == 36 && alignof(BlockInt8) == 4);
static_assert(sizeof(BlockNVFP4) == 40 && alignof(BlockNVFP4) == 4);
static_assert(sizeof(BlockQ2_K) == 84 && alignof(BlockQ2_K) == 2);
static_assert(sizeof(BlockQ3_K) == 110 && alignof(BlockQ3_K) == 2);
static_assert(sizeof(BlockQ4_K) == 144 && alignof(BlockQ4_K) == 2);
static_assert(sizeof(BlockQ5_K) == 176 && alignof(BlockQ5_K) == 2);
static_assert(sizeof(BlockQ6_K) == 210 && alignof(BlockQ6_K) == 2);
static_assert(sizeof(BlockIQ4_XS) == 136 && alignof(BlockIQ4_XS) == 2);

}  // namespace mneme
