// x of the few-rows VNNI kernels, how it is made, and one step of a GEMM with it.
#pragma once

#include <cstdint>

#include "src/ops/gemm/gemm_vnni-inl.h"
#include "src/ops/gemm/quant.h"
#include "src/tensor/view.h"

#if HWY_ARCH_X86_64

namespace mneme::vnni {

// x for vpdpbusd: pairs of blocks, each value 15 bits in two signed bytes, x = (128 hi + lo) * scale. The instruction
// needs one unsigned operand, so weights are w + 128, and `start` corrects for it: -sum(128 hi + lo) over the four
// values of a lane, which after the shift by 7 that joins the bytes is -128 * sum(x). All exact in 32 bits.
struct alignas(64) Pair {
  std::int8_t hi[64];
  std::int8_t lo[64];
  std::int32_t start[16];
  float scale[16];
};
// Types with minima have unsigned levels: `sum` is each lane's sum of its four values of x, which multiplies minima.
struct alignas(64) PairWithSums {
  std::int8_t hi[64];
  std::int8_t lo[64];
  float sum[16];
  float scale[16];
};
inline constexpr int kLevels = 127 * 128;
inline constexpr int kShift = 7;

inline std::int64_t pairs_of(std::int64_t k) {
  return (k / kQuantBlock + 1) / 2;
}

template <typename XPair>
std::size_t pair_bytes(std::int64_t m, std::int64_t k) {
  return (m * pairs_of(k)) * sizeof(XPair);
}

}  // namespace mneme::vnni

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")
namespace mneme::vnni {

// Layout of the 32 values of each block of a pair in 64 bytes, and both scales as f32.
struct Weights {
  __m512i q;  // w + 128, unsigned
  __m512 scales;
};

// Levels unchanged, and both minima as f32.
struct WeightsWithMinima {
  __m512i q;
  __m512 scales, minima;
};

template <int kTokensAtOnce>
inline void add_pair(const Weights& w, const Pair* const* x, std::int64_t p, __m512* sum) {
#pragma GCC unroll 4
  for (int i = 0; i < kTokensAtOnce; ++i) {
    const Pair& xp = x[i][p];
    __m512i s = _mm512_dpbusd_epi32(_mm512_load_si512(xp.start), w.q, _mm512_load_si512(xp.hi));
    s = _mm512_dpbusd_epi32(_mm512_slli_epi32(s, kShift), w.q, _mm512_load_si512(xp.lo));
    sum[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), _mm512_mul_ps(w.scales, _mm512_load_ps(xp.scale)), sum[i]);
  }
}

template <int kTokensAtOnce>
inline void add_pair(const WeightsWithMinima& w, const PairWithSums* const* x, std::int64_t p, __m512* sum) {
#pragma GCC unroll 4
  for (int i = 0; i < kTokensAtOnce; ++i) {
    const PairWithSums& xp = x[i][p];
    __m512i s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w.q, _mm512_load_si512(xp.hi));
    s = _mm512_dpbusd_epi32(_mm512_slli_epi32(s, kShift), w.q, _mm512_load_si512(xp.lo));
    sum[i] = _mm512_fmadd_ps(w.minima, _mm512_load_ps(xp.sum), sum[i]);
    sum[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), _mm512_mul_ps(w.scales, _mm512_load_ps(xp.scale)), sum[i]);
  }
}

// sum: the lanes' sums of x's levels.
inline void set_sums(__m512i sum, __m512, Pair& pair) {
  _mm512_store_si512(pair.start, _mm512_sub_epi32(_mm512_setzero_si512(), sum));
}
inline void set_sums(__m512i sum, __m512 scales, PairWithSums& pair) {
  _mm512_store_ps(pair.sum, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scales));
}

// Blocks of 16 values in `kind`'s byte order.
template <typename XPair>
inline void quantise_pair(const float* x, bool whole, bool interleaved, XPair& pair) {
  alignas(64) std::int8_t hi[64], lo[64];
  float scale[2] = {0.0f, 0.0f};
  const __m512 magnitude = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff));
  for (int b = 0; b < 2; ++b) {
    const bool there = b == 0 || whole;
    const __m512 v0 = there ? _mm512_loadu_ps(x + 32 * b) : _mm512_setzero_ps();
    const __m512 v1 = there ? _mm512_loadu_ps(x + 32 * b + 16) : _mm512_setzero_ps();
    const float largest =
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_and_ps(v0, magnitude), _mm512_and_ps(v1, magnitude)));
    // Below this the inverse is infinite; such a block is negligible against the rounding of any other.
    const bool tiny = largest < 1e-30f;
    scale[b] = tiny ? 0.0f : largest / kLevels;
    const __m512 inverse = _mm512_set1_ps(tiny ? 0.0f : kLevels / largest);
    for (int half = 0; half < 2; ++half) {
      const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(half == 0 ? v0 : v1, inverse));
      const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(64)), kShift);
      const __m512i low = _mm512_sub_epi32(q, _mm512_slli_epi32(high, kShift));
      const int at = interleaved ? 32 * half + 16 * b : 32 * b + 16 * half;
      _mm_store_si128(reinterpret_cast<__m128i*>(hi + at), _mm512_cvtepi32_epi8(high));
      _mm_store_si128(reinterpret_cast<__m128i*>(lo + at), _mm512_cvtepi32_epi8(low));
    }
  }
  const __m512i h = _mm512_load_si512(hi), l = _mm512_load_si512(lo), ones = _mm512_set1_epi8(1);
  __m512i sum = _mm512_slli_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, h), kShift);
  sum = _mm512_dpbusd_epi32(sum, ones, l);
  _mm512_store_si512(pair.hi, h);
  _mm512_store_si512(pair.lo, l);
  const __mmask16 second = interleaved ? 0xf0f0 : 0xff00;
  const __m512 scales = _mm512_mask_blend_ps(second, _mm512_set1_ps(scale[0]), _mm512_set1_ps(scale[1]));
  _mm512_store_ps(pair.scale, scales);
  set_sums(sum, scales, pair);
}

template <typename XPair, bool kInterleaved>
void prepare_pairs(const ConstTensorView& x, std::byte* prepared) {
  auto* pairs = reinterpret_cast<XPair*>(prepared);
  const std::int64_t n_blocks = x.dim(1) / kQuantBlock;
  for (std::int64_t i = 0; i < x.dim(0); ++i) {
    const float* row = x.row_as<float>(i);
    for (std::int64_t p = 0; p < pairs_of(x.dim(1)); ++p)
      quantise_pair(row + 2 * kQuantBlock * p, 2 * p + 1 < n_blocks, kInterleaved, pairs[i * pairs_of(x.dim(1)) + p]);
  }
}

}  // namespace mneme::vnni
HWY_POP_ATTRIBUTES

#endif
