#include "src/ops/norm_rope/pointwise.h"

#include <algorithm>
#include <cmath>

#include "src/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/norm_rope/pointwise_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// After highway.h: this header differs per target.
#include <hwy/contrib/math/math-inl.h>

#include "src/ops/gemm/quant-inl.h"
#include "src/ops/simd/round-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;

// Squares are added in f32, in as many partial sums as four vectors have lanes: the error stays below 1e-6 at a width
// of 16,384.
float SumOfSquares(const float* x, std::int64_t n) {
  const F32 d;
  const std::int64_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  std::int64_t j = 0;
  for (; j + 4 * lanes <= n; j += 4 * lanes) {
    const auto v0 = hn::LoadU(d, x + j), v1 = hn::LoadU(d, x + j + lanes);
    const auto v2 = hn::LoadU(d, x + j + 2 * lanes), v3 = hn::LoadU(d, x + j + 3 * lanes);
    s0 = hn::MulAdd(v0, v0, s0);
    s1 = hn::MulAdd(v1, v1, s1);
    s2 = hn::MulAdd(v2, v2, s2);
    s3 = hn::MulAdd(v3, v3, s3);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; j < n; ++j) sum += x[j] * x[j];
  return sum;
}

template <typename Out>
HWY_INLINE void normalise(const float* x, const float* weight, float scale, std::int64_t n, Out* out) {
  const F32 d;
  const std::int64_t lanes = hn::Lanes(d);
  const auto s = hn::Set(d, scale);
  std::int64_t j = 0;
  for (; j + lanes <= n; j += lanes)
    put(d, hn::Mul(hn::Mul(hn::LoadU(d, x + j), s), hn::LoadU(d, weight + j)), out + j);
  for (; j < n; ++j) out[j] = Out(x[j] * scale * weight[j]);
}

void NormaliseToF32(const float* x, const float* weight, float scale, std::int64_t n, float* out) {
  normalise(x, weight, scale, n, out);
}
void NormaliseToBF16(const float* x, const float* weight, float scale, std::int64_t n, bf16* out) {
  normalise(x, weight, scale, n, out);
}

// exp above 100 is infinity in f32, and gate / infinity is 0 as required; Highway's Exp is accurate up to 104.
template <class D>
HWY_INLINE hn::Vec<D> silu_times(D d, hn::Vec<D> gate, hn::Vec<D> up) {
  const auto e = hn::Exp(d, hn::Min(hn::Neg(gate), hn::Set(d, 100.0f)));
  return hn::Mul(hn::Div(gate, hn::Add(hn::Set(d, 1.0f), e)), up);
}

// gelu(x) = x sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form without its cancellation.
template <class D>
HWY_INLINE hn::Vec<D> gelu_times(D d, hn::Vec<D> gate, hn::Vec<D> up) {
  const auto inner = hn::MulAdd(hn::Mul(gate, gate), hn::Set(d, -0.0713548162726f), hn::Set(d, -1.59576912160573f));
  const auto e = hn::Exp(d, hn::Min(hn::Mul(gate, inner), hn::Set(d, 100.0f)));
  return hn::Mul(hn::Div(gate, hn::Add(hn::Set(d, 1.0f), e)), up);
}

template <bool kGelu, typename Out>
HWY_INLINE void gated(const float* gate, const float* up, std::int64_t n, Out* out) {
  const F32 d;
  const auto times = [](auto tag, auto g, auto u) HWY_ATTR {
    if constexpr (kGelu)
      return gelu_times(tag, g, u);
    else
      return silu_times(tag, g, u);
  };
  const std::int64_t lanes = hn::Lanes(d);
  std::int64_t j = 0;
  for (; j + lanes <= n; j += lanes) put(d, times(d, hn::LoadU(d, gate + j), hn::LoadU(d, up + j)), out + j);
  const hn::CappedTag<float, 1> one;
  for (; j < n; ++j) out[j] = Out(hn::GetLane(times(one, hn::Set(one, gate[j]), hn::Set(one, up[j]))));
}

