#include "src/cuda/common.cuh"
#include "src/ops/norm_rope/rank_rows_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256;
constexpr int kRowThreads = 1024;  // a row of 4,096 at once: it is on the critical path of every layer, twice

// One thread block per row.
__global__ void __launch_bounds__(kRowThreads) add_summed_rows_kernel(const float4* sum, int quads, EmbedOutput out) {
  __shared__ float parts[kRowThreads / kWarp];
  grid_dependency_wait();
  launch_dependents();  // the next GEMM requests weights
  const std::int64_t row = blockIdx.x;
  const float4* from = sum + row * quads;
  float4* to = reinterpret_cast<float4*>(out.residual) + row * quads;
  const auto* weight = reinterpret_cast<const float4*>(out.norm_weight);
  auto* next = static_cast<uint2*>(out.x_next) + row * quads;
  float squares = 0;
  for (int i = threadIdx.x; i < quads; i += kRowThreads) {
    float4 v = to[i];
    const float4 more = from[i];
    v = {v.x + more.x, v.y + more.y, v.z + more.z, v.w + more.w};
    to[i] = v;
    if (out.x_next == nullptr) continue;
    const float4 w = weight[i];
    next[i] = {pack<__nv_bfloat16>(v.x * w.x, v.y * w.y), pack<__nv_bfloat16>(v.z * w.z, v.w * w.w)};
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  if (out.x_next == nullptr) return;
  squares = warp_sum(squares);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = squares;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  const float all = warp_sum(parts[threadIdx.x]);
  if (threadIdx.x == 0) out.sums[row] = all;
}

__global__ void __launch_bounds__(kThreads)
    join_vocabulary_kernel(const float* parts, int part, int vocab, float* logits) {
  grid_dependency_wait();
  const int column = blockIdx.x * kThreads + threadIdx.x;
  const std::int64_t row = blockIdx.y, n = gridDim.y;
  if (column >= vocab) return;
  logits[row * vocab + column] = parts[(column / part * n + row) * part + column % part];
}

}  // namespace

void add_summed_rows_cuda(const float* sum, std::int32_t n, std::int32_t hidden, const EmbedOutput& out,
                          const CudaContext& context) {
  launch(context, "add_summed_rows", add_summed_rows_kernel, dim3(static_cast<unsigned>(n)), dim3(kRowThreads), 0,
         reinterpret_cast<const float4*>(sum), hidden / 4, out);
}

void join_vocabulary_cuda(const float* parts, std::int32_t n, std::int32_t part, std::int32_t vocab, float* logits,
                          const CudaContext& context) {
  const dim3 grid(static_cast<unsigned>((vocab + kThreads - 1) / kThreads), static_cast<unsigned>(n));
  launch(context, "join_vocabulary", join_vocabulary_kernel, grid, dim3(kThreads), 0, parts, part, vocab, logits);
}

}  // namespace mneme
