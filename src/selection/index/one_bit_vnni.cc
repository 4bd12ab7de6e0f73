// 1-bit scan by vpdpbusd: a bit becomes a byte, 0 or the channel's step s, and one instruction handles 16 tokens of
// four channels of a head.
//
// s is an integer from 0 to 255 times a unit of its group (one_bit.h); q has 15 bits and a sign, 256 high + low, so two
// products per head. The only value computed per group and head is the sum of q (z - s): groups may be as small as 32
// tokens, where weights q s for each would take as long as the scan. Units are powers of two, and small integers stay
// exact.
//
// D = 64, four heads, groups of 32, per token: 1.7 ns, against 3.1 with masks in f32.
#include "src/selection/index/one_bit_vnni.h"

#include <hwy/highway.h>

#include "src/ops/gemm/gemm_vnni-inl.h"
#include "src/ops/simd/cpu_isa.h"

#if HWY_ARCH_X86_64

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace mneme {
namespace {

constexpr std::int32_t kHeadsAtOnce = 4;
constexpr std::size_t kPrefetchGroups = 4;

// Queries of a call: q = (256 high + low) * unit. Channels beyond D are zero.
struct alignas(64) Queries {
  std::int8_t high[kOneBitMaxGroup][kOneBitMaxDim], low[kOneBitMaxGroup][kOneBitMaxDim];
  float q[kOneBitMaxGroup][kOneBitMaxDim];
  float unit[kOneBitMaxGroup];  // NaN: not finite
};

// Levels of a group: s = code * unit. Channels beyond D are zero.
struct alignas(64) Levels {
  std::uint8_t code[kOneBitMaxDim];
  float least[kOneBitMaxDim];  // z - s
  float unit;                  // NaN: not finite
};

void code_query(const float* q, std::int32_t dim, std::int32_t head, Queries& out) {
  std::fill(std::copy_n(q, dim, out.q[head]), out.q[head] + kOneBitMaxDim, 0.0f);
  std::fill_n(out.high[head], kOneBitMaxDim, std::int8_t{0});
  std::fill_n(out.low[head], kOneBitMaxDim, std::int8_t{0});
  float largest = 0.0f;
  bool finite = true;
  for (std::int32_t c = 0; c < dim; ++c) {
    finite = finite && std::isfinite(q[c]);
    largest = std::max(largest, std::fabs(q[c]));
  }
  out.unit[head] = std::numeric_limits<float>::quiet_NaN();
  if (!finite) return;
  constexpr float kMost = 127.0f * 256.0f + 127.0f;
  int exponent = std::max(largest == 0.0f ? 0 : std::ilogb(largest), -100) - 14;
  if (std::ldexp(largest, -exponent) > kMost) ++exponent;
  out.unit[head] = std::ldexp(1.0f, exponent);
  const float inverse = std::ldexp(1.0f, -exponent);
  for (std::int32_t c = 0; c < dim; ++c) {
    const auto code = static_cast<std::int32_t>(std::nearbyint(q[c] * inverse));
    out.low[head][c] = static_cast<std::int8_t>(code);  // -128 to 127
    out.high[head][c] = static_cast<std::int8_t>((code - out.low[head][c]) / 256);
  }
}

}  // namespace

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")
namespace {

// Words of channels 32 b and on, zeros beyond D.   kBlocks  D / 32, or 0: from `dim`
template <int kBlocks>
inline __m512i load_channels(const std::byte* words, std::int32_t dim, std::int32_t b) {
  if (kBlocks > 0 || dim - 32 * b >= 32) return _mm512_loadu_si512(words + 64 * b);
  return _mm512_maskz_loadu_epi16((__mmask32{1} << (dim - 32 * b)) - 1, words + 64 * b);
}

// The bf16 in each half of 32 bits, as f32.
inline __m512 widened(__m256i words) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

template <int kBlocks>
inline void code_levels(const std::byte* group, std::int32_t dim, Levels& out) {
  const std::int32_t blocks = kBlocks > 0 ? kBlocks : (dim + 31) / 32;
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  __m512i largest = _mm512_setzero_si512();
  for (std::int32_t b = 0; b < blocks; ++b) {
    const __m512i s = load_channels<kBlocks>(group + 2 * dim, dim, b);
    largest = _mm512_max_epu16(largest, _mm512_and_si512(s, magnitude));
  }
  const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(largest), _mm512_extracti64x4_epi64(largest, 1));
  const __m128i quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  // The horizontal instruction computes the minimum.
  const auto most = static_cast<std::uint16_t>(
      ~static_cast<unsigned>(_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi16(-1))))));
  const int exponent = most >> 7;
  // 2^(exponent - 127 - 7); a group whose steps are all below 2^-119 scores by z alone.
  out.unit = exponent == 255 ? std::numeric_limits<float>::quiet_NaN()
                             : std::bit_cast<float>(static_cast<std::uint32_t>(std::max(exponent - 7, 1)) << 23);
  const __m512i exponents = _mm512_set1_epi16(static_cast<short>(std::max(exponent, 8)));
  const __m512i fraction = _mm512_set1_epi16(0x7f), one = _mm512_set1_epi16(0x80);
  for (std::int32_t b = 0; b < blocks; ++b) {
    const __m512i s = load_channels<kBlocks>(group + 2 * dim, dim, b);
    const __m512i z = load_channels<kBlocks>(group, dim, b);
    const __m512i digits = _mm512_or_si512(_mm512_and_si512(s, fraction), one);
    const __m512i code = _mm512_srlv_epi16(digits, _mm512_sub_epi16(exponents, _mm512_srli_epi16(s, 7)));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out.code + 32 * b), _mm512_cvtepi16_epi8(code));
    _mm512_store_ps(out.least + 32 * b,
                    _mm512_sub_ps(widened(_mm512_castsi512_si256(z)), widened(_mm512_castsi512_si256(s))));
    _mm512_store_ps(out.least + 32 * b + 16,
                    _mm512_sub_ps(widened(_mm512_extracti64x4_epi64(z, 1)), widened(_mm512_extracti64x4_epi64(s, 1))));
  }
}