void SwigluToF32(const float* gate, const float* up, std::int64_t n, float* out) {
  gated<false>(gate, up, n, out);
}
void SwigluToBF16(const float* gate, const float* up, std::int64_t n, bf16* out) {
  gated<false>(gate, up, n, out);
}
void GegluToF32(const float* gate, const float* up, std::int64_t n, float* out) {
  gated<true>(gate, up, n, out);
}
void GegluToBF16(const float* gate, const float* up, std::int64_t n, bf16* out) {
  gated<true>(gate, up, n, out);
}

// tanh(y) = 1 - 2 / (1 + e^(2y)): 2^-24 of the cap at worst.
template <class D>
HWY_INLINE hn::Vec<D> soft_capped(D d, hn::Vec<D> x, float cap) {
  const auto two = hn::Mul(x, hn::Set(d, 2.0f / cap));
  const auto e = hn::Exp(d, hn::Min(two, hn::Set(d, 80.0f)));
  const auto one = hn::Set(d, 1.0f);
  const auto y = hn::Mul(hn::Set(d, cap), hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(one, e))));
  return hn::IfThenElse(hn::Eq(x, x), y, x);
}

void SoftCap(float* x, std::int64_t n, float cap) {
  const F32 d;
  const std::int64_t lanes = hn::Lanes(d);
  std::int64_t j = 0;
  for (; j + lanes <= n; j += lanes) hn::StoreU(soft_capped(d, hn::LoadU(d, x + j), cap), d, x + j);
  const hn::CappedTag<float, 1> one;
  for (; j < n; ++j) x[j] = hn::GetLane(soft_capped(one, hn::Set(one, x[j]), cap));
}

// (up + 1) gate sigmoid(1.702 gate), gate and up cut off.
template <class D>
HWY_INLINE hn::Vec<D> clamped_silu_times(D d, hn::Vec<D> gate, hn::Vec<D> up, float limit) {
  const auto most = hn::Set(d, limit);
  // Compared so that NaN stays.
  const auto g = hn::IfThenElse(hn::Gt(gate, most), most, gate);
  const auto low = hn::IfThenElse(hn::Lt(up, hn::Neg(most)), hn::Neg(most), up);
  const auto u = hn::IfThenElse(hn::Gt(low, most), most, low);
  const auto e = hn::Exp(d, hn::Min(hn::Mul(g, hn::Set(d, -1.702f)), hn::Set(d, 100.0f)));
  const auto one = hn::Set(d, 1.0f);
  return hn::Mul(hn::Div(g, hn::Add(one, e)), hn::Add(u, one));
}

void ClampedSwiglu(const float* gate, const float* up, std::int64_t n, float limit, float* out) {
  const F32 d;
  const std::int64_t lanes = hn::Lanes(d);
  std::int64_t j = 0;
  for (; j + lanes <= n; j += lanes)
    hn::StoreU(clamped_silu_times(d, hn::LoadU(d, gate + j), hn::LoadU(d, up + j), limit), d, out + j);
  const hn::CappedTag<float, 1> one;
  for (; j < n; ++j) out[j] = hn::GetLane(clamped_silu_times(one, hn::Set(one, gate[j]), hn::Set(one, up[j]), limit));
}

void EmbedRow(const std::byte* row, DType type, std::int64_t n, float* out) {
  convert_row(F32(), row, type, n, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(SumOfSquares);
HWY_EXPORT(NormaliseToF32);
HWY_EXPORT(NormaliseToBF16);
HWY_EXPORT(SwigluToF32);
HWY_EXPORT(SwigluToBF16);
HWY_EXPORT(GegluToF32);
HWY_EXPORT(GegluToBF16);
HWY_EXPORT(SoftCap);
HWY_EXPORT(ClampedSwiglu);
HWY_EXPORT(EmbedRow);

// One thread processes this many values in about 2 us, less than the time to wake another.
constexpr std::int64_t kValuesAlone = 16384;

// Calls fn(begin, end) over ranges of n rows of `width` values, on the pool where there is enough work.
template <typename Fn>
void for_rows(std::int64_t n, std::int64_t width, const CpuContext& context, const Fn& fn) {
  if (n * width <= kValuesAlone) return fn(0, n);
  const std::int64_t grain = std::max<std::int64_t>(kValuesAlone / 2 / std::max<std::int64_t>(width, 1), 1);
  context.pool->parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end, int) { fn(begin, end); });
}

