#include "src/cuda/bandwidth_cuda.h"
#include "src/cuda/common.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 512, kPrefetch = 8;

__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* from, std::size_t n, float* sink) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads;
  std::uint32_t bits = 0;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += kPrefetch * stride) {
    uint4 v[kPrefetch];
#pragma unroll
    for (int k = 0; k < kPrefetch; ++k)
      if (i + k * stride < n) v[k] = load_stream(from + i + k * stride);
#pragma unroll
    for (int k = 0; k < kPrefetch; ++k)
      if (i + k * stride < n) bits |= (v[k].x & v[k].y) ^ (v[k].z | v[k].w);
  }
  if (bits == 0x12345678u && sink != nullptr) *sink = 1;
}

}  // namespace

void read_all_cuda(const void* from, std::size_t bytes, float* sink, const CudaContext& context) {
  const int blocks = device_attribute(cudaDevAttrMultiProcessorCount);
  launch(context, "read_all", read_kernel, dim3(static_cast<unsigned>(blocks * 4)), dim3(kThreads), 0,
         static_cast<const uint4*>(from), bytes / 16, sink);
}

}  // namespace mneme
