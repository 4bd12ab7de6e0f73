// Activations in the order in which wgmma takes them from shared memory, made once for all tiles of a GEMM.
//
//   slab := x sums                                        128 columns
//   x     [4 steps][2 k16][2 k8][rows][8] bf16            zero where a row or column is missing
//   sums  by SumsOfX: none; [groups of a slab][rows] f32, of each group; or, of a chunk's two slabs with eight groups,
//         [2][rows][8] bf16 a slab, so that tensor cores multiply them with minima: the sum's first and second bf16 in the
//         first slab, twice the third in the second
//
// A step's 32 columns are permuted as device_matrix.h permutes those of weights: lane t of four has eight columns, and
// positions 2 t, 2 t + 1 of its k8 hold two of them.
#pragma once

#include "src/ops/gemm/device/skinny_kernel.cuh"

namespace mneme::cuda {

enum class SumsOfX { kNone, kFloat, kSplit };

template <bool kPer16, SumsOfX kSums, int kRows>
struct PermutedX {
  static constexpr int kGroups = kPer16 ? 8 : 4;  // of a slab, each with a scale
  static constexpr int kK8Bytes = kRows * 16, kStepBytes = 4 * kK8Bytes;
  static constexpr int kXBytes = 4 * kStepBytes, kSumBytes = kSums == SumsOfX::kFloat   ? kGroups * kRows * 4
                                                             : kSums == SumsOfX::kSplit ? 2 * kK8Bytes
                                                                                        : 0;
  static constexpr int kSlabBytes = kXBytes + kSumBytes;
};

// sums: of the first slab; group: of eight.
template <typename P>
__device__ __forceinline__ void put_split(std::byte* sums, int row, int group, float sum) {
  auto* to = reinterpret_cast<__nv_bfloat16*>(sums + row * 16) + group;
  constexpr int kK8 = P::kK8Bytes / 2, kSlab = P::kSlabBytes / 2;  // values
  to[0] = __float2bfloat16_rn(sum);
  sum -= __bfloat162float(to[0]);
  to[kK8] = __float2bfloat16_rn(sum);
  sum -= __bfloat162float(to[kK8]);
  to[kSlab] = to[kSlab + kK8] = __float2bfloat16_rn(sum);
}

// A thread has a step of a row: 32 columns.
template <bool kPer16, SumsOfX kSums, int kRows>
__global__ void __launch_bounds__(256)
    permute_x_kernel(const __nv_bfloat16* x, int m, int k, int n_steps, std::byte* out) {
  using P = PermutedX<kPer16, kSums, kRows>;
  launch_dependents();
  grid_dependency_wait();
  const int i = blockIdx.x * blockDim.x + threadIdx.x, row = i % kRows, step = i / kRows;
  if (step >= n_steps) return;
  std::uint32_t pairs[16] = {};
  if (row < m && step * kStepColumns < k) {
    const auto* from = reinterpret_cast<const uint4*>(x + std::int64_t{row} * k + step * kStepColumns);
#pragma unroll
    for (int j = 0; j < 4; ++j) put_four(pairs + 4 * j, from[j]);
  }
  std::byte* slab = out + std::int64_t{step / 4} * P::kSlabBytes;
#pragma unroll
  for (int k8 = 0; k8 < 4; ++k8) {
    const int half = k8 / 2, high = k8 % 2;
    std::uint32_t word[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) word[t] = pairs[kPer16 ? 8 * half + 2 * t + high : 4 * t + 2 * half + high];
    *reinterpret_cast<uint4*>(slab + step % 4 * P::kStepBytes + k8 * P::kK8Bytes + row * 16) = {word[0], word[1],
                                                                                                word[2], word[3]};
  }
  if constexpr (kSums != SumsOfX::kNone) {
    float sum[2] = {};
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float2 v = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pairs[j]));
      sum[kPer16 ? j / 8 : 0] += v.x + v.y;
    }
    if constexpr (kSums == SumsOfX::kSplit) {
      put_split<P>(slab - step / 4 % 2 * P::kSlabBytes + P::kXBytes, row, step % 8, sum[0]);
    } else {
      auto* sums = reinterpret_cast<float*>(slab + P::kXBytes) + step % 4 * (P::kGroups / 4) * kRows + row;
      sums[0] = sum[0];
      if constexpr (kPer16) sums[kRows] = sum[1];
    }
  }
}

}  // namespace mneme::cuda