// score = base + step * (sum over the channels whose bit is set)
struct HeadLine {
  alignas(16) float step[kHeadsAtOnce];
  alignas(16) float base[kHeadsAtOnce];
};

template <int kHeads, int kBlocks>
inline HeadLine line_of(const Queries& queries, std::int32_t first, std::int32_t dim, const Levels& levels) {
  const std::int32_t blocks = kBlocks > 0 ? kBlocks : (dim + 31) / 32;
  __m512 base[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
#pragma GCC unroll 16
  for (std::int32_t c = 0; c < 32 * blocks; c += 16) {
    const __m512 least = _mm512_load_ps(levels.least + c);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h)
      base[h] = _mm512_fmadd_ps(_mm512_load_ps(queries.q[first + h] + c), least, base[h]);
  }
  HeadLine line;
  _mm_store_ps(line.step, _mm_mul_ps(_mm_loadu_ps(queries.unit + first), _mm_set1_ps(2.0f * levels.unit)));
  _mm_store_ps(line.base, vnni::sums_of_lanes(base[0], base[1], base[2], base[3]));
  return line;
}

// sum += dot products of four unsigned bytes of a with four signed ones of b. GCC 12 moves every sum to another
// register and back around the intrinsic, which halves the speed.
inline void add_dot_products(__m512i& sum, __m512i a, __m512i b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

inline __m512i four_bytes(const void* at) {
  std::int32_t four;
  std::memcpy(&four, at, sizeof(four));
  return _mm512_set1_epi32(four);
}

// Input of a group's scan.
struct GroupCodes {
  const std::byte* nibbles = nullptr;
  std::size_t stride = 0;  // bytes between groups of four channels
  const std::uint8_t* steps = nullptr;
  std::int32_t dim = 0;
};

// 32 tokens from t on. If this loop is not unrolled the sums are kept in memory.
template <int kHeads>
inline void scan_tokens(const GroupCodes& group, std::int32_t t, const Queries& queries, std::int32_t first,
                        const HeadLine& line, float* scores, std::int64_t score_stride) {
  constexpr int kParts = kHeads == 1 ? 2 : 1;  // independent accumulation chains
  __m512i high[kParts][kHeads][2], low[kParts][kHeads][2];
#pragma GCC unroll 2
  for (int p = 0; p < kParts; ++p)
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) high[p][h][v] = low[p][h][v] = _mm512_setzero_si512();
  const std::byte* nibbles = group.nibbles + t / 2;
  for (std::int32_t c = 0; c < group.dim; c += 4 * kParts)
#pragma GCC unroll 2
    for (int p = 0; p < kParts; ++p, nibbles += group.stride) {
      __mmask64 bits[2];
      std::memcpy(bits, nibbles, sizeof(bits));
      const __m512i steps = four_bytes(group.steps + c + 4 * p);
      const __m512i tokens[] = {_mm512_maskz_mov_epi8(bits[0], steps), _mm512_maskz_mov_epi8(bits[1], steps)};
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) {
        const __m512i q_high = four_bytes(queries.high[first + h] + c + 4 * p);
        const __m512i q_low = four_bytes(queries.low[first + h] + c + 4 * p);
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          add_dot_products(high[p][h][v], tokens[v], q_high);
          add_dot_products(low[p][h][v], tokens[v], q_low);
        }
      }
    }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
    const __m512 step = _mm512_set1_ps(line.step[h]), base = _mm512_set1_ps(line.base[h]);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high[0][h][v], 8), low[0][h][v]);
      if constexpr (kParts == 2)
        sum = _mm512_add_epi32(sum, _mm512_add_epi32(_mm512_slli_epi32(high[1][h][v], 8), low[1][h][v]));
      _mm512_storeu_ps(scores + h * score_stride + 16 * v, _mm512_fmadd_ps(step, _mm512_cvtepi32_ps(sum), base));
    }
  }
}

