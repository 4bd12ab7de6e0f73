// GEMMs with few rows: every weight is read once and multiplied with all rows of x while in a register. In Highway.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "src/base/check.h"
#include "src/ops/gemm/gemm_kernels.h"
#include "src/ops/gemm/int16_rows.h"
#include "src/ops/gemm/quant.h"
#include "src/tensor/buffer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/gemm/gemm_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/gemm/quant-inl.h"
#include "src/ops/simd/round-inl.h"

#ifndef MNEME_OPS_GEMM_ROWS_ONCE
#define MNEME_OPS_GEMM_ROWS_ONCE
namespace mneme {

// Weight rows summed together: 4 x 4 sums fill half the registers of AVX-512, all of AVX2's.
inline constexpr int kDotRows = 4;
inline constexpr int kDotTokens = 4;

// x for bf16 weights: a 32-bit word holds weights 2i (low half) and 2i + 1, so x's even and odd values are stored
// apart.
struct EvenOdd {
  const float *even, *odd;
  static std::size_t half_bytes(std::int64_t k) { return padded_to_line((k + 1) / 2 * 4); }
  static EvenOdd of(const std::byte* prepared, std::int64_t i, std::int64_t k) {
    const std::byte* row = prepared + 2 * i * half_bytes(k);
    return {reinterpret_cast<const float*>(row), reinterpret_cast<const float*>(row + half_bytes(k))};
  }
};

}  // namespace mneme
#endif

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using VF32 = hn::Vec<F32>;

// Calls body(rows, tokens, first row, first token) with compile-time counts until all rows [begin, end) are combined
// with all m tokens.
template <typename Body>
HWY_INLINE void for_dots(std::int64_t m, std::int64_t begin, std::int64_t end, Body body) {
  const auto tokens = [&](auto rows, std::int64_t r) HWY_ATTR {
    std::int64_t i = 0;
    for (; i + kDotTokens <= m; i += kDotTokens) body(rows, std::integral_constant<int, kDotTokens>(), r, i);
    switch (m - i) {
      case 1:
        return body(rows, std::integral_constant<int, 1>(), r, i);
      case 2:
        return body(rows, std::integral_constant<int, 2>(), r, i);
      case 3:
        return body(rows, std::integral_constant<int, 3>(), r, i);
      default:
        return;
    }
  };
  std::int64_t r = begin;
  for (; r + kDotRows <= end; r += kDotRows) tokens(std::integral_constant<int, kDotRows>(), r);
  for (; r < end; ++r) tokens(std::integral_constant<int, 1>(), r);
}

// Dot products of weights of one type with all rows of x, tile by tile.
template <typename Dots, typename Weight>
HWY_INLINE void tiled_rows(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin,
                           std::int64_t end, float* sums, std::int64_t stride) {
  const std::int64_t k = w.dim(1);
  for_dots(m, begin, end, [&](auto rows, auto tokens, std::int64_t r0, std::int64_t i0) HWY_ATTR {
    typename Dots::X x[kDotTokens];
    const Weight* row[kDotRows];
    float out[kDotRows][kDotTokens];
    for (int i = 0; i < tokens; ++i) x[i] = Dots::x_of(prepared, i0 + i, k);
    for (int r = 0; r < rows; ++r) row[r] = reinterpret_cast<const Weight*>(w.row(r0 + r));
    Dots::template dot<rows, tokens>(x, row, k, out);
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < tokens; ++i) sums[(i0 + i) * stride + r0 + r - begin] = out[r][i];
  });
}

// ---- f32 and f16 weights

// x and its dot products for f32 and f16 weights.
struct FloatDots {
  using X = const float*;
  static X x_of(const std::byte* prepared, std::int64_t i, std::int64_t k) {
    return reinterpret_cast<const float*>(prepared) + i * k;
  }

