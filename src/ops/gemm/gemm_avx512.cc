// The two instructions that Highway 1.0.3 does not give: vdpbf16ps for many rows, vpdpbusd for few rows of quantised
// weights. Measured against the Highway forms in bench/kernels_bench.cc; docs/numerics.md has the figures.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/base/check.h"
#include "src/base/checked_before.h"
#include "src/kernels/matmul_kernels.h"
#include "src/kernels/matmul_vnni-inl.h"
#include "src/kernels/quant.h"

#if HWY_ARCH_X86_64

#if HWY_COMPILER_GCC_ACTUAL
// GCC 12's own headers start from undefined vectors on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace mneme {
namespace {

// x for vpdpbusd: pairs of blocks, each value 15 bits in two signed bytes, x = (128 hi + lo) * scale. The instruction
// wants the other side unsigned, so weights come as w + 128, and `start` takes the surplus back: -sum(128 hi + lo) over
// the four values of a lane, which after the shift by 7 that joins the bytes is -128 * sum(x). All of it exact in 32
// bits.
struct alignas(64) Pair {
  std::int8_t hi[64];
  std::int8_t lo[64];
  std::int32_t start[16];
  float scale[16];
};
constexpr int kLevels = 127 * 128;
constexpr int kShift = 7;

std::int64_t pairs_of(std::int64_t k) {
  return (k / kQuantBlock + 1) / 2;
}

std::size_t pair_bytes(std::int64_t m, std::int64_t k) {
  return static_cast<std::size_t>(m * pairs_of(k)) * sizeof(Pair);
}

}  // namespace

// ---- bf16 tile ----

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,f16c,fma")
namespace {

constexpr int kTokens = 32;

template <int kVectors>
MNEME_CHECKED_BEFORE inline void tile(const std::byte* packed, const std::byte* const* w, std::int64_t k, Sums from,
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

void tile_product(const std::byte* packed, const std::byte* const* w, std::int64_t k, int n_tokens, Sums from,
                  float* sums) {
  const auto bytes = static_cast<std::size_t>((k + 1) / 2) * 4;
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

template <typename Block>
void convert_blocks(const ConstTensorView& w, std::int64_t begin, std::int64_t end, std::byte* rows) {
  for (std::int64_t r = begin; r < end; ++r) {
    const auto* blocks = reinterpret_cast<const Block*>(w.row(r));
    for (std::int64_t b = 0; b < w.dim(1) / kQuantBlock; ++b, rows += 2 * kQuantBlock) convert_block(blocks[b], rows);
  }
}

void tile_convert(const ConstTensorView& w, std::int64_t begin, std::int64_t end, std::byte* rows) {
  if (w.dtype() == DType::kQ8_0) return convert_blocks<BlockQ8_0>(w, begin, end, rows);
  if (w.dtype() == DType::kQ4_0) return convert_blocks<BlockQ4_0>(w, begin, end, rows);
  convert_rows(w, begin, end, DType::kBF16, rows);
}

constexpr TileKernel kTile{
    .element = DType::kBF16, .tokens = kTokens, .product = tile_product, .convert = tile_convert};

}  // namespace
HWY_POP_ATTRIBUTES

// ---- few rows ----

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")
namespace {

using vnni::spread_scales;
using vnni::sums_of_lanes;
using vnni::two_halves;

// Where the 32 values of each block of a pair go among 64 bytes, and both scales at f32.
struct Weights {
  __m512i q;  // w + 128, unsigned
  __m512 scales;
};

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

// Bytes 0..15 values 0..15 of the first block, 16..31 those of the second, 32..63 their values 16..31.
inline Weights load_pair(const BlockQ4_0* b, bool whole) {
  const __m512i offset = _mm512_set1_epi8(120), nibble = _mm512_set1_epi8(15);
  const __m512i index = _mm512_castsi256_si512(_mm256_set_epi16(9, 9, 9, 9, 0, 0, 0, 0, 9, 9, 9, 9, 0, 0, 0, 0));
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b[0].q));
  const __m128i second = whole ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(b[1].q)) : _mm_setzero_si128();
  const __m512i words = whole ? _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)))
                              : _mm512_maskz_loadu_epi16(0x1, b);
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
  const __m512i halves = two_halves(both, _mm256_srli_epi16(both, 4));
  return {_mm512_add_epi8(_mm512_and_si512(halves, nibble), offset), spread_scales(words, index)};
}

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

// How far ahead of the weights in use the next ones are asked for. One row after the other is one stream for each
// thread: from memory it reads q8_0 1.5 times as fast as four rows side by side (70 against 47 GB/s of 75 with two
// threads), because rows of 1 to 9 KiB end before the hardware's prefetcher has caught up with four of them.
constexpr std::int64_t kAheadBytes = 4096;

