// The two instructions that Highway 1.0.3 does not emit: vdpbf16ps for many rows, vpdpbusd for few rows of quantised
// weights. apps/bench/micro/kernels_bench.cc compares them with the Highway forms;
// docs/design/numerics.md has the figures.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "src/base/check.h"
#include "src/base/unchecked_loop.h"
#include "src/ops/gemm/gemm_kernels.h"
#include "src/ops/gemm/gemm_vnni_pairs-inl.h"
#include "src/ops/gemm/quant.h"
#include "src/ops/simd/cpu_isa.h"

#if HWY_ARCH_X86_64

#if HWY_COMPILER_GCC_ACTUAL
// GCC 12's intrinsics start from undefined vectors on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace mneme {
namespace {

template <typename Block>
using PairOf = std::conditional_t<std::is_same_v<Block, BlockQ4_1> || std::is_same_v<Block, BlockQ5_1> ||
                                      std::is_same_v<Block, BlockInt4>,
                                  vnni::PairWithSums, vnni::Pair>;

}  // namespace

// ---- bf16 tile

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,f16c,fma")
namespace {

constexpr int kTokens = 32;

template <int kVectors>
MNEME_UNCHECKED_LOOP inline void tile(const std::byte* packed, const std::byte* const* w, std::int64_t k, Sums from,
                                      float* sums) {
  __m512 sum[kTileRows][kVectors];
  for (int r = 0; r < kTileRows; ++r)
    for (int c = 0; c < kVectors; ++c)
      sum[r][c] = from == Sums::kStart ? _mm512_setzero_ps() : _mm512_load_ps(sums + r * kTokens + c * 16);
  const std::int64_t n_pairs = (k + 1) / 2;
  for (std::int64_t p = 0; p < n_pairs; ++p) {
    __m512bh x[kVectors];
    for (int c = 0; c < kVectors; ++c) x[c] = (__m512bh)_mm512_load_si512(packed + (p * kTokens + c * 16) * 4);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      int pair;
      std::memcpy(&pair, w[r] + 4 * p, 4);
      const auto weight = (__m512bh)_mm512_set1_epi32(pair);
      for (int c = 0; c < kVectors; ++c) sum[r][c] = _mm512_dpbf16_ps(sum[r][c], x[c], weight);
    }
  }
  for (int r = 0; r < kTileRows; ++r)
    for (int c = 0; c < kVectors; ++c) _mm512_store_ps(sums + r * kTokens + c * 16, sum[r][c]);
}

void tile_gemm(const std::byte* packed, const std::byte* const* w, std::int64_t k, int n_tokens, Sums from,
               float* sums) {
  const auto bytes = (k + 1) / 2 * 4;
  expect_addressable(packed, bytes * kTokens);
  expect_addressable(sums, kTileRows * kTokens * sizeof(float));
  for (int r = 0; r < kTileRows; ++r) expect_addressable(w[r], bytes);
  if (n_tokens > 16)
    tile<2>(packed, w, k, from, sums);
  else
    tile<1>(packed, w, k, from, sums);
}

inline __m512 scaled(__m512i q, __m512 scale) {
  return _mm512_mul_ps(_mm512_cvtepi32_ps(q), scale);
}

inline __m512 scale_of(f16 d) {
  return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(d.bits)));
}

inline void convert_block(const BlockQ8_0& b, std::byte* to) {
  const __m128i* q = reinterpret_cast<const __m128i*>(b.q);
  const __m512 scale = scale_of(b.d);
  const __m512 low = scaled(_mm512_cvtepi8_epi32(_mm_loadu_si128(q)), scale);
  const __m512 high = scaled(_mm512_cvtepi8_epi32(_mm_loadu_si128(q + 1)), scale);
  _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

inline void convert_block(const BlockQ4_0& b, std::byte* to) {
  const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b.q)), nibble = _mm_set1_epi8(15);
  const __m128i low = _mm_and_si128(both, nibble), high = _mm_and_si128(_mm_srli_epi16(both, 4), nibble);
  const __m512 scale = scale_of(b.d);
  const __m512i eight = _mm512_set1_epi32(8);
  const __m512 first = scaled(_mm512_sub_epi32(_mm512_cvtepu8_epi32(low), eight), scale);
  const __m512 second = scaled(_mm512_sub_epi32(_mm512_cvtepu8_epi32(high), eight), scale);
  _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

