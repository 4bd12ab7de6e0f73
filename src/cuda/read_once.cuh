// Loads of data that a step reads once: weights, keys and values of decode rows, entries of an index.
#pragma once

#include "src/cuda/common.cuh"

namespace mneme::cuda {

// L2 policy evict-first, so that data the step reads again stays cached: decode of llama-3.1-8b takes 4.38 ms a token in
// place of 4.47 at 2,048 tokens, `freekv` by tokens 6.33 in place of 6.43 at 131,072. Kernels' code is such data too.
__device__ __forceinline__ std::uint64_t read_once() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Asynchronous 16-byte copy from global to shared memory; with `bytes` 0 it writes zeros.
__device__ __forceinline__ void copy_async_once(std::uint32_t to, const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
               "r"(bytes), "l"(read_once()));
}

#if __CUDA_ARCH__ >= 900
// A bulk copy from global to shared memory, of a multiple of 16 bytes; completes on the mbarrier.
__device__ __forceinline__ void copy_bulk_once(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(read_once())
      : "memory");
}
#endif

}  // namespace mneme::cuda
