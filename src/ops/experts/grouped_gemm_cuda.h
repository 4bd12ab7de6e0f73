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
  // [n_experts * n_out, k], k a multiple of 32, n_out of 8; w.columns [n_experts, k]: for gather_pairs_cuda() alone
  DeviceMatrix w;
  const float* bias = nullptr;  // [n_experts, n_out], or null
  void* y = nullptr;            // [n_pairs, n_out] in order of the pairs, bf16 or f32
  bool y_f32 = false;
  std::int32_t n_pairs = 0, n_experts = 0;
};
void grouped_gemm_cuda(const GroupedGemmCuda& g, const SortedPairs& pairs, const CudaContext& context);

// The gated product of w's rows, gate before up: (up + 1) g sigmoid(1.702 g), g = min(gate, limit), u = clamp(up, limit);
// where limit is 0, silu(gate) * up. g.y [n_pairs, n_out / 2] bf16; y_f32 is not looked at. n_out / 2 is a multiple of 8.
//   scales [rows of x]: what products are multiplied with before the bias, a deferred norm's; or null
void grouped_swiglu_cuda(const GroupedGemmCuda& g, const float* scales, float limit, const SortedPairs& pairs,
                         const CudaContext& context);

// x in the order of each pair's expert's columns (act-order): out [n_pairs, k] by slot, of rows of x as GroupedGemmCuda has
// them. Pairs of other experts than those that are sorted are left out.
//   experts [n_pairs], as sort_pairs_cuda() took them; columns [n_experts, k], of those that are sorted
void gather_pairs_cuda(const GroupedGemmCuda& g, const std::int32_t* experts, const SortedPairs& pairs, void* out,
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
  // The next norm, as in SkinnyGemmResidual with one part, for n <= kSkinnyRows; null: not wanted.
  const float* norm_weight = nullptr;
  void* x_next = nullptr;
  float* sums = nullptr;
};
void combine_experts_cuda(const CombineExpertsCuda& c, std::int32_t n, const CudaContext& context);

// For one row of x: grouped_gemm_cuda() and combine_experts_cuda() in one launch, y in registers. c.sums has
// combined_parts() parts.   Requires  n_pairs = n_used, x by slot, every pair's expert is here, x_next is wanted; c.y and
// c.partial are not looked at.
std::int32_t combined_parts(std::int32_t hidden);
void grouped_gemm_combined_cuda(const GroupedGemmCuda& g, const CombineExpertsCuda& c, const CudaContext& context);

}  // namespace mneme