inline void convert_block(const BlockQ4_1& b, std::byte* to) {
  const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b.q)), nibble = _mm_set1_epi8(15);
  const __m128i low = _mm_and_si128(both, nibble), high = _mm_and_si128(_mm_srli_epi16(both, 4), nibble);
  const __m512 scale = scale_of(b.d), min = scale_of(b.m);
  const __m512 first = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(low)), scale, min);
  const __m512 second = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(high)), scale, min);
  _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

template <typename Block>
void convert_blocks(const ConstTensorView& w, std::int64_t begin, std::int64_t end, std::byte* rows) {
  const std::int64_t n_blocks = w.dim(1) / kQuantBlock;
  for (std::int64_t r = begin; r < end; ++r) {
    const auto* blocks = reinterpret_cast<const Block*>(w.row(r));
    for (std::int64_t b = 0; b < n_blocks; ++b, rows += 2 * kQuantBlock) convert_block(blocks[b], rows);
  }
}

void tile_convert(const ConstTensorView& w, std::int64_t begin, std::int64_t end, std::byte* rows) {
  if (w.dtype() == DType::kQ8_0) return convert_blocks<BlockQ8_0>(w, begin, end, rows);
  if (w.dtype() == DType::kQ4_0) return convert_blocks<BlockQ4_0>(w, begin, end, rows);
  if (w.dtype() == DType::kQ4_1) return convert_blocks<BlockQ4_1>(w, begin, end, rows);
  convert_rows(w, begin, end, DType::kBF16, rows);
}

constexpr TileKernel kTile{.element = DType::kBF16, .tokens = kTokens, .gemm = tile_gemm, .convert = tile_convert};

}  // namespace
HWY_POP_ATTRIBUTES

// ---- few rows

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")
namespace {

using vnni::add_pair;
using vnni::pair_bytes;
using vnni::pairs_of;
using vnni::prepare_pairs;
using vnni::spread_scales;
using vnni::sums_of_lanes;
using vnni::two_halves;
using vnni::Weights;
using vnni::WeightsWithMinima;

// Bytes 0..31 are the first block's, 32..63 the second's.
inline Weights load_pair(const BlockQ8_0* b, bool whole) {
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i index =
      _mm512_castsi256_si512(_mm256_set_epi16(17, 17, 17, 17, 17, 17, 17, 17, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b[0].q));
  if (whole) {
    const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b[1].q));
    return {_mm512_xor_si512(two_halves(first, second), flip), spread_scales(_mm512_loadu_si512(b), index)};
  }
  const __m512i words = _mm512_maskz_loadu_epi16(0x1, b);
  return {_mm512_xor_si512(two_halves(first, _mm256_setzero_si256()), flip), spread_scales(words, index)};
}

// Nibbles of two blocks. Bytes 0..15 are values 0..15 of the first, 16..31 those of the second, 32..63 their values
// 16..31; the same order for all types below but for int8.
template <typename Block>
inline __m512i load_nibbles(const Block* b, bool whole) {
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b[0].q));
  const __m128i second = whole ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(b[1].q)) : _mm_setzero_si128();
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
  return _mm512_and_si512(two_halves(both, _mm256_srli_epi16(both, 4)), _mm512_set1_epi8(15));
}

// Which values of two blocks have their fifth bit set.
template <typename Block>
inline __mmask64 fifth_bits(const Block* b, bool whole) {
  std::uint32_t first, second = 0;
  std::memcpy(&first, b[0].h, sizeof(first));
  if (whole) std::memcpy(&second, b[1].h, sizeof(second));
  const std::uint32_t low = (first & 0xffff) | second << 16, high = first >> 16 | (second & 0xffff0000u);
  return std::uint64_t{high} << 32 | low;
}

// The f16 at word `at` of both blocks, which are at most 32 bytes apart.
template <int kWords>
inline __m512 scales_of(const void* b, bool whole) {
  const __m512i index = _mm512_castsi256_si512(
      _mm256_set_epi16(kWords, kWords, kWords, kWords, 0, 0, 0, 0, kWords, kWords, kWords, kWords, 0, 0, 0, 0));
  const __m512i words = whole ? _mm512_castsi256_si512(_mm256_loadu_si256(static_cast<const __m256i*>(b)))
                              : _mm512_maskz_loadu_epi16(0x1, b);
  return spread_scales(words, index);
}

