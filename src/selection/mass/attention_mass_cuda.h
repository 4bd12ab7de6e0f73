// How much attention tokens received, on the device (attention_mass.h is the specification), and the rule that looks at
// its norm. Every pointer here is device memory.
//
// Numerics  products on tensor cores in the cache's type (q is rounded to it), probabilities and sums in f32. The order
//           of the sums is one for every launch.
// Async     enqueues; allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/kernels/attention_mass.h"
#include "src/kernels/cuda_context.h"
#include "src/kernels/kv_tables_cuda.h"

namespace mneme {

// The last n_rows rows of each of n sequences.
//
//   q        [n, n_rows, heads * D] bf16, after RoPE
//   slots    [n] i32: sequence of `tables`; null: the first one
//   lengths  [n] i32: tokens of the sequence, the rows' own last; 0: nothing is done
//   lse      [n, n_rows, heads] f32
//   mass     [n, KV heads (kGroup) or heads, mass_stride] f32 by slot of the head's table, 0 where there is no token,
//            written; what would be beyond mass_stride is left out. Sequences sequence_stride apart
struct AttentionMassCuda {
  const void* q = nullptr;
  const std::int32_t* slots = nullptr;
  const std::int32_t* lengths = nullptr;
  float* lse = nullptr;
  float* mass = nullptr;
  std::int64_t mass_stride = 0, sequence_stride = 0;
  std::int32_t n = 0, n_rows = 0, n_heads = 0;
  std::int32_t max_tokens = 0;  // that a sequence has at most: how many blocks of threads share the work
  float scale = 0;
  float* scores = nullptr;
  MassBy by = MassBy::kGroup;
};
void attention_mass_cuda(const AttentionMassCuda& a, const KvTables& tables, std::int32_t layer,
                         const CudaContext& context);

// What `lse` of it has to be, for rows whose attention did not return it. Requires  n 1.
//
//   scores  of one row, [heads, mass_stride] f32 as `mass`: q . k * scale / ln 2, -inf where there is no token; or null
std::size_t attention_lse_scratch_bytes(std::int32_t n_rows, std::int32_t n_heads, std::int32_t max_tokens);
void attention_lse_cuda(const AttentionMassCuda& a, const KvTables& tables, std::int32_t layer, std::byte* scratch,
                        const CudaContext& context);

// norm_suffix() of keep_rule.h, which is the specification: `result` [1] i32 gets the first token of the suffix.
//
//   mass  [n_heads, stride] f32, of n tokens; with lse [n_heads] the scores that attention_lse_cuda() left
//
// Numerics  f64; the same sums as norm_suffix() in another order.   NaN  as there.
struct NormSuffixCuda {
  const float* mass = nullptr;
  const float* lse = nullptr;
  std::int64_t stride = 0;
  std::int32_t n_heads = 0, n = 0;
  float loss = 0;
  std::int32_t sink = 0;
  bool sink_in_norm = false;
  std::int32_t* result = nullptr;
  std::byte* scratch = nullptr;  // norm_suffix_scratch_bytes()
};
std::size_t norm_suffix_scratch_bytes(std::int32_t n_heads, std::int32_t n);
void norm_suffix_cuda(const NormSuffixCuda& a, const CudaContext& context);

}  // namespace mneme
