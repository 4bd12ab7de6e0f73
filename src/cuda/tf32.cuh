// Products of f32 values in shared memory on tensor cores: mma m16n8k8 of tf32, which has 11 bits of a mantissa.
#pragma once

#include "src/cuda/common.cuh"

namespace mneme::cuda {

// Rounds to nearest; the hardware would cut bits off. NaN stays.
__device__ __forceinline__ std::uint32_t to_tf32(float x) {
  std::uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

// c += A B; lane = 4 g + t
//
//   A  a0: row g, column t   a1: row g+8   a2: row g, column t+4   a3: row g+8
//   B  b0: row t of column g   b1: row t+4
//   C  as of mma m16n8k16
__device__ __forceinline__ void mma_tf32(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace mneme::cuda
