// Reductions over a thread block of kWarps warps, in the order of the warps; every thread calls them and has the result.
#pragma once

#include "src/cuda/common.cuh"

namespace mneme::cuda {

// reduce: of two parts, associative only but for rounding. parts [kWarps], in shared memory.
template <int kWarps, typename T, typename F>
__device__ __forceinline__ T block_reduce(T of_warp, T (&parts)[kWarps], F&& reduce) {
  __syncthreads();  // what was there has been read
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  T all = parts[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) all = reduce(all, parts[w]);
  return all;
}
template <int kWarps, typename T>
__device__ __forceinline__ T block_sum(T v, T (&parts)[kWarps]) {
  return block_reduce(warp_sum(v), parts, [](T a, T b) { return a + b; });
}
template <int kWarps>
__device__ __forceinline__ float block_max(float v, float (&parts)[kWarps]) {
  return block_reduce(warp_max(v), parts, [](float a, float b) { return fmaxf(a, b); });
}

}  // namespace mneme::cuda
