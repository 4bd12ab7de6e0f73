// The gates of SwiGLU and GEGLU in device code.
#pragma once

namespace mneme::cuda {

// x sigmoid(x).
__device__ __forceinline__ float silu(float x) {
  return x / (1.0f + __expf(-x));
}

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), without the cancellation.
__device__ __forceinline__ float gelu(float x) {
  return x / (1.0f + __expf(-x * (1.59576912f + 0.0713548163f * x * x)));
}

}  // namespace mneme::cuda
