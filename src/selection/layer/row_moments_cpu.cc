#include "src/selection/layer/row_moments.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/selection/layer/row_moments_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Calls f(tag, channel) for vectors that cover [begin, end), the last ones of a single lane.
template <class F>
HWY_INLINE void each_vector(std::int64_t begin, std::int64_t end, const F& f) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const std::int64_t lanes = hn::Lanes(d);
  std::int64_t c = begin;
  for (; c + lanes <= end; c += lanes) f(d, c);
  for (; c < end; ++c) f(one, c);
}

void Moments(const ChannelBlock& rows, float* mean, float* m2) {
  const float inverse = 1.0f / static_cast<float>(rows.n);
  each_vector(rows.begin, rows.end, [&](auto d, std::int64_t c) HWY_ATTR {
    const float* x = rows.x + c;
    auto even = hn::Zero(d), odd = even;
    std::int64_t i = 0;
    for (; i + 1 < rows.n; i += 2) {
      even = hn::Add(even, hn::LoadU(d, x + i * rows.stride));
      odd = hn::Add(odd, hn::LoadU(d, x + (i + 1) * rows.stride));
    }
    if (i < rows.n) even = hn::Add(even, hn::LoadU(d, x + i * rows.stride));
    const auto centre = hn::Mul(hn::Add(even, odd), hn::Set(d, inverse));
    even = odd = hn::Zero(d);
    for (i = 0; i + 1 < rows.n; i += 2) {
      const auto a = hn::Sub(hn::LoadU(d, x + i * rows.stride), centre);
      const auto b = hn::Sub(hn::LoadU(d, x + (i + 1) * rows.stride), centre);
      even = hn::MulAdd(a, a, even);
      odd = hn::MulAdd(b, b, odd);
    }
    if (i < rows.n) {
      const auto a = hn::Sub(hn::LoadU(d, x + i * rows.stride), centre);
      even = hn::MulAdd(a, a, even);
    }
    hn::StoreU(centre, d, mean + c);
    hn::StoreU(hn::Add(even, odd), d, m2 + c);
  });
}

void Bias(const ChannelBlock& rows, const float* centre, const float* weight, float* bias) {
  const hn::ScalableTag<float> d;
  const std::int64_t lanes = hn::Lanes(d);
  for (std::int64_t i = 0; i < rows.n; ++i) {
    const float* x = rows.x + i * rows.stride;
    auto even = hn::Zero(d), odd = even;
    std::int64_t c = rows.begin;
    for (; c + 2 * lanes <= rows.end; c += 2 * lanes) {
      const auto a = hn::Sub(hn::LoadU(d, x + c), hn::LoadU(d, centre + c));
      const auto b = hn::Sub(hn::LoadU(d, x + c + lanes), hn::LoadU(d, centre + c + lanes));
      even = hn::MulAdd(hn::Mul(a, a), hn::LoadU(d, weight + c), even);
      odd = hn::MulAdd(hn::Mul(b, b), hn::LoadU(d, weight + c + lanes), odd);
    }
    float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
    for (; c < rows.end; ++c) sum += (x[c] - centre[c]) * (x[c] - centre[c]) * weight[c];
    bias[i] = sum;
  }
}

void Sum(const ChannelBlock& rows, const float* weight, float* sum) {
  each_vector(rows.begin, rows.end, [&](auto d, std::int64_t c) HWY_ATTR {
    auto even = hn::Zero(d), odd = even;
    std::int64_t i = 0;
    for (; i + 1 < rows.n; i += 2) {
      even = hn::MulAdd(hn::Set(d, weight[i]), hn::LoadU(d, rows.x + i * rows.stride + c), even);
      odd = hn::MulAdd(hn::Set(d, weight[i + 1]), hn::LoadU(d, rows.x + (i + 1) * rows.stride + c), odd);
    }
    if (i < rows.n) even = hn::MulAdd(hn::Set(d, weight[i]), hn::LoadU(d, rows.x + i * rows.stride + c), even);
    hn::StoreU(hn::Add(even, odd), d, sum + c);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {
HWY_EXPORT(Moments);
HWY_EXPORT(Bias);
HWY_EXPORT(Sum);
}  // namespace

void row_moments_cpu(const ChannelBlock& rows, float* mean, float* m2) {
  HWY_DYNAMIC_DISPATCH(Moments)(rows, mean, m2);
}
void row_bias_cpu(const ChannelBlock& rows, const float* centre, const float* weight, float* bias) {
  HWY_DYNAMIC_DISPATCH(Bias)(rows, centre, weight, bias);
}
void row_sum_cpu(const ChannelBlock& rows, const float* weight, float* sum) {
  HWY_DYNAMIC_DISPATCH(Sum)(rows, weight, sum);
}

}  // namespace mneme
#endif  // HWY_ONCE
