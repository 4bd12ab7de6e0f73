#include "src/cuda/common.cuh"
#include "src/ops/attention/attention_merge_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 128;

struct MergeArgs {
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

__global__ void __launch_bounds__(kThreads) merge_kernel(MergeArgs p) {
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

// One warp per (row, head), eight values a lane.
__global__ void __launch_bounds__(kThreads) sink_kernel(SinkLogitsCuda p) {
  launch_dependents();
  grid_dependency_wait();
  const int lane = threadIdx.x % kWarp;
  const std::int64_t head = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (head >= static_cast<std::int64_t>(p.n) * p.n_heads) return;
  const float lse = p.lse[head], sink = p.sinks[head % p.n_heads], most = fmaxf(lse, sink);
  const float sum = most == -INFINITY ? 0.0f : expf(lse - most) + expf(sink - most);
  const float share = sum == 0 ? 0.0f : expf(lse - most) / sum;
  __syncwarp();
  if (lane == 0) p.lse[head] = sum == 0 ? -INFINITY : isnan(lse) ? lse : most + logf(sum);
  if (lane >= p.head_dim / 8) return;
  uint4* out = static_cast<uint4*>(p.out) + head * (p.head_dim / 8) + lane;
  const uint4 x = *out, none{};
  *out = {blend(x.x, none.x, share, 0), blend(x.y, none.y, share, 0), blend(x.z, none.z, share, 0),
          blend(x.w, none.w, share, 0)};
}

}  // namespace

void add_sinks_cuda(const SinkLogitsCuda& rows, const CudaContext& context) {
  constexpr std::int64_t kHeads = kThreads / kWarp;
  const std::int64_t heads = std::int64_t{rows.n} * rows.n_heads;
  launch(context, "add_sinks", sink_kernel, dim3(static_cast<unsigned>((heads + kHeads - 1) / kHeads)), dim3(kThreads),
         0, rows);
}

void merge_attention_cuda(const AttentionPartCuda& a, const AttentionPartCuda& b, std::int32_t n, std::int32_t n_heads,
                          std::int32_t head_dim, void* out, const CudaContext& context) {
  const std::int64_t pieces = std::int64_t{n} * n_heads * (head_dim / 8);
  launch(context, "merge_attention", merge_kernel, dim3(static_cast<unsigned>((pieces + kThreads - 1) / kThreads)),
         dim3(kThreads), 0, MergeArgs{a, b, pieces, head_dim / 8, out});
}

}  // namespace mneme