  template <int kRows, int kTokens, typename Weight>
  static HWY_INLINE void dot(const X* x, const Weight* const* w, std::int64_t k, float (*out)[kDotTokens]) {
    const F32 d;
    const std::int64_t lanes = hn::Lanes(d);
    VF32 sum[kRows][kTokens];
    for (auto& row : sum)
      for (auto& v : row) v = hn::Zero(d);
    std::int64_t j = 0;
    for (; j + lanes <= k; j += lanes) {
      for (int r = 0; r < kRows; ++r) {
        const auto weight = get(d, w[r] + j);
        for (int i = 0; i < kTokens; ++i) sum[r][i] = hn::MulAdd(weight, hn::LoadU(d, x[i] + j), sum[r][i]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kTokens; ++i) {
        float total = hn::GetLane(hn::SumOfLanes(d, sum[r][i]));
        for (std::int64_t t = j; t < k; ++t) total += w[r][t] * x[i][t];
        out[r][i] = total;
      }
    }
  }
};

void F32Rows(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin, std::int64_t end,
             float* sums, std::int64_t stride) {
  tiled_rows<FloatDots, float>(prepared, m, w, begin, end, sums, stride);
}

void F16Rows(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin, std::int64_t end,
             float* sums, std::int64_t stride) {
  tiled_rows<FloatDots, f16>(prepared, m, w, begin, end, sums, stride);
}

// ---- bf16 weights

// Words of two weights each, at bf16 alignment.
template <class D>
HWY_INLINE hn::Vec<D> load_pairs(D d, const bf16* w) {
#if HWY_TARGET == HWY_SCALAR
  std::uint32_t word;
  std::memcpy(&word, w, sizeof(word));
  return hn::Set(d, word);
#else
  const hn::Repartition<std::uint16_t, D> d16;
  return hn::BitCast(d, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(w)));
#endif
}

// Prefetch distance, in bytes of a row; one row after the other is one stream per thread. Two threads with one token
// read 65 GB/s this way, 55 with four rows interleaved, of 75 that plain reading reaches.
inline constexpr std::int64_t kPrefetchBytes = 2048;

template <int kTokens>
HWY_INLINE void dot_bf16(const EvenOdd* x, const bf16* w, std::int64_t k, float* out) {
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  const std::int64_t lanes = hn::Lanes(d);
  // Separate sums: more independent accumulation chains.
  constexpr int kParts = kTokens == 1 ? 2 : 1;
  VF32 even[kTokens][kParts], odd[kTokens][kParts];
  for (int i = 0; i < kTokens; ++i)
    for (int part = 0; part < kParts; ++part) even[i][part] = odd[i][part] = hn::Zero(d);
  const auto high = hn::Set(du, 0xffff0000u);
  const auto step = [&](std::int64_t p, int part) HWY_ATTR {
    __builtin_prefetch(reinterpret_cast<const std::byte*>(w + 2 * p) + kPrefetchBytes);
    const auto pair = load_pairs(du, w + 2 * p);
    const auto w_even = hn::BitCast(d, hn::ShiftLeft<16>(pair)), w_odd = hn::BitCast(d, hn::And(pair, high));
    for (int i = 0; i < kTokens; ++i) {
      even[i][part] = hn::MulAdd(w_even, hn::Load(d, x[i].even + p), even[i][part]);
      odd[i][part] = hn::MulAdd(w_odd, hn::Load(d, x[i].odd + p), odd[i][part]);
    }
  };
  std::int64_t p = 0;
  for (; p + kParts * lanes <= k / 2; p += kParts * lanes)
    for (int part = 0; part < kParts; ++part) step(p + part * lanes, part);
  for (; p + lanes <= k / 2; p += lanes) step(p, 0);
  for (int i = 0; i < kTokens; ++i) {
    for (int part = 1; part < kParts; ++part) {
      even[i][0] = hn::Add(even[i][0], even[i][part]);
      odd[i][0] = hn::Add(odd[i][0], odd[i][part]);
    }
    float total = hn::GetLane(hn::SumOfLanes(d, hn::Add(even[i][0], odd[i][0])));
    for (std::int64_t j = 2 * p; j < k; ++j) total += w[j] * (j % 2 == 0 ? x[i].even : x[i].odd)[j / 2];
    out[i] = total;
  }
}

