#include "src/cuda/common.cuh"
#include "src/ops/attention/attention_merge_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 128;

struct Args {
  AttentionPartCuda a, b;
  std::int64_t n;  // pieces of 8 elements in total
  int pieces;      // per head
  void* out;
};

__device__ __forceinline__ std::uint32_t blend(std::uint32_t a, std::uint32_t b, float wa, float wb) {
  const float2 x = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(a));
  const float2 y = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(b));
  return pack<__nv_bfloat16>((wa == 0 ? 0 : x.x * wa) + (wb == 0 ? 0 : y.x * wb),
                             (wa == 0 ? 0 : x.y * wa) + (wb == 0 ? 0 : y.y * wb));
}

__global__ void __launch_bounds__(kThreads) merge_kernel(Args p) {
  launch_dependents();
  grid_dependency_wait();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= p.n) return;
  const float la = __ldcg(p.a.lse + at / p.pieces), lb = __ldcg(p.b.lse + at / p.pieces);
  const float most = fmaxf(la, lb), base = most == -INFINITY ? 0.0f : most;
  const float ea = expf(la - base), eb = expf(lb - base), sum = ea + eb;
  const float wa = sum == 0 ? 0.0f : ea / sum, wb = sum == 0 ? 0.0f : eb / sum;
  const uint4 x = __ldcg(static_cast<const uint4*>(p.a.out) + at), y = __ldcg(static_cast<const uint4*>(p.b.out) + at);
  static_cast<uint4*>(p.out)[at] = {blend(x.x, y.x, wa, wb), blend(x.y, y.y, wa, wb), blend(x.z, y.z, wa, wb),
                                    blend(x.w, y.w, wa, wb)};
}

}  // namespace

void merge_attention_cuda(const AttentionPartCuda& a, const AttentionPartCuda& b, std::int32_t n, std::int32_t n_heads,
                          std::int32_t head_dim, void* out, const CudaContext& context) {
  const std::int64_t pieces = std::int64_t{n} * n_heads * (head_dim / 8);
  launch(context, "merge_attention", merge_kernel, dim3(static_cast<unsigned>((pieces + kThreads - 1) / kThreads)),
         dim3(kThreads), 0, Args{a, b, pieces, head_dim / 8, out});
}

}  // namespace mneme
