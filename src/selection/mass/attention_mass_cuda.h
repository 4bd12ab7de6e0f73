// Attention mass on the device (attention_mass.h is the specification), and ReFreeKV's norm rule. All pointers are
// device memory.
//
// Numerics  mma in the cache's type (q is rounded to it), probabilities and sums in f32. The summation order is fixed.
// Async     enqueues; allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/context.h"
#include "src/kv/kv_tables_cuda.h"
#include "src/selection/mass/attention_mass.h"

namespace mneme {

// The last n_rows rows of each of n sequences.
//
//   q        [n, n_rows, heads * D] bf16, post-RoPE
//   slots    [n] i32: the row's sequence in `tables`; null: the first one
//   lengths  [n] i32: tokens of the sequence, those of the rows last; 0: no work
//   lse      [n, n_rows, heads] f32
//   mass     [n, KV heads (kGroup) or heads, mass_stride] f32 out, by index in the head's table, 0 where no token is
//            stored; entries beyond mass_stride are not written. Row stride of sequences: sequence_stride
//   mass_rows  [n] i32: the sequence's row of `mass`; null: its own number
struct AttentionMassCuda {
  const void* q = nullptr;
  const std::int32_t* slots = nullptr;
  const std::int32_t* lengths = nullptr;
  float* lse = nullptr;
  float* mass = nullptr;
  const std::int32_t* mass_rows = nullptr;
  std::int64_t mass_stride = 0, sequence_stride = 0;
  std::int32_t n = 0, n_rows = 0, n_heads = 0;
  std::int32_t max_tokens = 0;  // longest sequence: determines the number of thread blocks
  float scale = 0;
  float* scores = nullptr;
  MassBy by = MassBy::kGroup;
};
void attention_mass_cuda(const AttentionMassCuda& a, const KvTables& tables, std::int32_t layer,
                         const CudaContext& context);

// Computes `lse` of `a`, for rows whose attention did not return it. Requires  n 1.
//
//   scores  of one row, [heads, mass_stride] f32 as `mass`: q . k * scale / ln 2, -inf where no token is; or null
std::size_t attention_lse_scratch_bytes(std::int32_t n_rows, std::int32_t n_heads, std::int32_t max_tokens);
void attention_lse_cuda(const AttentionMassCuda& a, const KvTables& tables, std::int32_t layer, std::byte* scratch,
                        const CudaContext& context);

// Adds a row's attention to sums over rows, element by element: a, a^2 and -a ln(a + 1e-10).
//
//   row                      [n] f32
//   sums, squares, entropy   [n] f32, added to
void add_moments_cuda(const float* row, std::int64_t n, float* sums, float* squares, float* entropy,
                      const CudaContext& context);

// norm_suffix() of keep_rule.h (the specification): writes the first token of the suffix to `result` [1] i32.
//
//   mass  [n_heads, stride] f32, of n tokens; with lse [n_heads]: the scores from attention_lse_cuda()
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