// Scales and minima, which are the first words of both blocks.
template <int kWords>
inline WeightsWithMinima with_minima(__m512i levels, const void* b, bool whole) {
  const __m512i index =
      _mm512_set_epi32(kWords, kWords, kWords, kWords, 0, 0, 0, 0, kWords, kWords, kWords, kWords, 0, 0, 0, 0);
  const __m512 words =
      _mm512_cvtph_ps(whole ? _mm256_loadu_si256(static_cast<const __m256i*>(b)) : _mm256_maskz_loadu_epi16(0x3, b));
  return {levels, _mm512_permutexvar_ps(index, words),
          _mm512_permutexvar_ps(_mm512_add_epi32(index, _mm512_set1_epi32(1)), words)};
}

inline Weights load_pair(const BlockQ4_0* b, bool whole) {
  return {_mm512_add_epi8(load_nibbles(b, whole), _mm512_set1_epi8(120)), scales_of<9>(b, whole)};
}

inline Weights load_pair(const BlockQ5_0* b, bool whole) {
  const __m512i q = _mm512_add_epi8(load_nibbles(b, whole), _mm512_set1_epi8(112));
  return {_mm512_mask_add_epi8(q, fifth_bits(b, whole), q, _mm512_set1_epi8(16)), scales_of<11>(b, whole)};
}

inline Weights load_pair(const BlockIQ4_NL* b, bool whole) {
  return {vnni::iq4_levels(load_nibbles(b, whole)), scales_of<9>(b, whole)};
}

inline Weights load_pair(const BlockMXFP4* b, bool whole) {
  const __m512 second = _mm512_set1_ps(whole ? mxfp4_scale(b[1].e) : 0.0f);
  return {vnni::look_up(kFp4Values, load_nibbles(b, whole)),
          _mm512_mask_blend_ps(0xf0f0, _mm512_set1_ps(mxfp4_scale(b[0].e)), second)};
}

inline WeightsWithMinima load_pair(const BlockQ4_1* b, bool whole) {
  return with_minima<10>(load_nibbles(b, whole), b, whole);
}

inline WeightsWithMinima load_pair(const BlockQ5_1* b, bool whole) {
  const __m512i q = load_nibbles(b, whole);
  return with_minima<12>(_mm512_mask_add_epi8(q, fifth_bits(b, whole), q, _mm512_set1_epi8(16)), b, whole);
}

inline WeightsWithMinima load_pair(const BlockInt4* b, bool whole) {
  const vnni::Int4Scales s = vnni::int4_scales(b, whole);
  return {vnni::int4_levels(b, whole), s.scales, s.minima};
}

inline Weights load_pair(const BlockInt8* b, bool whole) {
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(0x80));
  return {_mm512_xor_si512(vnni::int8_levels(b, whole), flip), vnni::int8_scales(b, whole)};
}

// Prefetch distance, in bytes of a row. One row after the other is one stream per thread: from memory it reads q8_0 1.5
// times as fast as four rows interleaved (70 against 47 GB/s of 75 with two threads), because rows of 1 to 9 KiB end
// before the hardware prefetcher has caught up with four of them.
constexpr std::int64_t kPrefetchBytes = 4096;

template <typename Block, int kRows, int kTokensAtOnce>
inline void dot(const PairOf<Block>* const* x, const Block* const* w, std::int64_t n_blocks, float* sums,
                std::int64_t stride) {
  constexpr int kParts = kTokensAtOnce == 1 ? 4 : kTokensAtOnce == 2 ? 2 : 1;  // independent accumulation chains
  __m512 sum[kRows][kTokensAtOnce];
  const std::int64_t n_whole = n_blocks / 2;
  for (int r = 0; r < kRows; ++r) {
    __m512 part[kParts][kTokensAtOnce];
    for (auto& row : part)
      for (auto& v : row) v = _mm512_setzero_ps();
    const auto step = [&](std::int64_t p, __m512* into) {
      __builtin_prefetch(reinterpret_cast<const std::byte*>(w[r] + 2 * p) + kPrefetchBytes, 0, 3);
      add_pair<kTokensAtOnce>(load_pair(w[r] + 2 * p, true), x, p, into);
    };
    std::int64_t p = 0;
    for (; p + kParts <= n_whole; p += kParts)
#pragma GCC unroll 4
      for (int i = 0; i < kParts; ++i) step(p + i, part[i]);
    for (; p < n_whole; ++p) step(p, part[0]);
    if (n_blocks % 2 != 0) add_pair<kTokensAtOnce>(load_pair(w[r] + 2 * n_whole, false), x, n_whole, part[0]);
    for (int t = 0; t < kTokensAtOnce; ++t) {
      sum[r][t] = part[0][t];
      for (int i = 1; i < kParts; ++i) sum[r][t] = _mm512_add_ps(sum[r][t], part[i][t]);
    }
  }
  for (int i = 0; i < kTokensAtOnce; ++i) {
    if constexpr (kRows == 4)
      _mm_storeu_ps(sums + i * stride, sums_of_lanes(sum[0][i], sum[1][i], sum[2][i], sum[3][i]));
    else
      for (int r = 0; r < kRows; ++r) sums[i * stride + r] = _mm512_reduce_add_ps(sum[r][i]);
  }
}

