// GEMMs with few rows of the types that codes-inl.h unpacks: each run of 256 weights is unpacked into the L1 cache and
// multiplied with up to four rows of x. In Highway.
#include "src/base/check.h"
#include "src/ops/gemm/gemm_kernels.h"
#include "src/ops/gemm/int16_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/gemm/gemm_codes.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/gemm/codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using I16 = hn::CappedTag<std::int16_t, 16>;
#if HWY_TARGET == HWY_SCALAR
using I32 = hn::CappedTag<std::int32_t, 1>;
#else
using I32 = hn::RepartitionToWide<I16>;
#endif
using SumF32 = hn::RebindToFloat<I32>;
using VSum = hn::Vec<SumF32>;

constexpr int kMaxTokens = 4;
// Far enough for a row of one core; rows follow each other in memory.
constexpr std::int64_t kPrefetchBytes = 2048;

// sum += n values of codes times x from value `at` on, without minima.
template <typename Block>
HWY_INLINE VSum add_levels(const Codes& c, const Int16Input& x, std::int64_t at, std::int64_t n, VSum sum) {
  constexpr std::int64_t kLanes = hn::MaxLanes(I16());
  const I16 d16;
  const I32 d32;
  const SumF32 df;
  const hn::Rebind<std::int8_t, I16> d8;
  for (std::int64_t i = 0; i < n; i += kCodeGroup<Block>) {
    auto dot = hn::Zero(d32), rest = hn::Zero(d32);
    for (std::int64_t j = i; j < i + kCodeGroup<Block>; j += kLanes) {
      const auto q = hn::PromoteTo(d16, hn::LoadU(d8, c.q + j));
      dot = hn::ReorderWidenMulAccumulate(d32, q, hn::LoadU(d16, x.q + at + j), dot, rest);
    }
    const float scale = c.scale[i / kCodeGroup<Block>] * x.scale[(at + i) / kQuantBlock];
    sum = hn::MulAdd(hn::ConvertTo(df, hn::Add(dot, rest)), hn::Set(df, scale), sum);
  }
  return sum;
}

// sum += the minima of n values times the sums of x from value `at` on.
template <typename Block>
HWY_INLINE VSum add_minima(const Codes& c, const Int16Input& x, std::int64_t at, std::int64_t n, VSum sum) {
  const SumF32 df;
  if constexpr (kCodeGroup<Block> == kQuantBlock) {
    // x.sum is padded to a line; the minima of missing groups meet its zeros, and must not be NaN.
    for (std::int64_t g = 0; g < n / kQuantBlock; g += hn::Lanes(df))
      sum = hn::MulAdd(hn::LoadU(df, c.minimum + g), hn::LoadU(df, x.sum + at / kQuantBlock + g), sum);
  } else {
    const I16 d16;
    const I32 d32;
    const auto one = hn::Set(d16, std::int16_t{1});
    for (std::int64_t i = 0; i < n; i += kCodeGroup<Block>) {
      auto total = hn::Zero(d32), rest = hn::Zero(d32);
      for (std::int64_t j = i; j < i + kCodeGroup<Block>; j += hn::Lanes(d16))
        total = hn::ReorderWidenMulAccumulate(d32, one, hn::LoadU(d16, x.q + at + j), total, rest);
      const float scale = c.minimum[i / kCodeGroup<Block>] * x.scale[(at + i) / kQuantBlock];
      sum = hn::MulAdd(hn::ConvertTo(df, hn::Add(total, rest)), hn::Set(df, scale), sum);
    }
  }
  return sum;
}

