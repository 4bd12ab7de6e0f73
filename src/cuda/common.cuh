// Shared device code: launch, PDL, warp reductions and scans, 16-byte copies, mma fragments.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "src/cuda/check.h"
#include "src/cuda/context.h"

namespace mneme::cuda {

constexpr int kWarp = 32;

// ---- launching

// Whether the driver loaded kernels that were compiled for Hopper or newer, with bulk copies, clusters and PDL. False on
// such a card too if the build has only older code for it (80-virtual): what the card can do says nothing about a kernel.
bool has_hopper_code();

inline dim3 grid_of(int x, int y = 1, int z = 1) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

// Launches with clusters of `cluster` thread blocks.
template <typename... Params, typename... Args>
void launch_clusters(const CudaContext& context, const char* name, void (*kernel)(Params...), dim3 grid, dim3 block,
                     unsigned cluster, std::size_t shared_bytes, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = context.stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (context.order == LaunchOrder::kOverlapped && has_hopper_code()) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {cluster, 1, 1};
  }
  cuda_check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name);
}
template <typename... Params, typename... Args>
void launch(const CudaContext& context, const char* name, void (*kernel)(Params...), dim3 grid, dim3 block,
            std::size_t shared_bytes, Args&&... args) {
  launch_clusters(context, name, kernel, grid, block, 1, shared_bytes, std::forward<Args>(args)...);
}

// Dynamic shared memory of any kernel here without opting in: 48 KiB is the default limit of static and dynamic
// together; the rest is for static.
inline constexpr std::size_t kDefaultSharedBytes = 40 << 10;
// Raises a kernel's dynamic shared memory limit where a launch needs more. allowed: the kernel's current limit, kept
// between launches; initially kDefaultSharedBytes.
template <typename... Params>
void allow_shared(void (*kernel)(Params...), std::size_t bytes, std::size_t& allowed, const char* what) {
  if (bytes <= allowed) return;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), what);
  allowed = bytes;
}

// launch() of a kernel that may need more dynamic shared memory than that.
template <auto kKernel, typename... Args>
void launch_shared(const CudaContext& context, const char* name, dim3 grid, dim3 block, std::size_t shared_bytes,
                   Args&&... args) {
  static std::size_t allowed = kDefaultSharedBytes;
  allow_shared(kKernel, shared_bytes, allowed, name);
  launch(context, name, kKernel, grid, block, shared_bytes, std::forward<Args>(args)...);
}

// Clusters of this size that the device runs at once; 0: the size is not supported.
template <typename... Params>
int clusters_at_once(void (*kernel)(Params...), int blocks, int threads, std::size_t shared_bytes = 0) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
  int n = 0;
  if (cudaOccupancyMaxActiveClusters(&n, kernel, &config) == cudaSuccess) return n;
  cudaGetLastError();
  return 0;
}

inline int sm_count() {
  static const int n = device_attribute(cudaDevAttrMultiProcessorCount);
  return n;
}

// Allows clusters of more than 8 thread blocks, where the device has them; clusters_at_once() is 0 for the others.
template <typename... Params>
void allow_large_clusters(void (*kernel)(Params...)) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess)
    static_cast<void>(cudaGetLastError());
}

// The largest cluster size, a power of two up to `most`, at which resident clusters cover all thread blocks that the
// device holds except less than one cluster.
template <typename... Params>
int most_cluster(void (*kernel)(Params...), int threads, int most) {
  if (!has_hopper_code()) return 1;
  allow_large_clusters(kernel);
  while (most > 1 && (clusters_at_once(kernel, most, threads) + 1) * most < sm_count()) most /= 2;
  return most;
}

// For cluster sizes 1, 2, 3, ..., `most`: clusters that the device runs at once.
template <typename... Params>
std::vector<int> active_clusters(void (*kernel)(Params...), int threads, int most, std::size_t shared_bytes = 0) {
  if (!has_hopper_code()) return {sm_count()};
  allow_large_clusters(kernel);
  std::vector<int> clusters;
  for (int blocks = 1; blocks <= most; ++blocks)
    clusters.push_back(clusters_at_once(kernel, blocks, threads, shared_bytes));
  return clusters;
}

// griddepcontrol.wait: writes of preceding kernels are visible. Every kernel that can be launched overlapped calls it
// in each thread that reads or writes shared data; without overlap it costs nothing.
__device__ __forceinline__ void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// griddepcontrol.launch_dependents: the next kernel may start once every thread block has called this.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- flags in device memory, between thread blocks of concurrent kernels

