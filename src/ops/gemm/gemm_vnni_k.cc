// GEMMs of weights in blocks of 256 with 1 to 7 rows of x, by vpdpbusd: four pairs of 32 values a block, in the order of the
// values, with the scale of each lane of four. Integers and their errors are those of the other few-rows kernels.
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "src/ops/gemm/gemm_kernels.h"
#include "src/ops/gemm/gemm_vnni_pairs-inl.h"
#include "src/ops/gemm/quant.h"

#if HWY_ARCH_X86_64

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")
namespace mneme {
namespace {

using vnni::Pair;
using vnni::PairWithSums;
using vnni::two_halves;
using vnni::Weights;
using vnni::WeightsWithMinima;

constexpr int kPairs = kSuperBlock / 64;
constexpr std::int64_t kPrefetchBytes = 4096;  // as the few-rows kernel of blocks of 32

inline float float_of(f16 d) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(d.bits)));
}

inline __m512i load_halves(const std::uint8_t* low_then_high) {
  const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low_then_high));
  return _mm512_and_si512(two_halves(q, _mm256_srli_epi16(q, 4)), _mm512_set1_epi8(15));
}

// Scales of q4_k and q5_k in lanes 0 to 7, minima, negated, in 8 to 15.
template <typename Block>
inline __m512 scales_and_minima(const Block& b) {
  std::uint32_t u[3];
  std::memcpy(u, b.s, sizeof(u));
  constexpr std::uint32_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kTwo = 0x03030303;
  const std::uint32_t scales = (u[2] & kFour) | ((u[0] >> 6 & kTwo) << 4);
  const std::uint32_t minima = (u[2] >> 4 & kFour) | ((u[1] >> 6 & kTwo) << 4);
  const __m128i bytes = _mm_set_epi32(static_cast<int>(minima), static_cast<int>(u[1] & kSix), static_cast<int>(scales),
                                      static_cast<int>(u[0] & kSix));
  const __m512 factors = _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(float_of(b.d)), _mm512_set1_ps(-float_of(b.dmin)));
  return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)), factors);
}

// Lanes 0 to 7 and 8 to 15 of pair p have the scales 2p and 2p + 1, and minima behind eight scales.
inline WeightsWithMinima with_scales(__m512i q, __m512 scales, int p) {
  const __m512i first = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
  return {q, _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(2 * p)), scales),
          _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(8 + 2 * p)), scales)};
}

template <typename Block>
class Reader;

template <>
class Reader<BlockQ4_K> {
 public:
  using XPair = PairWithSums;
  explicit Reader(const BlockQ4_K& b) : b_(b), scales_(scales_and_minima(b)) {}
  WeightsWithMinima pair(int p) const { return with_scales(load_halves(b_.q + 32 * p), scales_, p); }

 private:
  const BlockQ4_K& b_;
  __m512 scales_;
};

template <>
class Reader<BlockQ5_K> {
 public:
  using XPair = PairWithSums;
  explicit Reader(const BlockQ5_K& b) : b_(b), scales_(scales_and_minima(b)) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b.h));
    high_ = two_halves(h, _mm256_srli_epi16(h, 1));
  }
  WeightsWithMinima pair(int p) const {
    const __mmask64 set = _mm512_test_epi8_mask(high_, _mm512_set1_epi8(static_cast<char>(1 << (2 * p))));
    const __m512i q = load_halves(b_.q + 32 * p);
    return with_scales(_mm512_mask_add_epi8(q, set, q, _mm512_set1_epi8(16)), scales_, p);
  }

 private:
  const BlockQ5_K& b_;
  __m512 scales_;
  __m512i high_;
};

// Four groups of 16 values a pair: scale 4p + lane / 4.
inline __m512 of_sixteens(__m512 scales, int p) {
  const __m512i group = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  return _mm512_permutexvar_ps(_mm512_add_epi32(group, _mm512_set1_epi32(4 * p)), scales);
}

template <>
class Reader<BlockQ6_K> {
 public:
  using XPair = Pair;
  explicit Reader(const BlockQ6_K& b) : b_(b) {
    const __m128i s = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b.s));
    scales_ = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(s)), _mm512_set1_ps(float_of(b.d)));
  }
  // Values are levels less 32, so that levels plus 96 are values plus 128.
  Weights pair(int p) const {
    const __m512i l = _mm512_loadu_si512(b_.l + 64 * (p / 2));
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b_.h + 32 * (p / 2)));
    const __m512i low = p % 2 == 0 ? l : _mm512_srli_epi16(l, 4);
    const __m512i high = p % 2 == 0 ? two_halves(_mm256_slli_epi16(h, 4), _mm256_slli_epi16(h, 2))
                                    : two_halves(h, _mm256_srli_epi16(h, 2));
    const __m512i levels =
        _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi8(15)), _mm512_and_si512(high, _mm512_set1_epi8(0x30)));
    return {_mm512_add_epi8(levels, _mm512_set1_epi8(96)), of_sixteens(scales_, p)};
  }

 private:
  const BlockQ6_K& b_;
  __m512 scales_;
};

