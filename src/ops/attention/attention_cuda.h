// Attention on the device over keys and values that lie in pages. attention.h is the specification; every pointer here
// is device memory. Groups of 1 to 16 query heads.
//
// Numerics  products on tensor cores in the cache's type (q and the probabilities are rounded to it), sums and softmax
//           in f32.
// NaN       a NaN in a score gives NaN in that row and head alone.
// Async     enqueues; allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/kernels/cuda_context.h"
#include "src/kernels/kv_tables_cuda.h"

namespace mneme {

// Head sizes that attention is built for: 64 and 128, others of 80, 96 and 256 by an option of the build.
std::span<const std::int32_t> attention_head_dims_cuda();
// Errors  kUnsupported, with what there is, unless the kernels take this shape.
void expect_attention_shape_cuda(std::int32_t head_dim, std::int32_t group);

// Tables of slots of which some are being filled, by recall_units_cuda with SlotRows::tickets right before: a KV head's
// list is read once listed_for has the row's ticket, entries with kOnItsWay are followed once arrived_for has. Pages.
struct ArrivingSlots {
  const std::int32_t* tickets = nullptr;  // [n]; null: everything is there when the kernels before this one have ended
  const std::int32_t *listed_for = nullptr, *arrived_for = nullptr;  // as KvSlots has them
};

// One query row of each of n sequences. A row attends the first `lengths` tokens of its tables: all of a sequence, or
// whatever pages a selection put there. The work is cut into equal stretches of pages, one a block, whatever the
// lengths; the last block that comes to a (row, KV head) merges its stretches, or all of its blocks together do.
//
//   q        [n, heads * D] bf16, after RoPE
//   slots    [n] i32: sequence of `tables`
//   lengths  [n (, KV heads)] i32, strides in elements; 0: out = 0, lse = -inf
//   begins   [n] i32: tokens before that are left out, in place of `window`; or null
//   log_weights  [n, KV heads, log_weight_stride] f32, one a token, added to its score; or null
//   out      [n, heads * D] bf16
//   lse      [n, heads] f32 natural logarithm, or null
//
// Requires  the newest token's page is a sequence's last one: the kernel before this one may write it. All others, the
//           tables and the lengths are there before the first of the kernels that overlap (LaunchOrder) begins: this
//           one reads them before it waits.
struct DecodeAttentionCuda {
  const void* q = nullptr;
  const std::int32_t* slots = nullptr;
  const std::int32_t* lengths = nullptr;
  std::int32_t length_stride = 1, length_head_stride = 0;
  const std::int32_t* begins = nullptr;
  std::int32_t page_ring = 0;  // > 0: page p is entry p % page_ring of its table
  const float* log_weights = nullptr;
  std::int64_t log_weight_stride = 0;
  void* out = nullptr;
  float* lse = nullptr;
  std::int32_t n = 0, n_heads = 0;
  std::int32_t window = 0;  // > 0: the last `window` tokens alone
  float scale = 0;
  bool tables_late = false;      // the kernels before this one write the tables (and any page) too: wait for them first
  bool lengths_early = false;    // .. but not the lengths (and begins): pages are counted before
  ArrivingSlots arriving;        // with both of these
  std::byte* scratch = nullptr;  // decode_attention_scratch_bytes(), cleared to 0 before the first use
};
std::size_t decode_attention_scratch_bytes(std::int32_t n, std::int32_t n_kv_heads, std::int32_t head_dim);
void attend_decode_cuda(const DecodeAttentionCuda& a, const KvTables& tables, std::int32_t layer,
                        const CudaContext& context);

// n_rows new tokens of one sequence, whose keys and values are in its pages already. Row i stands at first + i and
// attends everything up to there (with a window: of that, the last `window`).
//
//   q    [n_rows, heads * D] bf16, after RoPE
//   out  [n_rows, heads * D] bf16
//   lse  [n_rows, heads] f32, or null
struct PrefillAttentionCuda {
  const void* q = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  std::int32_t slot = 0, first = 0, n_rows = 0, n_heads = 0;
  std::int32_t window = 0;
  float scale = 0;
};
void attend_prefill_cuda(const PrefillAttentionCuda& a, const KvTables& tables, std::int32_t layer,
                         const CudaContext& context);

// Tokens [0, n_tokens) of one sequence and layer, out of their pages: [KV heads, n_tokens, 2 D], as pages have them.
void gather_kv_cuda(const KvTables& tables, std::int32_t layer, std::int32_t slot, std::int32_t n_tokens, void* out,
                    const CudaContext& context);

}  // namespace mneme