// Store-release: a thread that sees the flag also sees everything this thread wrote or observed.
__device__ __forceinline__ void raise_flag(std::int32_t* flag, std::int32_t v) {
  __threadfence();
  asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(flag), "r"(v) : "memory");
}
__device__ __forceinline__ std::int32_t read_flag(const std::int32_t* flag) {
  std::int32_t v;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
  return v;
}
// Load-acquire spin. Requires  the block that raises the flag is resident or has finished.
__device__ __forceinline__ void await_flag(const std::int32_t* flag, std::int32_t v) {
  while (read_flag(flag) != v) __nanosleep(40);
}

// ---- memory

// Streaming load that bypasses L1. The memory must be read-only during this launch and those it may overlap.
__device__ __forceinline__ uint4 load_stream(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// Load from shared memory.   Word: uint4, uint2
template <typename Word>
__device__ __forceinline__ Word load_shared(std::uint32_t at) {
  Word v;
  if constexpr (sizeof(Word) == 16) {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  } else {
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  }
  return v;
}

// Asynchronous 16-byte copy from global to shared memory (cp.async).
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from));
}
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;");
}
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- mbarriers: shared-memory barriers that count arrivals and transferred bytes

__device__ __forceinline__ void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}
// Waits until the phase with this parity has completed.
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done = 0;
  while (done == 0) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#else
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#endif
  }
}
#if __CUDA_ARCH__ >= 900
// Arrives once and adds `bytes` to the expected transfer count.
__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, int bytes) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(barrier), "r"(bytes)
               : "memory");
}
#endif

// ---- warps

template <int kWidth = kWarp, typename T>
__device__ __forceinline__ T warp_sum(T v) {
#pragma unroll
  for (int i = kWidth / 2; i > 0; i /= 2) v += __shfl_xor_sync(~0u, v, i);
  return v;
}
template <int kWidth = kWarp>
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int i = kWidth / 2; i > 0; i /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, i));
  return v;
}

constexpr float kLog2e = 1.4426950408889634f;

// 2^n, n in [-126, 127].
__device__ __forceinline__ float power_of_two(int n) {
  return __int_as_float((n + 127) << 23);
}

// Inclusive prefix sum over the lanes of a warp.
__device__ __forceinline__ int warp_inclusive_scan(int v) {
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) {
    const int other = __shfl_up_sync(~0u, v, d);
    if (static_cast<int>(threadIdx.x) % kWarp >= d) v += other;
  }
  return v;
}

// Exclusive prefix sums over a thread block of kWarps warps, whose own sums are then in of_warps: a barrier precedes its
// next use. Called by every thread.
template <int kWarps>
__device__ __forceinline__ int block_exclusive_scan(int own, int (&of_warps)[kWarps]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int up_to = warp_inclusive_scan(own);
  if (lane == kWarp - 1) of_warps[warp] = up_to;
  __syncthreads();
  return up_to - own + __reduce_add_sync(~0u, lane < warp ? of_warps[lane] : 0);
}
// The same of pairs.
template <int kWarps>
__device__ __forceinline__ int2 block_exclusive_scan(int2 own, int2 (&of_warps)[kWarps]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int2 up_to = {warp_inclusive_scan(own.x), warp_inclusive_scan(own.y)};
  if (lane == kWarp - 1) of_warps[warp] = up_to;
  __syncthreads();
  int2 before = {up_to.x - own.x, up_to.y - own.y};
  for (int w = 0; w < warp; ++w) before.x += of_warps[w].x, before.y += of_warps[w].y;
  return before;
}

// ---- mma m16n8k16; lane = 4 g + t
//
//   A  a0: row g, columns 2t, 2t+1    a1: row g+8    a2: row g, columns 2t+8, 2t+9    a3: row g+8
//   B  b0: rows 2t, 2t+1 of column g  b1: rows 2t+8, 2t+9
//   C  c0, c1: row g, columns 2t, 2t+1   c2, c3: row g+8

template <typename T>
__device__ __forceinline__ void mma(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                    std::uint32_t a3, std::uint32_t b0, std::uint32_t b1);
template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                                   std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<__half>(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                            std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ldmatrix x4: four 8 x 8 matrices of 16-bit values; lane i addresses row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// ---- 16-bit types

template <typename T>
__device__ __forceinline__ std::uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(v);
}
template <>
__device__ __forceinline__ std::uint32_t pack<__half>(float low, float high) {
  const __half2 v = __floats2half2_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(v);
}

template <typename T>
__device__ __forceinline__ T narrow(float v);
template <>
__device__ __forceinline__ float narrow<float>(float v) {
  return v;
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}
template <>
__device__ __forceinline__ __half narrow<__half>(float v) {
  return __float2half_rn(v);
}

__device__ __forceinline__ float widen(float v) {
  return v;
}
__device__ __forceinline__ float widen(__nv_bfloat16 v) {
  return __bfloat162float(v);
}
__device__ __forceinline__ float widen(__half v) {
  return __half2float(v);
}

}  // namespace mneme::cuda
