// Stream and launch order, passed to every CUDA kernel launcher.
#pragma once

struct CUstream_st;

namespace mneme {

// kOverlapped: programmatic dependent launch, the kernel may start before the preceding one in the stream ends. The same
// as kSerial where the loaded kernels were compiled for less than 9.0. Kernels wait for their inputs in both cases.
enum class LaunchOrder { kSerial, kOverlapped };

struct CudaContext {
  CUstream_st* stream = nullptr;
  LaunchOrder order = LaunchOrder::kSerial;
};

}  // namespace mneme
