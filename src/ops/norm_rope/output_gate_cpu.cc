#include <algorithm>

#include "src/ops/norm_rope/output_gate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/norm_rope/output_gate_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// After highway.h: these headers differ per target.
#include <hwy/contrib/math/math-inl.h>

#include "src/ops/gemm/quant-inl.h"
#include "src/ops/simd/round-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// exp above 100 is infinity in f32, and x / infinity is 0 as required.
template <class D>
HWY_INLINE hn::Vec<D> gated(D d, hn::Vec<D> x, hn::Vec<D> gate) {
  const auto e = hn::Exp(d, hn::Min(hn::Neg(gate), hn::Set(d, 100.0f)));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), e));
}

template <typename Out>
HWY_INLINE void gate_row(const float* x, const float* gate, std::int64_t n, Out* out) {
  const hn::CappedTag<float, 16> d;
  const hn::CappedTag<float, 1> one;
  const std::int64_t lanes = hn::Lanes(d);
  std::int64_t j = 0;
  for (; j + lanes <= n; j += lanes) put(d, gated(d, hn::LoadU(d, x + j), hn::LoadU(d, gate + j)), out + j);
  for (; j < n; ++j) out[j] = Out(hn::GetLane(gated(one, hn::Set(one, x[j]), hn::Set(one, gate[j]))));
}

void GateToF32(const float* x, const float* gate, std::int64_t n, float* out) {
  gate_row(x, gate, n, out);
}
void GateToBF16(const float* x, const float* gate, std::int64_t n, bf16* out) {
  gate_row(x, gate, n, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(GateToF32);
HWY_EXPORT(GateToBF16);

constexpr std::int64_t kGateValuesAlone = 16384;  // as in pointwise_cpu.cc

}  // namespace

void sigmoid_gate_cpu(const ConstTensorView& x, const ConstTensorView& gate, const TensorView& out,
                      const CpuContext& context) {
  const std::int64_t n = x.dim(0), width = x.dim(1);
  expect_shape("gate", gate, DType::kF32, {n, width});
  expect_shape("out", out, out.dtype(), {n, width});
  const auto rows = [&](std::int64_t i, std::int64_t end, int) {
    for (; i < end; ++i) {
      if (out.dtype() == DType::kBF16)
        HWY_DYNAMIC_DISPATCH(GateToBF16)(x.row_as<float>(i), gate.row_as<float>(i), width, out.row_as<bf16>(i));
      else
        HWY_DYNAMIC_DISPATCH(GateToF32)(x.row_as<float>(i), gate.row_as<float>(i), width, out.row_as<float>(i));
    }
  };
  if (n * width <= kGateValuesAlone) return rows(0, n, 0);
  context.pool->parallel_for(n, std::max<std::int64_t>(kGateValuesAlone / 2 / width, 1), rows);
}

}  // namespace mneme
#endif  // HWY_ONCE