template <typename Block, int kRows, int kTokensAtOnce>
inline void dot(const Pair* const* x, const Block* const* w, std::int64_t n_blocks, float* sums, std::int64_t stride) {
  constexpr int kParts = kTokensAtOnce == 1 ? 4 : kTokensAtOnce == 2 ? 2 : 1;  // additions under way at once
  __m512 sum[kRows][kTokensAtOnce];
  const std::int64_t n_whole = n_blocks / 2;
  for (int r = 0; r < kRows; ++r) {
    __m512 part[kParts][kTokensAtOnce];
    for (auto& row : part)
      for (auto& v : row) v = _mm512_setzero_ps();
    const auto step = [&](std::int64_t p, __m512* into) {
      __builtin_prefetch(reinterpret_cast<const std::byte*>(w[r] + 2 * p) + kAheadBytes, 0, 3);
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
void all_tokens(const Pair* prepared, std::int64_t m, std::int64_t k, const Block* const* w, float* sums,
                std::int64_t stride) {
  const Pair* x[kMaxFewRows];
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
void rows_product(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin,
                  std::int64_t end, float* sums, std::int64_t stride) {
  const auto* x = reinterpret_cast<const Pair*>(prepared);
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

// Blocks of 16 values side by side in kind's order of bytes.
inline void quantise_pair(const float* x, bool whole, bool interleaved, Pair& pair) {
  alignas(64) std::int8_t hi[64], lo[64];
  float scale[2] = {0.0f, 0.0f};
  const __m512 magnitude = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff));
  for (int b = 0; b < 2; ++b) {
    const bool there = b == 0 || whole;
    const __m512 v0 = there ? _mm512_loadu_ps(x + 32 * b) : _mm512_setzero_ps();
    const __m512 v1 = there ? _mm512_loadu_ps(x + 32 * b + 16) : _mm512_setzero_ps();
    const float largest =
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_and_ps(v0, magnitude), _mm512_and_ps(v1, magnitude)));
    // Below this the inverse is infinite; such a block is nothing beside the rounding of any other.
    const bool tiny = largest < 1e-30f;
    scale[b] = tiny ? 0.0f : largest / static_cast<float>(kLevels);
    const __m512 inverse = _mm512_set1_ps(tiny ? 0.0f : static_cast<float>(kLevels) / largest);
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
  _mm512_store_si512(pair.start, _mm512_sub_epi32(_mm512_setzero_si512(), sum));
  const __mmask16 second = interleaved ? 0xf0f0 : 0xff00;
  _mm512_store_ps(pair.scale, _mm512_mask_blend_ps(second, _mm512_set1_ps(scale[0]), _mm512_set1_ps(scale[1])));
}

template <bool kInterleaved>
void prepare_pairs(const ConstTensorView& x, std::byte* prepared) {
  auto* pairs = reinterpret_cast<Pair*>(prepared);
  const std::int64_t n_blocks = x.dim(1) / kQuantBlock;
  for (std::int64_t i = 0; i < x.dim(0); ++i) {
    const float* row = x.row_as<float>(i);
    for (std::int64_t p = 0; p < pairs_of(x.dim(1)); ++p)
      quantise_pair(row + 2 * kQuantBlock * p, 2 * p + 1 < n_blocks, kInterleaved, pairs[i * pairs_of(x.dim(1)) + p]);
  }
}

constexpr RowsKernel kQ8{pair_bytes, prepare_pairs<false>, rows_product<BlockQ8_0>};
constexpr RowsKernel kQ4{pair_bytes, prepare_pairs<true>, rows_product<BlockQ4_0>};

}  // namespace
HWY_POP_ATTRIBUTES

const TileKernel* bf16_tile_kernel() {
  static const bool has_instruction = __builtin_cpu_supports("avx512bf16") != 0;
  return has_instruction && highway_takes_avx512() ? &kTile : nullptr;
}

const RowsKernel* vnni_rows_kernel(DType weights) {
  static const bool has_instruction = __builtin_cpu_supports("avx512vnni") != 0;
  if (!has_instruction || !highway_takes_avx512()) return nullptr;
  if (weights == DType::kQ8_0) return &kQ8;
  return weights == DType::kQ4_0 ? &kQ4 : nullptr;
}

}  // namespace mneme

#else

namespace mneme {

const TileKernel* bf16_tile_kernel() {
  return nullptr;
}
const RowsKernel* vnni_rows_kernel(DType) {
  return nullptr;
}

}  // namespace mneme

#endif
