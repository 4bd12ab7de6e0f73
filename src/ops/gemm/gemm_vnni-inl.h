// Helpers shared by the VNNI GEMMs: vector concatenation, scale broadcast, horizontal sums.
#pragma once

#include <hwy/highway.h>

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

}  // namespace mneme::vnni
HWY_POP_ATTRIBUTES

#endif
