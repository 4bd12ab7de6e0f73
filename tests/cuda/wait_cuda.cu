#include "src/cuda/common.cuh"
#include "tests/cuda/delays.h"

namespace mneme {
namespace {

__global__ void wait_kernel(std::uint64_t nanoseconds) {
  cuda::grid_dependency_wait();
  std::uint64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - begin < nanoseconds);
}

}  // namespace

void wait_cuda(std::int32_t microseconds, const CudaContext& context) {
  cuda::launch(context, "wait", wait_kernel, dim3(1), dim3(1), 0, static_cast<std::uint64_t>(microseconds) * 1000);
}

}  // namespace mneme
