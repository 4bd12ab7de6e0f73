// Helpers shared by the VNNI GEMMs: vector concatenation, scale broadcast, horizontal sums, blocks of int4 and int8.
#pragma once

#include <hwy/highway.h>

#include "src/ops/gemm/quant.h"

#if HWY_ARCH_X86_64

#include <immintrin.h>

#if HWY_COMPILER_GCC_ACTUAL
// GCC 12's intrinsics start from undefined vectors on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")
namespace mneme::vnni {

inline __m512i two_halves(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// f16 words at `index`, as f32.
inline __m512 spread_scales(__m512i words, __m512i index) {
  return _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutexvar_epi16(index, words)));
}

inline __m256 halves(__m512 v) {
  return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}

// Horizontal sums of four vectors.
inline __m128 sums_of_lanes(const __m512& a, const __m512& b, const __m512& c, const __m512& d) {
  const __m256 ab = _mm256_hadd_ps(halves(a), halves(b)), cd = _mm256_hadd_ps(halves(c), halves(d));
  const __m256 all = _mm256_hadd_ps(ab, cd);
  return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

// Levels of a code book plus 128, by nibble.
inline __m512i look_up(const std::int8_t (&values)[16], __m512i nibbles) {
  const __m128i table = _mm_add_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)), _mm_set1_epi8(-128));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), nibbles);
}
inline __m512i iq4_levels(__m512i nibbles) {
  return look_up(kIq4Values, nibbles);
}

// Scales, and minima, of two blocks of int4: lanes of four values, in the byte order of q4_0.
struct Int4Scales {
  __m512 scales, minima;
};
inline Int4Scales int4_scales(const BlockInt4* b, bool whole) {
  const __m512i first = _mm512_set1_epi32(static_cast<int>(b[0].scale_and_zero));
  const __m512i second = _mm512_set1_epi32(whole ? static_cast<int>(b[1].scale_and_zero) : 0);
  const __m512i words = _mm512_mask_blend_epi32(0xf0f0, first, second), byte = _mm512_set1_epi32(255);
  const __m512 scales = _mm512_castsi512_ps(_mm512_andnot_si512(byte, words));
  const __m512 zeros = _mm512_cvtepi32_ps(_mm512_and_si512(byte, words));
  return {scales, _mm512_mul_ps(_mm512_sub_ps(_mm512_setzero_ps(), scales), zeros)};
}

// Nibbles of two blocks in the byte order of q4_0.
inline __m512i int4_levels(const BlockInt4* b, bool whole) {
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b[0].q));
  const __m128i second = whole ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(b[1].q)) : _mm_setzero_si128();
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
  return _mm512_and_si512(two_halves(both, _mm256_srli_epi16(both, 4)), _mm512_set1_epi8(15));
}

// Values of two blocks of int8, and their scales, in the order of q8_0.
inline __m512i int8_levels(const BlockInt8* b, bool whole) {
  const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b[0].q));
  return two_halves(first,
                    whole ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b[1].q)) : _mm256_setzero_si256());
}
inline __m512 int8_scales(const BlockInt8* b, bool whole) {
  return _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(b[0].d), _mm512_set1_ps(whole ? b[1].d : 0.0f));
}

}  // namespace mneme::vnni
HWY_POP_ATTRIBUTES

#endif
