// Hopper's warpgroup matrix instruction, sm_90a alone: D [64, n] f32 of four warps += A [64, 16] bf16 in registers or
// shared memory times B [16, n] bf16 in shared memory. Warp w has rows 16 w to 16 w + 15, in the fragments of
// mma.m16n8k16.
//
// Source  PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions"
#pragma once

#include <cstdint>

namespace mneme::cuda {

// B without swizzle, K innermost: core matrices of 8 columns of D by 8 of K are 128 contiguous bytes, follow one another
// along the columns of D, and `k8_bytes` apart along K.
__device__ __forceinline__ std::uint64_t wgmma_operand(std::uint32_t address, int k8_bytes) {
  constexpr std::uint64_t kColumnsApart = 128 >> 4;
  return (address & 0x3ffffu) >> 4 | static_cast<std::uint64_t>(k8_bytes >> 4) << 16 | kColumnsApart << 32;
}

// A or B as TMA writes boxes of 64 columns with CU_TENSOR_MAP_SWIZZLE_128B: rows of 128 bytes, eight of them 1,024 bytes
// apart from the next eight. `address`: a multiple of 1,024. The operand 16 columns on is kSwizzledK16 more.
constexpr std::uint64_t kSwizzledK16 = 32 >> 4;
__device__ __forceinline__ std::uint64_t wgmma_swizzled(std::uint32_t address) {
  constexpr std::uint64_t kEightRows = 1024 >> 4, kSwizzle128 = 1;
  return (address & 0x3ffffu) >> 4 | std::uint64_t{1} << 16 | kEightRows << 32 | kSwizzle128 << 62;
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kLeft groups are in flight.
template <int kLeft>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
// Keeps reads and writes of accumulators on their side of what is around.
template <int kN>
__device__ __forceinline__ void hold(float (&d)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// add 0: D is replaced.
__device__ __forceinline__ void wgmma(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
      "}, {%16, %17, %18, %19}, %20, p, 1, 1, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ __forceinline__ void wgmma(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// Both operands in shared memory; adds to D.
__device__ __forceinline__ void wgmma(float (&d)[16], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
      "}, %16, %17, p, 1, 1, 0, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(a), "l"(b));
}

}  // namespace mneme::cuda
