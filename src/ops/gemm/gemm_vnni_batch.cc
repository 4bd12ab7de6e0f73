// GEMMs of quantised weights with 3 to 16 rows of x, by vpdpwssd.
//
// With that many rows compute is the limit, not memory: x in 16 bits takes one instruction, where two bytes take an
// additional shift and offset, and two rows of weights share the loads of x. Lanes and integers are those of the
// few-rows kernel.
#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "src/ops/gemm/gemm_kernels.h"
#include "src/ops/gemm/gemm_vnni-inl.h"
#include "src/ops/gemm/quant.h"

#if HWY_ARCH_X86_64

namespace mneme {
namespace {

// Two blocks of x, each value 15 bits: x = q * scale. Lane j has values 4j, 4j + 2 in `even` and 4j + 1, 4j + 3 in
// `odd`, in the byte order of the weights.
struct alignas(64) WidePair {
  std::int16_t even[32], odd[32];
  float scale[16];
};
// For q4_1 and int4: also each lane's sum of its four values, which multiplies the minima.
struct alignas(64) WidePairWithSums : WidePair {
  float sum[16];
};
template <typename Block>
inline constexpr bool kWithMinima = std::is_same_v<Block, BlockQ4_1> || std::is_same_v<Block, BlockInt4>;
template <typename Block>
using PairOf = std::conditional_t<kWithMinima<Block>, WidePairWithSums, WidePair>;
constexpr int kLevels = 127 * 128;
// 16 sums; loads of two rows of weights serve eight rows of x.
constexpr std::int64_t kTokensAtOnce = 8, kRowsAtOnce = 2;
constexpr std::int64_t kPrefetchBytes = 4096;  // as the few-rows kernel

std::int64_t pairs_of(std::int64_t k) {
  return (k / kQuantBlock + 1) / 2;
}

template <typename XPair>
std::size_t pair_bytes(std::int64_t m, std::int64_t k) {
  return (m * pairs_of(k)) * sizeof(XPair);
}

}  // namespace

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")
namespace {

using vnni::spread_scales;
using vnni::sums_of_lanes;
using vnni::two_halves;

struct Weights {
  __m512i even, odd;  // 16 bits
  __m512 scales;
};

struct WeightsWithMinima {
  __m512i even, odd;
  __m512 scales, minima;
};

inline Weights widened(__m512i bytes, __m512 scales) {
  return {_mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8), _mm512_srai_epi16(bytes, 8), scales};
}

// Bytes 0..31 are the first block's, 32..63 the second's.
inline Weights load_pair(const BlockQ8_0* b, bool whole) {
  const __m512i index =
      _mm512_castsi256_si512(_mm256_set_epi16(17, 17, 17, 17, 17, 17, 17, 17, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b[0].q));
  const __m256i second = whole ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b[1].q)) : _mm256_setzero_si256();
  const __m512i words = whole ? _mm512_loadu_si512(b) : _mm512_maskz_loadu_epi16(0x1, b);
  return widened(two_halves(first, second), spread_scales(words, index));
}

// Bytes 0..15 values 0..15 of the first block, 16..31 those of the second, 32..63 their values 16..31.
inline Weights load_pair(const BlockQ4_0* b, bool whole) {
  const __m512i eight = _mm512_set1_epi8(8), nibble = _mm512_set1_epi8(15);
  const __m512i index = _mm512_castsi256_si512(_mm256_set_epi16(9, 9, 9, 9, 0, 0, 0, 0, 9, 9, 9, 9, 0, 0, 0, 0));
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b[0].q));
  const __m128i second = whole ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(b[1].q)) : _mm_setzero_si128();
  const __m512i words = whole ? _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)))
                              : _mm512_maskz_loadu_epi16(0x1, b);
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
  const __m512i halves_of_bytes = two_halves(both, _mm256_srli_epi16(both, 4));
  return widened(_mm512_sub_epi8(_mm512_and_si512(halves_of_bytes, nibble), eight), spread_scales(words, index));
}

// Byte order as q4_0.
inline WeightsWithMinima load_pair(const BlockQ4_1* b, bool whole) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i scales = _mm512_set_epi32(10, 10, 10, 10, 0, 0, 0, 0, 10, 10, 10, 10, 0, 0, 0, 0);
  const __m512i minima = _mm512_set_epi32(11, 11, 11, 11, 1, 1, 1, 1, 11, 11, 11, 11, 1, 1, 1, 1);
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b[0].q));
  const __m128i second = whole ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(b[1].q)) : _mm_setzero_si128();
  const __m512 words = _mm512_cvtph_ps(whole ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b))
                                             : _mm256_maskz_loadu_epi16(0x3, b));
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
  const __m512i bytes = _mm512_and_si512(two_halves(both, _mm256_srli_epi16(both, 4)), nibble);
  return {_mm512_and_si512(bytes, _mm512_set1_epi16(255)), _mm512_srli_epi16(bytes, 8),
          _mm512_permutexvar_ps(scales, words), _mm512_permutexvar_ps(minima, words)};
}

