// For files that call the CUDA runtime: turns its errors into ours.
#pragma once

#include <cuda_runtime.h>

namespace mneme {

// Throws kDevice (kResource where memory ran out) with `what` and CUDA's words.
[[noreturn]] void cuda_failed(cudaError_t error, const char* what);

inline void cuda_check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) [[unlikely]]
    cuda_failed(error, what);
}

}  // namespace mneme