void BF16Rows(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin, std::int64_t end,
              float* sums, std::int64_t stride) {
  const std::int64_t k = w.dim(1);
  for_dots(m, begin, end, [&](auto rows, auto tokens, std::int64_t r0, std::int64_t i0) HWY_ATTR {
    EvenOdd x[kDotTokens];
    float out[kDotTokens];
    for (int i = 0; i < tokens; ++i) x[i] = EvenOdd::of(prepared, i0 + i, k);
    for (int r = 0; r < rows; ++r) {
      dot_bf16<tokens>(x, reinterpret_cast<const bf16*>(w.row(r0 + r)), k, out);
      for (int i = 0; i < tokens; ++i) sums[(i0 + i) * stride + r0 + r - begin] = out[i];
    }
  });
}

// ---- quantised weights

using I16 = hn::CappedTag<std::int16_t, 16>;
#if HWY_TARGET == HWY_SCALAR
using I32 = hn::CappedTag<std::int32_t, 1>;
#else
using I32 = hn::RepartitionToWide<I16>;
#endif
using VI16 = hn::Vec<I16>;

// A block's 32 values as int16, in kPieces vectors.
inline constexpr std::size_t kPieces = kQuantBlock / hn::MaxLanes(I16());

HWY_INLINE void unpack(const BlockQ8_0& block, VI16* q) {
  const I16 d;
  const hn::Rebind<std::int8_t, I16> d8;
  for (std::size_t i = 0; i < kPieces; ++i) q[i] = hn::PromoteTo(d, hn::LoadU(d8, block.q + i * hn::Lanes(d)));
}

HWY_INLINE void unpack(const BlockQ4_0& block, VI16* q) {
  const I16 d;
  const hn::Rebind<std::uint8_t, I16> d8;
  const auto eight = hn::Set(d, std::int16_t{8}), nibble = hn::Set(d, std::int16_t{15});
  for (std::size_t i = 0; i < kPieces / 2; ++i) {
    const auto both = hn::PromoteTo(d, hn::LoadU(d8, block.q + i * hn::Lanes(d)));
    q[i] = hn::Sub(hn::And(both, nibble), eight);
    q[i + kPieces / 2] = hn::Sub(hn::ShiftRight<4>(both), eight);
  }
}

HWY_INLINE void unpack(const BlockQ4_1& block, VI16* q) {
  const I16 d;
  const hn::Rebind<std::uint8_t, I16> d8;
  for (std::size_t i = 0; i < kPieces / 2; ++i) {
    const auto both = hn::PromoteTo(d, hn::LoadU(d8, block.q + i * hn::Lanes(d)));
    q[i] = hn::And(both, hn::Set(d, std::int16_t{15}));
    q[i + kPieces / 2] = hn::ShiftRight<4>(both);
  }
}

inline constexpr std::int64_t kScaleRun = 32;

// Scales (or minima, by `field`) of n <= kScaleRun blocks, zero-padded to a full vector. In vectors: an f16 conversion
// in scalar code takes longer than its block's multiplications.
template <typename Block>
HWY_INLINE void read_scales(const Block* w, f16 Block::*field, std::int64_t n, float* scales) {
  const hn::CappedTag<float, 8> d;
  HWY_ALIGN f16 halves[kScaleRun] = {};
  for (std::int64_t b = 0; b < n; ++b) halves[b] = w[b].*field;
  for (std::int64_t b = 0; b < n; b += hn::Lanes(d)) hn::Store(load_f16(d, halves + b), d, scales + b);
}

