#include "src/selection/layer/row_dots.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/selection/layer/row_dots_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/simd/load_half-inl.h"

#ifndef MNEME_KERNELS_ROW_DOTS_CPU_ONCE_
#define MNEME_KERNELS_ROW_DOTS_CPU_ONCE_
#include "src/base/check.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Four sums per row hide the latency of multiply-add; the rest of a width that they do not divide is done eight at a
// time.
template <class Load>
HWY_INLINE void dots(const float* q, std::int64_t width, const std::byte* rows, std::int64_t n, Load load,
                     float* scores) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 8> d8;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d)), few = static_cast<std::int64_t>(hn::Lanes(d8));
  for (std::int64_t i = 0; i < n; ++i, rows += 2 * width) {
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    std::int64_t c = 0;
    for (; c + 4 * lanes <= width; c += 4 * lanes) {
      s0 = hn::MulAdd(hn::LoadU(d, q + c), load(d, rows + 2 * c), s0);
      s1 = hn::MulAdd(hn::LoadU(d, q + c + lanes), load(d, rows + 2 * (c + lanes)), s1);
      s2 = hn::MulAdd(hn::LoadU(d, q + c + 2 * lanes), load(d, rows + 2 * (c + 2 * lanes)), s2);
      s3 = hn::MulAdd(hn::LoadU(d, q + c + 3 * lanes), load(d, rows + 2 * (c + 3 * lanes)), s3);
    }
    auto rest = hn::Zero(d8);
    for (; c < width; c += few) rest = hn::MulAdd(hn::LoadU(d8, q + c), load(d8, rows + 2 * c), rest);
    scores[i] = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)))) +
                hn::GetLane(hn::SumOfLanes(d8, rest));
  }
}

void RowDots(const float* q, std::int64_t width, DType dtype, const std::byte* rows, std::int64_t n, float* scores) {
  if (dtype == DType::kBF16)
    dots(q, width, rows, n, LoadBf16(), scores);
  else
    dots(q, width, rows, n, LoadF16(), scores);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {
HWY_EXPORT(RowDots);
}  // namespace

void row_dots_cpu(const float* q, std::int64_t width, DType dtype, const std::byte* rows, std::int64_t n,
                  float* scores) {
  MNEME_CHECK(width % 8 == 0 && (dtype == DType::kBF16 || dtype == DType::kF16), "rows of {} {}", width,
              dtype_name(dtype));
  HWY_DYNAMIC_DISPATCH(RowDots)(q, width, dtype, rows, n, scores);
}

}  // namespace mneme
#endif  // HWY_ONCE
