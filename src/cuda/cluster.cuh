// Thread block clusters: barriers, distributed shared memory, and sort keys for top-k. Before Hopper a cluster is one
// thread block.
#pragma once

#include "src/cuda/common.cuh"

namespace mneme::cuda {

// Split cluster barrier, arrive half: independent work between arrive and wait hides the latency.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
// Call at kernel start, and wait before the first access to another block's shared memory: all blocks of the cluster
// have started. Work between the two hides the latency.
__device__ __forceinline__ void cluster_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;");
#endif
}
__device__ __forceinline__ void cluster_begun() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
// Call at kernel end: no block exits while others still read its shared memory.
__device__ __forceinline__ void cluster_leave() {
  cluster_begin();
  cluster_begun();
}
// Distributed shared memory address, in block `rank`, of this block's `address`.
__device__ __forceinline__ std::uint32_t address_in(const void* address, int rank) {
  std::uint32_t there = shared_address(address);
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(address)), "r"(rank));
#endif
  return there;
}
#if __CUDA_ARCH__ >= 900
#define MNEME_SHARED "shared::cluster"
#else
#define MNEME_SHARED "shared"
#endif
__device__ __forceinline__ void put(std::uint32_t address, std::uint32_t v) {
  asm volatile("st." MNEME_SHARED ".u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
__device__ __forceinline__ void put(std::uint32_t address, float2 v) {
  asm volatile("st." MNEME_SHARED ".v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}
__device__ __forceinline__ void put_least(std::uint32_t address, std::uint32_t v) {
  asm volatile("red." MNEME_SHARED ".min.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
__device__ __forceinline__ void put_most(std::uint32_t address, std::uint32_t v) {
  asm volatile("red." MNEME_SHARED ".max.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
__device__ __forceinline__ std::uint32_t get(std::uint32_t address) {
  std::uint32_t v;
  asm volatile("ld." MNEME_SHARED ".u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ float2 get_two(std::uint32_t address) {
  float2 v;
  asm volatile("ld." MNEME_SHARED ".v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ uint4 get_four(std::uint32_t address) {
  uint4 v;
  asm volatile("ld." MNEME_SHARED ".v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
#undef MNEME_SHARED

// Maps floats to integers of the same order: larger is better, NaN is below everything.
__device__ __forceinline__ std::uint32_t sort_key(float v) {
  if (isnan(v)) return 0;
  const std::uint32_t bits = __float_as_uint(v == 0 ? 0.0f : v);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of_key(std::uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

}  // namespace mneme::cuda
