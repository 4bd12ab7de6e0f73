// Products of a chunk's matrices in shared memory, by warps.
#pragma once

#include "src/cuda/tf32.cuh"

namespace mneme::cuda {

// c += A B, of kM x kN tiles of 16 x 8, with A and B in shared memory.
//   A(i, k) = a[i kRowA + k kStepA];   B(k, j) = b[k kRowB + j kStepB], times scale[k] with kScaled
template <int kM, int kN, int kRowA, int kStepA, int kRowB, int kStepB, bool kScaled = false>
__device__ __forceinline__ void multiply(float (&c)[kM][kN][4], const float* a, const float* b, int n_k,
                                         const float* scale = nullptr) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  a += g * kRowA + t * kStepA;
  b += g * kStepB + t * kRowB;
#pragma unroll 2
  for (int k = 0; k < n_k; k += 8) {
    std::uint32_t left[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) left[m][i] = to_tf32(a[(16 * m + i % 2 * 8) * kRowA + (k + i / 2 * 4) * kStepA]);
    const float low = kScaled ? scale[k + t] : 1.0f, high = kScaled ? scale[k + t + 4] : 1.0f;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const float x = b[k * kRowB + 8 * n * kStepB], y = b[(k + 4) * kRowB + 8 * n * kStepB];
      const std::uint32_t right[2] = {to_tf32(kScaled ? x * low : x), to_tf32(kScaled ? y * high : y)};
#pragma unroll
      for (int m = 0; m < kM; ++m) mma_tf32(c[m][n], left[m], right);
    }
  }
}

// Calls f(row, column, two values at column and column + 1) for each pair of a warp's tiles.
template <int kM, int kN, typename F>
__device__ __forceinline__ void for_pairs(float (&c)[kM][kN][4], int row, int column, F&& f) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        f(row + 16 * m + 8 * half + g, column + 8 * n + 2 * t, c[m][n][2 * half], c[m][n][2 * half + 1]);
}

}  // namespace mneme::cuda
