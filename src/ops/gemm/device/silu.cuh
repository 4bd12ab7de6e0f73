// The gate of SwiGLU in device code.
#pragma once

namespace mneme::cuda {

// x sigmoid(x).
__device__ __forceinline__ float silu(float x) {
  return x / (1.0f + __expf(-x));
}

}  // namespace mneme::cuda
