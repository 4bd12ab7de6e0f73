// GEMMs of sorted pairs (router_cuda.h) with the matrices of their experts, all experts in one launch.
//
// Numerics  as the skinny GEMM: x is bf16, quantised blocks are multiplied exactly and scaled in f32; sums in f32, in a
//           fixed order, whatever the other rows.
// Async     enqueues; allocates nothing; no count is known to the host.
#pragma once

#include <cstdint>

#include "src/cuda/context.h"
#include "src/ops/experts/router_cuda.h"
#include "src/ops/gemm/device/device_matrix.h"

namespace mneme {

// Rows of a tile: few where most experts have a few rows at most.
std::int32_t expert_tile_rows(std::int32_t n_pairs, std::int32_t n_experts);

// y = x w^T (+ bias).
struct GroupedGemmCuda {
  const void* x = nullptr;  // bf16 [., k]; row p / n_used for pair p, or, where by_slot, in order of the pairs
  bool by_slot = false;
  std::int32_t n_used = 1;
  DeviceMatrix w;               // [n_experts * n_out, k], k a multiple of 32, n_out of 8
  const float* bias = nullptr;  // [n_experts, n_out], or null
  void* y = nullptr;            // [n_pairs, n_out] in order of the pairs, bf16 or f32
  bool y_f32 = false;
  std::int32_t n_pairs = 0, n_experts = 0;
};
void grouped_gemm_cuda(const GroupedGemmCuda& g, const SortedPairs& pairs, const CudaContext& context);

// out = (up + 1) g sigmoid(1.702 g), g = min(gate, limit), u = clamp(up, limit); where limit is 0, silu(gate) * up.
//   gate_up [n, 2 ffn] bf16; out [n, ffn] bf16
void expert_swiglu_cuda(const void* gate_up, std::int32_t n, std::int32_t ffn, float limit, void* out,
                        const CudaContext& context);

// residual += sum over a row's pairs, by ascending expert, of share times y; and the start of the next norm. Pairs with
// slot -1 are another rank's.
struct CombineExpertsCuda {
  const float* y = nullptr;                                 // [n_pairs, hidden] in order of the pairs
  const std::int32_t *slots = nullptr, *experts = nullptr;  // [n, n_used]
  const float* shares = nullptr;                            // [n, n_used]
  std::int32_t n_used = 0, hidden = 0;
  float* residual = nullptr;  // [n, hidden]
  float* partial = nullptr;   // [n, hidden]: the sum alone, in place of `residual`; or null
  // Of the next norm, as in SkinnyGemmResidual with one part, for n <= kSkinnyRows; null: not wanted.
  const float* norm_weight = nullptr;
  void* x_next = nullptr;
  float* sums = nullptr;
};
void combine_experts_cuda(const CombineExpertsCuda& c, std::int32_t n, const CudaContext& context);

}  // namespace mneme