// sum[r][i] += the minima of n <= kScaleRun blocks of row r times the sums of x from block b on.
template <int kRows, int kTokens, class D>
HWY_INLINE void add_minima(D d, const Int16Input* x, const BlockQ4_1* const* w, std::int64_t b, std::int64_t n,
                           hn::Vec<D> (*sum)[kTokens]) {
  HWY_ALIGN float minima[kScaleRun];
  for (int r = 0; r < kRows; ++r) {
    read_scales(w[r] + b, &BlockQ4_1::m, n, minima);
    for (std::int64_t j = 0; j < n; j += hn::Lanes(d))
      for (int i = 0; i < kTokens; ++i)
        sum[r][i] = hn::MulAdd(hn::Load(d, minima + j), hn::Load(d, x[i].sum + b + j), sum[r][i]);
  }
}

// x and its dot products for quantised weights.
struct BlockDots {
  using X = Int16Input;
  static X x_of(const std::byte* prepared, std::int64_t i, std::int64_t k) { return Int16Input::of(prepared, i, k); }

  template <int kRows, int kTokens, typename Block>
  static HWY_INLINE void dot(const X* x, const Block* const* w, std::int64_t k, float (*out)[kDotTokens]) {
    const I16 d16;
    const I32 d32;
    const hn::RebindToFloat<I32> df;
    using VF = hn::Vec<hn::RebindToFloat<I32>>;
    VF sum[kRows][kTokens];
    for (auto& row : sum)
      for (auto& v : row) v = hn::Zero(df);
    HWY_ALIGN float scales[kRows][kScaleRun];
    const std::int64_t n_blocks = k / kQuantBlock;
    for (std::int64_t b = 0; b < n_blocks; ++b) {
      if (b % kScaleRun == 0) {
        const std::int64_t n = std::min(n_blocks - b, kScaleRun);
        for (int r = 0; r < kRows; ++r) read_scales(w[r] + b, &Block::d, n, scales[r]);
        if constexpr (std::is_same_v<Block, BlockQ4_1>) add_minima<kRows, kTokens>(df, x, w, b, n, sum);
      }
      for (int r = 0; r < kRows; ++r) {
        // Prefetch the row that comes next at this index: rows are too short for the hardware prefetcher. Rows of bf16
        // and f32, two and four times as long, gain nothing.
        __builtin_prefetch(w[r] + b + n_blocks * kRows);
        VI16 q[kPieces];
        unpack(w[r][b], q);
        for (int i = 0; i < kTokens; ++i) {
          auto gemms = hn::Zero(d32), rest = hn::Zero(d32);
          for (std::size_t p = 0; p < kPieces; ++p) {
            const auto xq = hn::Load(d16, x[i].q + b * kQuantBlock + p * hn::Lanes(d16));
            gemms = hn::ReorderWidenMulAccumulate(d32, q[p], xq, gemms, rest);
          }
          const auto v = hn::ConvertTo(df, hn::Add(gemms, rest));
          sum[r][i] = hn::MulAdd(v, hn::Set(df, scales[r][b % kScaleRun] * x[i].scale[b]), sum[r][i]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int i = 0; i < kTokens; ++i) out[r][i] = hn::GetLane(hn::SumOfLanes(df, sum[r][i]));
  }
};

void Q8Rows(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin, std::int64_t end,
            float* sums, std::int64_t stride) {
  tiled_rows<BlockDots, BlockQ8_0>(prepared, m, w, begin, end, sums, stride);
}

void Q4Rows(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin, std::int64_t end,
            float* sums, std::int64_t stride) {
  tiled_rows<BlockDots, BlockQ4_0>(prepared, m, w, begin, end, sums, stride);
}

void Q41Rows(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin, std::int64_t end,
             float* sums, std::int64_t stride) {
  tiled_rows<BlockDots, BlockQ4_1>(prepared, m, w, begin, end, sums, stride);
}

// Dequantises each weight row to f32 first.
void ExactRows(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin,
               std::int64_t end, float* sums, std::int64_t stride) {
  const std::int64_t k = w.dim(1);
  thread_local Buffer weights;
  weights.reserve(4 * k);
  for (std::int64_t r = begin; r < end; ++r) {
    convert_row(F32(), w.row(r), w.dtype(), k, weights.as<float>());
    const ConstTensorView row(weights.data(), DType::kF32, {1, k});
    tiled_rows<FloatDots, float>(prepared, m, row, 0, 1, sums + r - begin, stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(F32Rows);
HWY_EXPORT(F16Rows);
HWY_EXPORT(BF16Rows);
HWY_EXPORT(Q8Rows);
HWY_EXPORT(Q4Rows);
HWY_EXPORT(Q41Rows);
HWY_EXPORT(ExactRows);

std::size_t plain_bytes(std::int64_t m, std::int64_t k) {
  return 4 * m * k;
}

void prepare_plain(const ConstTensorView& x, std::byte* prepared) {
  const std::size_t bytes = 4 * x.dim(1);
  for (std::int64_t i = 0; i < x.dim(0); ++i) std::memcpy(prepared + i * bytes, x.row(i), bytes);
}

std::size_t even_odd_bytes(std::int64_t m, std::int64_t k) {
  return 2 * m * EvenOdd::half_bytes(k);
}

void prepare_even_odd(const ConstTensorView& x, std::byte* prepared) {
  const std::int64_t k = x.dim(1);
  for (std::int64_t i = 0; i < x.dim(0); ++i) {
    const EvenOdd parts = EvenOdd::of(prepared, i, k);
    auto *even = const_cast<float*>(parts.even), *odd = const_cast<float*>(parts.odd);
    const float* row = x.row_as<float>(i);
    for (std::int64_t j = 0; j < k / 2; ++j) {
      even[j] = row[2 * j];
      odd[j] = row[2 * j + 1];
    }
    if (k % 2 != 0) even[k / 2] = row[k - 1];
  }
}

#define MNEME_ROWS_PRODUCT(Name)                                                                                \
  [](const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin, std::int64_t end, \
     float* sums, std::int64_t stride) {                                                                        \
    HWY_DYNAMIC_DISPATCH(Name)                                                                                  \
    (prepared, m, w, begin, end, sums, stride);                                                                 \
  }

constexpr SkinnyKernel kF32Rows{plain_bytes, prepare_plain, MNEME_ROWS_PRODUCT(F32Rows)};
constexpr SkinnyKernel kF16Rows{plain_bytes, prepare_plain, MNEME_ROWS_PRODUCT(F16Rows)};
constexpr SkinnyKernel kBF16Rows{even_odd_bytes, prepare_even_odd, MNEME_ROWS_PRODUCT(BF16Rows)};
constexpr SkinnyKernel kQ8Rows{int16_bytes, prepare_int16, MNEME_ROWS_PRODUCT(Q8Rows)};
constexpr SkinnyKernel kQ4Rows{int16_bytes, prepare_int16, MNEME_ROWS_PRODUCT(Q4Rows)};
constexpr SkinnyKernel kQ41Rows{int16_bytes, prepare_int16, MNEME_ROWS_PRODUCT(Q41Rows)};
constexpr SkinnyKernel kExactRows{plain_bytes, prepare_plain, MNEME_ROWS_PRODUCT(ExactRows)};

#undef MNEME_ROWS_PRODUCT

}  // namespace

const SkinnyKernel& rows_kernel(DType weights) {
  switch (weights) {
    case DType::kF32:
      return kF32Rows;
    case DType::kF16:
      return kF16Rows;
    case DType::kBF16:
      return kBF16Rows;
    case DType::kQ8_0:
      return kQ8Rows;
    case DType::kQ4_0:
      return kQ4Rows;
    case DType::kQ4_1:
      return kQ41Rows;
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
    case DType::kMXFP4:
    case DType::kInt4:
    case DType::kInt8:
    case DType::kNVFP4:
      return codes_rows_kernel();
    case DType::kFp8:
      return fp8_rows_kernel();
    case DType::kI32:
    case DType::kU8:
      break;
  }
  MNEME_CHECK(false, "{} holds no weights", dtype_name(weights));
}

const SkinnyKernel& exact_rows_kernel() {
  return kExactRows;
}

}  // namespace mneme
#endif  // HWY_ONCE
