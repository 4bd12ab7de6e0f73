// Error checks for files that call the CUDA runtime.
#pragma once

#include <cuda_runtime.h>

namespace mneme {

// Throws kDevice (kResource where memory ran out) with `what` and CUDA's error text.
[[noreturn]] void cuda_failed(cudaError_t error, const char* what);

inline void cuda_check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) [[unlikely]]
    cuda_failed(error, what);
}

// An attribute of the calling thread's current device.
inline int device_attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  cuda_check(cudaGetDevice(&device), "asking for the device");
  cuda_check(cudaDeviceGetAttribute(&value, which, device), "asking for what the device has");
  return value;
}

}  // namespace mneme