// out = gate function of `gate` times `up`, by the kernel of out's type.
template <typename Out>
using GatedKernel = void (*)(const float* gate, const float* up, std::int64_t n, Out* out);
void gated_rows(const ConstTensorView& gate, const ConstTensorView& up, const TensorView& out,
                const CpuContext& context, GatedKernel<float> to_f32, GatedKernel<bf16> to_bf16) {
  const std::int64_t n = gate.dim(0), ffn = gate.dim(1);
  expect_shape("up", up, DType::kF32, {n, ffn});
  expect_shape("out", out, out.dtype(), {n, ffn});
  for_rows(n, ffn, context, [&](std::int64_t i, std::int64_t end) {
    for (; i < end; ++i) {
      const float *g = gate.row_as<float>(i), *u = up.row_as<float>(i);
      if (out.dtype() == DType::kBF16)
        to_bf16(g, u, ffn, out.row_as<bf16>(i));
      else
        to_f32(g, u, ffn, out.row_as<float>(i));
    }
  });
}

}  // namespace

void embed_cpu(std::span<const std::int32_t> ids, const ConstTensorView& table, const TensorView& out,
               const CpuContext& context) {
  const auto n = std::ssize(ids), h = table.dim(1);
  expect_shape("out", out, DType::kF32, {n, h});
  for_rows(n, h, context, [&](std::int64_t i, std::int64_t end) {
    for (; i < end; ++i) {
      const std::int32_t id = ids[i];
      MNEME_CHECK(id >= 0 && id < table.dim(0), "token {} of a vocabulary of {}", id, table.dim(0));
      HWY_DYNAMIC_DISPATCH(EmbedRow)(table.row(id), table.dtype(), h, out.row_as<float>(i));
    }
  });
}

void rms_norm_cpu(const ConstTensorView& x, const float* weight, double eps, const TensorView& out,
                  const CpuContext& context) {
  const std::int64_t n = x.dim(0), h = x.dim(1);
  expect_shape("out", out, out.dtype(), {n, h});
  for_rows(n, h, context, [&](std::int64_t i, std::int64_t end) {
    for (; i < end; ++i) {
      const float* row = x.row_as<float>(i);
      const double mean = HWY_DYNAMIC_DISPATCH(SumOfSquares)(row, h) / static_cast<double>(h);
      const auto scale = static_cast<float>(1.0 / std::sqrt(mean + eps));
      if (out.dtype() == DType::kBF16)
        HWY_DYNAMIC_DISPATCH(NormaliseToBF16)(row, weight, scale, h, out.row_as<bf16>(i));
      else
        HWY_DYNAMIC_DISPATCH(NormaliseToF32)(row, weight, scale, h, out.row_as<float>(i));
    }
  });
}

void swiglu_cpu(const ConstTensorView& gate, const ConstTensorView& up, const TensorView& out,
                const CpuContext& context) {
  gated_rows(gate, up, out, context, HWY_DYNAMIC_DISPATCH(SwigluToF32), HWY_DYNAMIC_DISPATCH(SwigluToBF16));
}

void geglu_cpu(const ConstTensorView& gate, const ConstTensorView& up, const TensorView& out,
               const CpuContext& context) {
  gated_rows(gate, up, out, context, HWY_DYNAMIC_DISPATCH(GegluToF32), HWY_DYNAMIC_DISPATCH(GegluToBF16));
}

void soft_cap_cpu(std::span<float> x, float cap, const CpuContext& context) {
  for_rows(std::ssize(x), 1, context, [&](std::int64_t i, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(SoftCap)(x.data() + i, end - i, cap);
  });
}

void clamped_swiglu_cpu(const ConstTensorView& gate, const ConstTensorView& up, float limit, const TensorView& out,
                        const CpuContext& context) {
  const std::int64_t n = gate.dim(0), ffn = gate.dim(1);
  expect_shape("up", up, DType::kF32, {n, ffn});
  expect_shape("out", out, DType::kF32, {n, ffn});
  for_rows(n, ffn, context, [&](std::int64_t i, std::int64_t end) {
    for (; i < end; ++i) HWY_DYNAMIC_DISPATCH(ClampedSwiglu)
    (gate.row_as<float>(i), up.row_as<float>(i), ffn, limit, out.row_as<float>(i));
  });
}

}  // namespace mneme
#endif  // HWY_ONCE