template <typename Block, int kTokens>
HWY_INLINE void dot_row(const Int16Input* x, const Block* row, std::int64_t k, float* out, std::int64_t stride) {
  const SumF32 df;
  VSum sum[kTokens];
  for (auto& v : sum) v = hn::Zero(df);
  Codes codes;
  for (std::int64_t at = 0; at < k; at += kSuperBlock) {
    const auto* bytes = reinterpret_cast<const std::byte*>(row + at / kBlockValues<Block>);
    for (std::int64_t line = 0; line < 256; line += 64) __builtin_prefetch(bytes + kPrefetchBytes + line);
    const std::int64_t n = unpack_run(row, at, k, codes);
    for (int i = 0; i < kTokens; ++i) {
      sum[i] = add_levels<Block>(codes, x[i], at, n, sum[i]);
      if constexpr (kHasMinima<Block>) sum[i] = add_minima<Block>(codes, x[i], at, n, sum[i]);
    }
  }
  for (int i = 0; i < kTokens; ++i) out[i * stride] = hn::GetLane(hn::SumOfLanes(df, sum[i]));
}

template <typename Block>
void codes_rows(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin,
                std::int64_t end, float* sums, std::int64_t stride) {
  const std::int64_t k = w.dim(1);
  for (std::int64_t r = begin; r < end; ++r) {
    const auto* row = reinterpret_cast<const Block*>(w.row(r));
    for (std::int64_t i = 0; i < m; i += kMaxTokens) {
      Int16Input x[kMaxTokens];
      const std::int64_t n = std::min<std::int64_t>(kMaxTokens, m - i);
      for (std::int64_t t = 0; t < n; ++t) x[t] = Int16Input::of(prepared, i + t, k);
      float* out = sums + i * stride + r - begin;
      switch (n) {
        case 1:
          dot_row<Block, 1>(x, row, k, out, stride);
          break;
        case 2:
          dot_row<Block, 2>(x, row, k, out, stride);
          break;
        case 3:
          dot_row<Block, 3>(x, row, k, out, stride);
          break;
        default:
          dot_row<Block, kMaxTokens>(x, row, k, out, stride);
      }
    }
  }
}

void CodesRows(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin,
               std::int64_t end, float* sums, std::int64_t stride) {
  switch (w.dtype()) {
    case DType::kQ5_0:
      return codes_rows<BlockQ5_0>(prepared, m, w, begin, end, sums, stride);
    case DType::kQ5_1:
      return codes_rows<BlockQ5_1>(prepared, m, w, begin, end, sums, stride);
    case DType::kQ2_K:
      return codes_rows<BlockQ2_K>(prepared, m, w, begin, end, sums, stride);
    case DType::kQ3_K:
      return codes_rows<BlockQ3_K>(prepared, m, w, begin, end, sums, stride);
    case DType::kQ4_K:
      return codes_rows<BlockQ4_K>(prepared, m, w, begin, end, sums, stride);
    case DType::kQ5_K:
      return codes_rows<BlockQ5_K>(prepared, m, w, begin, end, sums, stride);
    case DType::kQ6_K:
      return codes_rows<BlockQ6_K>(prepared, m, w, begin, end, sums, stride);
    case DType::kIQ4_NL:
      return codes_rows<BlockIQ4_NL>(prepared, m, w, begin, end, sums, stride);
    case DType::kIQ4_XS:
      return codes_rows<BlockIQ4_XS>(prepared, m, w, begin, end, sums, stride);
    case DType::kMXFP4:
      return codes_rows<BlockMXFP4>(prepared, m, w, begin, end, sums, stride);
    case DType::kInt4:
      return codes_rows<BlockInt4>(prepared, m, w, begin, end, sums, stride);
    case DType::kInt8:
      return codes_rows<BlockInt8>(prepared, m, w, begin, end, sums, stride);
    case DType::kNVFP4:
      return codes_rows<BlockNVFP4>(prepared, m, w, begin, end, sums, stride);
    default:
      break;
  }
  MNEME_CHECK(false, "{} has kernels of its own", dtype_name(w.dtype()));
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(CodesRows);

void codes_gemm(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin,
                std::int64_t end, float* sums, std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(CodesRows)(prepared, m, w, begin, end, sums, stride);
}

constexpr SkinnyKernel kCodesRows{int16_bytes, prepare_int16, codes_gemm};

}  // namespace

const SkinnyKernel& codes_rows_kernel() {
  return kCodesRows;
}

}  // namespace mneme
#endif  // HWY_ONCE
