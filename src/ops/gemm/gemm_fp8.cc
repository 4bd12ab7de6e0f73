// GEMMs with few rows of fp8: each code becomes an f16, which hardware widens, and each block's sum takes its scale. In
// Highway.
#include "src/ops/gemm/gemm_kernels.h"
#include "src/ops/gemm/quant.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/gemm/gemm_fp8.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/gemm/quant-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using VF32 = hn::Vec<F32>;

constexpr std::int64_t kMaxTokens = 4;
constexpr std::int64_t kPrefetchBytes = 2048;

// out[t * stride] = row times x[t], each of k values.
template <int kTokens>
HWY_INLINE void dot_row(const float* const* x, const BlockFp8* row, std::int64_t k, float* out, std::int64_t stride) {
  const F32 d;
  const std::int64_t lanes = hn::Lanes(d);
  VF32 sum[kTokens];
  for (auto& v : sum) v = hn::Zero(d);
  for (std::int64_t b = 0; b < k / kFp8Block; ++b) {
    const auto* bytes = reinterpret_cast<const std::byte*>(row + b);
    __builtin_prefetch(bytes + kPrefetchBytes);
    __builtin_prefetch(bytes + kPrefetchBytes + 64);
    VF32 dot[kTokens];
    for (auto& v : dot) v = hn::Zero(d);
    for (std::int64_t i = 0; i < kFp8Block; i += lanes) {
      const auto w = load_fp8(d, row[b].q + i);
      for (int t = 0; t < kTokens; ++t) dot[t] = hn::MulAdd(w, hn::LoadU(d, x[t] + b * kFp8Block + i), dot[t]);
    }
    const auto scale = hn::Set(d, row[b].d * kFp8OfF16);
    for (int t = 0; t < kTokens; ++t) sum[t] = hn::MulAdd(dot[t], scale, sum[t]);
  }
  for (int t = 0; t < kTokens; ++t) out[t * stride] = hn::GetLane(hn::SumOfLanes(d, sum[t]));
}

void Fp8Rows(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin, std::int64_t end,
             float* sums, std::int64_t stride) {
  const std::int64_t k = w.dim(1);
  const auto* plain = reinterpret_cast<const float*>(prepared);
  for (std::int64_t r = begin; r < end; ++r) {
    const auto* row = reinterpret_cast<const BlockFp8*>(w.row(r));
    for (std::int64_t i = 0; i < m; i += kMaxTokens) {
      const float* x[kMaxTokens];
      const std::int64_t n = m - i < kMaxTokens ? m - i : kMaxTokens;
      for (std::int64_t t = 0; t < n; ++t) x[t] = plain + (i + t) * k;
      float* out = sums + i * stride + r - begin;
      switch (n) {
        case 1:
          dot_row<1>(x, row, k, out, stride);
          break;
        case 2:
          dot_row<2>(x, row, k, out, stride);
          break;
        case 3:
          dot_row<3>(x, row, k, out, stride);
          break;
        default:
          dot_row<kMaxTokens>(x, row, k, out, stride);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(Fp8Rows);

void fp8_gemm(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin, std::int64_t end,
              float* sums, std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(Fp8Rows)(prepared, m, w, begin, end, sums, stride);
}

}  // namespace

// x as the kernels of f32 have it: one conversion serves both.
const SkinnyKernel& fp8_rows_kernel() {
  static const SkinnyKernel kernel{exact_rows_kernel().prepared_bytes, exact_rows_kernel().prepare, fp8_gemm};
  return kernel;
}

}  // namespace mneme
#endif  // HWY_ONCE