// Two bits of each value: of bytes 32 (p / 2) and above, bits 4 (p % 2) for the first 32 values, two further for the rest.
inline __m512i load_quarters(const std::uint8_t* q, int p) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + 32 * (p / 2)));
  const __m512i quarters = p % 2 == 0 ? two_halves(bytes, _mm256_srli_epi16(bytes, 2))
                                      : two_halves(_mm256_srli_epi16(bytes, 4), _mm256_srli_epi16(bytes, 6));
  return _mm512_and_si512(quarters, _mm512_set1_epi8(3));
}

inline __m512 floats_of(__m128i bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}

template <>
class Reader<BlockQ2_K> {
 public:
  using XPair = PairWithSums;
  explicit Reader(const BlockQ2_K& b) : b_(b) {
    const __m128i s = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b.s)), nibble = _mm_set1_epi8(15);
    scales_ = _mm512_mul_ps(floats_of(_mm_and_si128(s, nibble)), _mm512_set1_ps(float_of(b.d)));
    minima_ = _mm512_mul_ps(floats_of(_mm_and_si128(_mm_srli_epi16(s, 4), nibble)), _mm512_set1_ps(-float_of(b.dmin)));
  }
  WeightsWithMinima pair(int p) const {
    return {load_quarters(b_.q, p), of_sixteens(scales_, p), of_sixteens(minima_, p)};
  }

 private:
  const BlockQ2_K& b_;
  __m512 scales_, minima_;
};

template <>
class Reader<BlockQ3_K> {
 public:
  using XPair = Pair;
  explicit Reader(const BlockQ3_K& b) : b_(b) {
    const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b.s)), nibble = _mm_set1_epi8(15);
    const __m128i nibbles = _mm_and_si128(_mm_unpacklo_epi64(low, _mm_srli_epi16(low, 4)), nibble);
    int bits;
    std::memcpy(&bits, b.s + 8, sizeof(bits));
    const __m128i twos =
        _mm_and_si128(_mm_srlv_epi32(_mm_set1_epi32(bits), _mm_set_epi32(6, 4, 2, 0)), _mm_set1_epi8(3));
    const __m128i s = _mm_sub_epi8(_mm_or_si128(nibbles, _mm_slli_epi16(twos, 4)), _mm_set1_epi8(32));
    scales_ = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(s)), _mm512_set1_ps(float_of(b.d)));
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b.h));
    high_ = two_halves(h, _mm256_srli_epi16(h, 1));
  }
  // Values are levels less 4, so that levels plus 124 are values plus 128.
  Weights pair(int p) const {
    const __mmask64 set = _mm512_test_epi8_mask(high_, _mm512_set1_epi8(static_cast<char>(1 << (2 * p))));
    const __m512i q = _mm512_add_epi8(load_quarters(b_.q, p), _mm512_set1_epi8(124));
    return {_mm512_mask_add_epi8(q, set, q, _mm512_set1_epi8(4)), of_sixteens(scales_, p)};
  }

 private:
  const BlockQ3_K& b_;
  __m512 scales_;
  __m512i high_;
};

template <>
class Reader<BlockIQ4_XS> {
 public:
  using XPair = Pair;
  explicit Reader(const BlockIQ4_XS& b) : b_(b) {
    int bytes;
    std::memcpy(&bytes, b.s, sizeof(bytes));
    const __m128i s = _mm_cvtsi32_si128(bytes), nibble = _mm_set1_epi8(15);
    const __m128i nibbles = _mm_unpacklo_epi8(_mm_and_si128(s, nibble), _mm_and_si128(_mm_srli_epi16(s, 4), nibble));
    const __m256i twos = _mm256_and_si256(
        _mm256_srlv_epi32(_mm256_set1_epi32(b.u), _mm256_set_epi32(14, 12, 10, 8, 6, 4, 2, 0)), _mm256_set1_epi32(3));
    const __m256i sum = _mm256_or_si256(_mm256_cvtepu8_epi32(nibbles), _mm256_slli_epi32(twos, 4));
    const __m256 scales = _mm256_cvtepi32_ps(_mm256_sub_epi32(sum, _mm256_set1_epi32(32)));
    scales_ = _mm512_castps256_ps512(_mm256_mul_ps(scales, _mm256_set1_ps(float_of(b.d))));
  }
  // Lanes 0 to 7 and 8 to 15 of pair p have the scales 2p and 2p + 1.
  Weights pair(int p) const {
    const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b_.q + 32 * p));
    const __m512i halves = two_halves(q, _mm256_srli_epi16(q, 4));
    const __m512i in_order = _mm512_shuffle_i64x2(halves, halves, 0b11'01'10'00);
    const __m512i first = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    return {vnni::iq4_levels(_mm512_and_si512(in_order, _mm512_set1_epi8(15))),
            _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(2 * p)), scales_)};
  }

 private:
  const BlockIQ4_XS& b_;
  __m512 scales_;
};

