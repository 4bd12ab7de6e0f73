// What every CUDA kernel is handed: where it is enqueued, and how.
#pragma once

struct CUstream_st;

namespace mneme {

// kOverlapped: the kernel may start while the one before it in the stream ends (programmatic dependent launch, compute
// capability 9.0 and newer; elsewhere the same as kSerial). Kernels wait for what they read either way.
enum class LaunchOrder { kSerial, kOverlapped };

struct CudaContext {
  CUstream_st* stream = nullptr;
  LaunchOrder order = LaunchOrder::kSerial;
};

}  // namespace mneme