inline WeightsWithMinima load_pair(const BlockInt4* b, bool whole) {
  const __m512i bytes = vnni::int4_levels(b, whole);
  const vnni::Int4Scales s = vnni::int4_scales(b, whole);
  return {_mm512_and_si512(bytes, _mm512_set1_epi16(255)), _mm512_srli_epi16(bytes, 8), s.scales, s.minima};
}

inline Weights load_pair(const BlockInt8* b, bool whole) {
  return widened(vnni::int8_levels(b, whole), vnni::int8_scales(b, whole));
}

// f(0) to f(n - 1) with constants: an array that they index stays in registers, under AddressSanitizer as well, which
// checks what a loop indexes before the loop is unrolled (a prompt of the shipped model takes three times as long).
template <int n, typename F>
[[gnu::always_inline]] inline void unrolled(F&& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, i>{}), ...);
  }
  (std::make_integer_sequence<int, n>{});
}

template <typename Block, int kRows, int kTokens>
[[gnu::always_inline]] inline void add_pair(const Block* const* w, bool whole, const PairOf<Block>* const* x,
                                            std::int64_t p, __m512 (&sum)[kRows][kTokens]) {
  decltype(load_pair(w[0], whole)) weights[kRows];
  unrolled<kRows>([&](auto r) __attribute__((always_inline)) { weights[r] = load_pair(w[r] + 2 * p, whole); });
  unrolled<kTokens>([&](auto i) __attribute__((always_inline)) {
    const PairOf<Block>& xp = x[i][p];
    const __m512i even = _mm512_load_si512(xp.even), odd = _mm512_load_si512(xp.odd);
    const __m512 scale = _mm512_load_ps(xp.scale);
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      __m512i s = _mm512_dpwssd_epi32(_mm512_setzero_si512(), weights[r].even, even);
      s = _mm512_dpwssd_epi32(s, weights[r].odd, odd);
      sum[r][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), _mm512_mul_ps(weights[r].scales, scale), sum[r][i]);
      if constexpr (kWithMinima<Block>)
        sum[r][i] = _mm512_fmadd_ps(weights[r].minima, _mm512_load_ps(xp.sum), sum[r][i]);
    });
  });
}

template <typename Block, int kRows, int kTokens>
[[gnu::always_inline]] inline void dot(const PairOf<Block>* const* x, const Block* const* w, std::int64_t n_blocks,
                                       __m512* sums) {
  __m512 sum[kRows][kTokens];
  unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
    unrolled<kTokens>([&](auto i) __attribute__((always_inline)) { sum[r][i] = _mm512_setzero_ps(); });
  });
  const std::int64_t n_whole = n_blocks / 2;
  for (std::int64_t p = 0; p < n_whole; ++p) {
    for (int r = 0; r < kRows; ++r)
      __builtin_prefetch(reinterpret_cast<const std::byte*>(w[r] + 2 * p) + kPrefetchBytes, 0, 3);
    add_pair<Block, kRows, kTokens>(w, true, x, p, sum);
  }
  if (n_blocks % 2 != 0) add_pair<Block, kRows, kTokens>(w, false, x, n_whole, sum);
  unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
    unrolled<kTokens>([&](auto i) __attribute__((always_inline)) { sums[r * kTokens + i] = sum[r][i]; });
  });
}

// Four rows of weights, or one, with kTokens rows of x.
template <typename Block, int kRows, int kTokens>
void rows_by_tokens(const PairOf<Block>* const* x, const Block* const* w, std::int64_t n_blocks, float* sums,
                    std::int64_t stride) {
  __m512 all[kRows * kTokens];
  if constexpr (kRows == 1) {
    dot<Block, 1, kTokens>(x, w, n_blocks, all);
    for (int i = 0; i < kTokens; ++i) sums[i * stride] = _mm512_reduce_add_ps(all[i]);
  } else {
    for (int r = 0; r < kRows; r += kRowsAtOnce)
      dot<Block, kRowsAtOnce, kTokens>(x, w + r, n_blocks, all + r * kTokens);
    for (int i = 0; i < kTokens; ++i)
      _mm_storeu_ps(sums + i * stride,
                    sums_of_lanes(all[i], all[kTokens + i], all[2 * kTokens + i], all[3 * kTokens + i]));
  }
}

// rows_by_tokens for n tokens.
template <typename Block, int kRows, int kTokens = 1>
void call_with(std::int64_t n, const PairOf<Block>* const* x, const Block* const* w, std::int64_t n_blocks, float* sums,
               std::int64_t stride) {
  if constexpr (kTokens < kTokensAtOnce) {
    if (n > kTokens) return call_with<Block, kRows, kTokens + 1>(n, x, w, n_blocks, sums, stride);
  }
  rows_by_tokens<Block, kRows, kTokens>(x, w, n_blocks, sums, stride);
}