template <typename Block, int kRows>
void all_tokens(const PairOf<Block>* prepared, std::int64_t m, std::int64_t k, const Block* const* w, float* sums,
                std::int64_t stride) {
  const PairOf<Block>* x[kMaxFewRows];
  for (std::int64_t i = 0; i < m; ++i) x[i] = prepared + i * pairs_of(k);
  const std::int64_t n_blocks = k / kQuantBlock;
  std::int64_t i = 0;
  for (; i + 4 <= m; i += 4) dot<Block, kRows, 4>(x + i, w, n_blocks, sums + i * stride, stride);
  switch (m - i) {
    case 1:
      return dot<Block, kRows, 1>(x + i, w, n_blocks, sums + i * stride, stride);
    case 2:
      return dot<Block, kRows, 2>(x + i, w, n_blocks, sums + i * stride, stride);
    case 3:
      return dot<Block, kRows, 3>(x + i, w, n_blocks, sums + i * stride, stride);
    default:
      return;
  }
}

template <typename Block>
void rows_gemm(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin,
               std::int64_t end, float* sums, std::int64_t stride) {
  const auto* x = reinterpret_cast<const PairOf<Block>*>(prepared);
  const std::int64_t k = w.dim(1);
  std::int64_t r = begin;
  const Block* row[4];
  for (; r + 4 <= end; r += 4) {
    for (int i = 0; i < 4; ++i) row[i] = reinterpret_cast<const Block*>(w.row(r + i));
    all_tokens<Block, 4>(x, m, k, row, sums + r - begin, stride);
  }
  for (; r < end; ++r) {
    row[0] = reinterpret_cast<const Block*>(w.row(r));
    all_tokens<Block, 1>(x, m, k, row, sums + r - begin, stride);
  }
}

template <typename Block, bool kInterleaved>
constexpr SkinnyKernel kKernel{pair_bytes<PairOf<Block>>, prepare_pairs<PairOf<Block>, kInterleaved>, rows_gemm<Block>};

}  // namespace
HWY_POP_ATTRIBUTES

const TileKernel* bf16_tile_kernel() {
  return kernels_may_use(CpuIsa::kAvx512Bf16) ? &kTile : nullptr;
}

const SkinnyKernel* vnni_rows_kernel(DType weights) {
  if (!kernels_may_use(CpuIsa::kAvx512Vnni)) return nullptr;
  switch (weights) {
    case DType::kQ8_0:
      return &kKernel<BlockQ8_0, false>;
    case DType::kQ4_0:
      return &kKernel<BlockQ4_0, true>;
    case DType::kQ4_1:
      return &kKernel<BlockQ4_1, true>;
    case DType::kQ5_0:
      return &kKernel<BlockQ5_0, true>;
    case DType::kQ5_1:
      return &kKernel<BlockQ5_1, true>;
    case DType::kIQ4_NL:
      return &kKernel<BlockIQ4_NL, true>;
    case DType::kMXFP4:
      return &kKernel<BlockMXFP4, true>;
    case DType::kInt4:
      return &kKernel<BlockInt4, true>;
    case DType::kInt8:
      return &kKernel<BlockInt8, false>;
    default:
      return vnni_super_block_kernel(weights);
  }
}

}  // namespace mneme

#else

namespace mneme {

const TileKernel* bf16_tile_kernel() {
  return nullptr;
}
const SkinnyKernel* vnni_rows_kernel(DType) {
  return nullptr;
}

}  // namespace mneme

#endif