template <int kHeads, int kBlocks>
void scan_group(const Queries& queries, std::int32_t first, std::int32_t dim, const Levels& levels,
                const std::byte* nibbles, std::int32_t g, float* scores, std::int64_t score_stride) {
  const HeadLine line = line_of<kHeads, kBlocks>(queries, first, dim, levels);
  const GroupCodes group{nibbles, static_cast<std::size_t>(g) / 2, levels.code, kBlocks > 0 ? 32 * kBlocks : dim};
  for (std::int32_t t = 0; t < g; t += 32)
    scan_tokens<kHeads>(group, t, queries, first, line, scores + t, score_stride);
}

template <int kBlocks>
void scan_blocks(const Queries& queries, const AttentionShape& shape, const std::byte* groups, std::int64_t n_groups,
                 std::int32_t g, float* scores, std::int64_t score_stride) {
  static constexpr decltype(&scan_group<1, kBlocks>) kScans[] = {scan_group<1, kBlocks>, scan_group<2, kBlocks>,
                                                                 scan_group<3, kBlocks>, scan_group<4, kBlocks>};
  const std::int32_t dim = shape.head_dim;
  const std::size_t bytes = one_bit_group_bytes(dim, g);
  Levels levels;
  for (std::int64_t i = 0; i < n_groups; ++i) {
    const std::byte* group = groups + i * bytes;
    for (std::size_t b = 0; b < bytes; b += 64) __builtin_prefetch(group + kPrefetchGroups * bytes + b);
    code_levels<kBlocks>(group, dim, levels);
    for (std::int32_t h = 0; h < shape.group; h += kHeadsAtOnce)
      kScans[std::min(kHeadsAtOnce, shape.group - h) - 1](queries, h, dim, levels, group + 4 * dim, g,
                                                          scores + h * score_stride + i * g, score_stride);
  }
}

void scan(const float* q, const AttentionShape& shape, const std::byte* groups, std::int64_t n_groups, std::int32_t g,
          float* scores, std::int64_t score_stride) {
  static thread_local Queries queries;
  const std::int32_t dim = shape.head_dim;
  for (std::int32_t h = 0; h < shape.group; ++h) code_query(q + h * dim, dim, h, queries);
  if (dim == 64)
    scan_blocks<2>(queries, shape, groups, n_groups, g, scores, score_stride);
  else if (dim == 128)
    scan_blocks<4>(queries, shape, groups, n_groups, g, scores, score_stride);
  else
    scan_blocks<0>(queries, shape, groups, n_groups, g, scores, score_stride);
}

}  // namespace
HWY_POP_ATTRIBUTES

OneBitScan* one_bit_vnni_scan() {
  return kernels_may_use(CpuIsa::kAvx512Vnni) ? scan : nullptr;
}

}  // namespace mneme

#else

namespace mneme {
OneBitScan* one_bit_vnni_scan() {
  return nullptr;
}
}  // namespace mneme

#endif