template <typename Block, int kRows>
void all_tokens(const PairOf<Block>* prepared, std::int64_t m, std::int64_t k, const Block* const* w, float* sums,
                std::int64_t stride) {
  const std::int64_t n_blocks = k / kQuantBlock;
  const PairOf<Block>* x[kTokensAtOnce];
  for (std::int64_t i = 0; i < m; i += kTokensAtOnce) {
    const std::int64_t n = std::min(kTokensAtOnce, m - i);
    for (std::int64_t t = 0; t < n; ++t) x[t] = prepared + (i + t) * pairs_of(k);
    call_with<Block, kRows>(n, x, w, n_blocks, sums + i * stride, stride);
  }
}

template <typename Block>
void rows_gemm(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin,
               std::int64_t end, float* sums, std::int64_t stride) {
  const auto* x = reinterpret_cast<const PairOf<Block>*>(prepared);
  const std::int64_t k = w.dim(1);
  const Block* row[4];
  std::int64_t r = begin;
  for (; r + 4 <= end; r += 4) {
    for (int i = 0; i < 4; ++i) row[i] = reinterpret_cast<const Block*>(w.row(r + i));
    all_tokens<Block, 4>(x, m, k, row, sums + r - begin, stride);
  }
  for (; r < end; ++r) {
    row[0] = reinterpret_cast<const Block*>(w.row(r));
    all_tokens<Block, 1>(x, m, k, row, sums + r - begin, stride);
  }
}

inline void quantise_pair(const float* x, bool whole, bool interleaved, WidePair& pair) {
  alignas(64) std::int16_t q[64] = {};  // in the byte order of the weights
  float scale[2] = {0.0f, 0.0f};
  const __m512 magnitude = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff));
  for (int b = 0; b < (whole ? 2 : 1); ++b) {
    const __m512 v[2] = {_mm512_loadu_ps(x + 32 * b), _mm512_loadu_ps(x + 32 * b + 16)};
    const float largest =
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_and_ps(v[0], magnitude), _mm512_and_ps(v[1], magnitude)));
    // Below this the inverse is infinite; such a block is negligible against the rounding of any other.
    const bool tiny = largest < 1e-30f;
    scale[b] = tiny ? 0.0f : largest / kLevels;
    const __m512 inverse = _mm512_set1_ps(tiny ? 0.0f : kLevels / largest);
    for (int half = 0; half < 2; ++half) {
      const int at = interleaved ? 32 * half + 16 * b : 32 * b + 16 * half;
      _mm256_store_si256(reinterpret_cast<__m256i*>(q + at),
                         _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(v[half], inverse))));
    }
  }
  // Every second value of the 64: the low 16-bit halves are values 0, 2, 4, ..., the high halves 1, 3, 5, ...
  const __m512i low = _mm512_load_si512(q), high = _mm512_load_si512(q + 32);
  _mm512_store_si512(pair.even, two_halves(_mm512_cvtepi32_epi16(low), _mm512_cvtepi32_epi16(high)));
  _mm512_store_si512(pair.odd, two_halves(_mm512_cvtepi32_epi16(_mm512_srai_epi32(low, 16)),
                                          _mm512_cvtepi32_epi16(_mm512_srai_epi32(high, 16))));
  const __mmask16 second = interleaved ? 0xf0f0 : 0xff00;
  _mm512_store_ps(pair.scale, _mm512_mask_blend_ps(second, _mm512_set1_ps(scale[0]), _mm512_set1_ps(scale[1])));
}

inline void quantise_pair(const float* x, bool whole, bool interleaved, WidePairWithSums& pair) {
  quantise_pair(x, whole, interleaved, static_cast<WidePair&>(pair));
  const __m512i ones = _mm512_set1_epi16(1);
  __m512i sum = _mm512_dpwssd_epi32(_mm512_setzero_si512(), ones, _mm512_load_si512(pair.even));
  sum = _mm512_dpwssd_epi32(sum, ones, _mm512_load_si512(pair.odd));
  _mm512_store_ps(pair.sum, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_load_ps(pair.scale)));
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

template <typename Block, bool kInterleaved>
constexpr SkinnyKernel kKernel{pair_bytes<PairOf<Block>>, prepare_pairs<PairOf<Block>, kInterleaved>, rows_gemm<Block>};

}  // namespace
HWY_POP_ATTRIBUTES

const SkinnyKernel* vnni_batch_kernel(DType weights) {
  if (vnni_rows_kernel(weights) == nullptr) return nullptr;
  switch (weights) {
    case DType::kQ8_0:
      return &kKernel<BlockQ8_0, false>;
    case DType::kQ4_0:
      return &kKernel<BlockQ4_0, true>;
    case DType::kQ4_1:
      return &kKernel<BlockQ4_1, true>;
    case DType::kInt4:
      return &kKernel<BlockInt4, true>;
    case DType::kInt8:
      return &kKernel<BlockInt8, false>;
    default:
      return nullptr;
  }
}

}  // namespace mneme

#else

namespace mneme {

const SkinnyKernel* vnni_batch_kernel(DType) {
  return nullptr;
}

}  // namespace mneme

#endif
