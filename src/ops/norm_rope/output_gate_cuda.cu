#include "src/cuda/common.cuh"
#include "src/ops/norm_rope/output_gate_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256, kValues = 4;  // values of a thread

// The same as bf16 pairs, or as f32.
__device__ __forceinline__ float4 four(const uint2* p, std::int64_t i) {
  const uint2 v = p[i];
  const float2 a = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(v.x)),
               b = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(v.y));
  return {a.x, a.y, b.x, b.y};
}
__device__ __forceinline__ float4 four(const float4* p, std::int64_t i) {
  return p[i];
}

__device__ __forceinline__ float gated(float x, float gate) {
  return x / (1.0f + __expf(-gate));
}

template <typename Gate>
__global__ void __launch_bounds__(kThreads) gate_kernel(const uint2* x, const Gate* gate, std::int64_t n, uint2* out) {
  grid_dependency_wait();
  launch_dependents();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const float4 v = four(x, i), g = four(gate, i);
  out[i] = {pack<__nv_bfloat16>(gated(v.x, g.x), gated(v.y, g.y)),
            pack<__nv_bfloat16>(gated(v.z, g.z), gated(v.w, g.w))};
}

}  // namespace

void sigmoid_gate_cuda(const void* x, const void* gate, bool gate_bf16, std::int64_t total, void* out,
                       const CudaContext& context) {
  const std::int64_t n = total / kValues;
  const dim3 grid = grid_of(static_cast<int>((n + kThreads - 1) / kThreads));
  const auto* from = static_cast<const uint2*>(x);
  auto* to = static_cast<uint2*>(out);
  if (gate_bf16)
    launch(context, "output gate", gate_kernel<uint2>, grid, kThreads, 0, from, static_cast<const uint2*>(gate), n, to);
  else
    launch(context, "output gate", gate_kernel<float4>, grid, kThreads, 0, from, static_cast<const float4*>(gate), n,
           to);
}

}  // namespace mneme