template <typename Block, int kTokensAtOnce>
inline void dot(const typename Reader<Block>::XPair* const* x, const Block* w, std::int64_t n_blocks, __m512* sum) {
  constexpr int kParts = kTokensAtOnce == 1 ? 4 : kTokensAtOnce == 2 ? 2 : 1;  // independent accumulation chains
  __m512 part[kParts][kTokensAtOnce];
  for (auto& row : part)
    for (auto& v : row) v = _mm512_setzero_ps();
  for (std::int64_t b = 0; b < n_blocks; ++b) {
    const auto* bytes = reinterpret_cast<const std::byte*>(w + b);
    for (std::size_t line = 0; line < sizeof(Block); line += 64)
      __builtin_prefetch(bytes + kPrefetchBytes + line, 0, 3);
    const Reader<Block> block(w[b]);
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) vnni::add_pair<kTokensAtOnce>(block.pair(p), x, kPairs * b + p, part[p % kParts]);
  }
  for (int t = 0; t < kTokensAtOnce; ++t) {
    sum[t] = part[0][t];
    for (int i = 1; i < kParts; ++i) sum[t] = _mm512_add_ps(sum[t], part[i][t]);
  }
}

// kRows rows of weights, 4 or 1, with kTokensAtOnce rows of x.
template <typename Block, int kRows, int kTokensAtOnce>
void dots(const typename Reader<Block>::XPair* const* x, const Block* const* w, std::int64_t n_blocks, float* sums,
          std::int64_t stride) {
  __m512 sum[kRows][kTokensAtOnce];
  for (int r = 0; r < kRows; ++r) dot<Block, kTokensAtOnce>(x, w[r], n_blocks, sum[r]);
  for (int i = 0; i < kTokensAtOnce; ++i) {
    if constexpr (kRows == 4)
      _mm_storeu_ps(sums + i * stride, vnni::sums_of_lanes(sum[0][i], sum[1][i], sum[2][i], sum[3][i]));
    else
      sums[i * stride] = _mm512_reduce_add_ps(sum[0][i]);
  }
}

template <typename Block, int kRows>
void all_tokens(const typename Reader<Block>::XPair* prepared, std::int64_t m, std::int64_t k, const Block* const* w,
                float* sums, std::int64_t stride) {
  const typename Reader<Block>::XPair* x[kMaxFewRows];
  for (std::int64_t i = 0; i < m; ++i) x[i] = prepared + i * vnni::pairs_of(k);
  const std::int64_t n_blocks = k / kSuperBlock;
  std::int64_t i = 0;
  for (; i + 4 <= m; i += 4) dots<Block, kRows, 4>(x + i, w, n_blocks, sums + i * stride, stride);
  switch (m - i) {
    case 1:
      return dots<Block, kRows, 1>(x + i, w, n_blocks, sums + i * stride, stride);
    case 2:
      return dots<Block, kRows, 2>(x + i, w, n_blocks, sums + i * stride, stride);
    case 3:
      return dots<Block, kRows, 3>(x + i, w, n_blocks, sums + i * stride, stride);
    default:
      return;
  }
}

template <typename Block>
void rows_gemm(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin,
               std::int64_t end, float* sums, std::int64_t stride) {
  const auto* x = reinterpret_cast<const typename Reader<Block>::XPair*>(prepared);
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

template <typename Block>
constexpr SkinnyKernel kKernel{vnni::pair_bytes<typename Reader<Block>::XPair>,
                               vnni::prepare_pairs<typename Reader<Block>::XPair, false>, rows_gemm<Block>};

}  // namespace

const SkinnyKernel* vnni_super_block_kernel(DType weights) {
  switch (weights) {
    case DType::kQ2_K:
      return &kKernel<BlockQ2_K>;
    case DType::kQ3_K:
      return &kKernel<BlockQ3_K>;
    case DType::kIQ4_XS:
      return &kKernel<BlockIQ4_XS>;
    case DType::kQ4_K:
      return &kKernel<BlockQ4_K>;
    case DType::kQ5_K:
      return &kKernel<BlockQ5_K>;
    case DType::kQ6_K:
      return &kKernel<BlockQ6_K>;
    default:
      return nullptr;
  }
}

}  // namespace mneme
HWY_POP_ATTRIBUTES

#endif
