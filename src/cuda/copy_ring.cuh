// The mbarriers of a ring of asynchronous copies in shared memory.
#pragma once

#include "src/cuda/common.cuh"

namespace mneme::cuda {

// Initialises a ring's mbarriers, 8 bytes a stage each. A stage is full when its copying thread has arrived (before
// Hopper: every lane of `copiers` warps) and its bytes have; it is empty when `readers` warps have arrived. One thread
// calls this, before a __syncthreads().
__device__ __forceinline__ void ring_init(std::uint32_t full, std::uint32_t empty, int stages, int readers,
                                          [[maybe_unused]] int copiers = 1) {
#if __CUDA_ARCH__ >= 900
  const int arrivals = 1;
#else
  const int arrivals = copiers * kWarp;
#endif
  for (int i = 0; i < stages; ++i) barrier_init(full + i * 8, arrivals), barrier_init(empty + i * 8, readers);
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

}  // namespace mneme::cuda
