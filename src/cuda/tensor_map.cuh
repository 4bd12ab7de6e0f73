// TMA (Hopper's tensor memory accelerator): encodes tensor maps on the host, copies boxes on the device.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include "src/cuda/check.h"
#include "src/cuda/common.cuh"
#include "src/cuda/read_once.cuh"

namespace mneme::cuda {

// Encodes a map of a tensor, of 16-bit words unless `type` says another. `size`: elements of each dimension, innermost
// first; `stride`: bytes, of all dimensions but the first; `box`: elements a copy takes, dense in shared memory unless
// `swizzle` says another order. Elements outside are read as zero.
template <std::size_t kRank>
CUtensorMap tensor_map(const void* base, const std::array<std::int64_t, kRank>& size,
                       const std::array<std::int64_t, kRank - 1>& stride, const std::array<int, kRank>& box,
                       CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT16,
                       CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status{};
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status),
               "asking the driver for tensor maps");
    if (status != cudaDriverEntryPointSuccess) cuda_check(cudaErrorNotSupported, "asking the driver for tensor maps");
    return reinterpret_cast<Encode>(found);
  }();
  std::array<cuuint64_t, kRank> sizes{}, strides{};
  std::array<cuuint32_t, kRank> boxes{}, steps{};
  for (std::size_t i = 0; i < kRank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(size[i]);
    boxes[i] = static_cast<cuuint32_t>(box[i]);
    steps[i] = 1;
    if (i + 1 < kRank) strides[i] = static_cast<cuuint64_t>(stride[i]);
  }
  CUtensorMap map{};
  const CUresult result = encode(&map, type, kRank, const_cast<void*>(base), sizes.data(), strides.data(), boxes.data(),
                                 steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) cuda_check(cudaErrorInvalidValue, "making a tensor map");
  return map;
}

#if __CUDA_ARCH__ >= 900
// Copies a box of weights to shared memory.
__device__ __forceinline__ void copy_box(std::uint32_t to, const CUtensorMap& map, int c0, int c1, int c2,
                                         std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier), "l"(read_once())
      : "memory");
}
__device__ __forceinline__ void copy_box(std::uint32_t to, const CUtensorMap& map, int c0, int c1,
                                         std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(barrier), "l"(read_once())
      : "memory");
}
__device__ __forceinline__ void copy_box(std::uint32_t to, const CUtensorMap& map, int c0, int c1, int c2, int c3,
                                         std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier), "l"(read_once())
      : "memory");
}
#endif

}  // namespace mneme::cuda
