#include "src/cuda/common.cuh"
#include "src/cuda/loaded_code_cuda.h"

namespace mneme {
namespace {

// All kernels are compiled for the same list of architectures, so one stands for all.
__global__ void probe_kernel() {}

}  // namespace

int loaded_code_version() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, probe_kernel) == cudaSuccess) return attributes.ptxVersion;
  static_cast<void>(cudaGetLastError());
  return 0;
}

bool cuda::has_hopper_code() {
  static const bool has = loaded_code_version() >= 90;
  return has;
}

}  // namespace mneme
