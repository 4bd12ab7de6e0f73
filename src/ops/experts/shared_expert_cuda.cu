#include "src/cuda/block_reduce.cuh"
#include "src/ops/experts/shared_expert_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256;

// A thread block per row.
__global__ void __launch_bounds__(kThreads)
    add_kernel(float* residual, const __nv_bfloat16* x, const float* gate, const float* y, int hidden) {
  __shared__ float parts[kThreads / kWarp];
  grid_dependency_wait();
  launch_dependents();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * hidden;
  float dot = 0;
  for (int i = threadIdx.x; i < hidden; i += kThreads) dot = fmaf(widen(x[first + i]), gate[i], dot);
  const float share = 1.0f / (1.0f + expf(-block_sum(dot, parts)));
  for (int i = threadIdx.x; i < hidden; i += kThreads) residual[first + i] += share * y[first + i];
}

}  // namespace

void add_shared_expert_cuda(float* residual, const void* x, const float* gate, const float* y, std::int32_t n,
                            std::int32_t hidden, const CudaContext& context) {
  launch(context, "shared expert", add_kernel, grid_of(n), kThreads, 0, residual, static_cast<const __nv_bfloat16*>(x),
         gate, y, hidden);
}

}  // namespace mneme
