// Attention on the device over paged keys and values; attention.h is the specification. All pointers are device memory.
// GQA groups of 1 to 16 query heads.
//
// Numerics  mma in the cache's type (q and probabilities are rounded to it); sums and softmax in f32.
// NaN       a NaN score gives NaN in that row and head alone.
// Async     enqueues; allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/cuda/context.h"
#include "src/kv/kv_tables_cuda.h"

namespace mneme {

// Head sizes that this build supports: 64 and 128; 80, 96 and 256 by a build option.
std::span<const std::int32_t> attention_head_dims_cuda();
// Errors  kUnsupported unless the kernels support this shape; the message lists what is supported.
void expect_attention_shape_cuda(std::int32_t head_dim, std::int32_t group);
// expect_attention_shape_cuda() for keys and values in 8 bits: heads of 64 and 128.
void expect_eight_bit_cuda(std::int32_t head_dim);

// Page tables whose cache slots recall_units_cuda (with SlotRows::tickets) is still filling. A KV head's list is valid
// once listed_for equals the row's ticket; entries with kInFlight are valid once arrived_for does. Units of pages only.
struct ArrivingSlots {
  const std::int32_t* tickets = nullptr;  // [n]; null: everything has arrived when preceding kernels have ended
  const std::int32_t *listed_for = nullptr, *arrived_for = nullptr;  // as in DeviceCache
};

// One query row for each of n sequences. A row attends the first `lengths` tokens of its page tables: a whole sequence,
// or the pages of a selection.
//
// Split-KV: the pages of all rows and KV heads are cut into equal KV splits, one per thread block, whatever the
// lengths; by own_splits each (row, KV head) into up to 16. The last thread block to finish a (row, KV head) merges its splits by LSE, or all of its thread blocks merge
// together.
//
//   q        [n, heads * D] bf16, post-RoPE
//   slots    [n] i32: the row's sequence in `tables`
//   lengths  [n (, KV heads)] i32, strides in elements; 0: out = 0, lse = -inf
//   begins   [n] i32: tokens before this are skipped (instead of `window`); or null
//   log_weights  [n, KV heads, log_weight_stride] f32, one per token, added to its score; or null
//   out      [n, heads * D] bf16
//   lse      [n, heads] f32, natural logarithm; or null
//
// Requires  the newest token's page is the last of its sequence: the preceding kernel may write it. All other pages,
//           the tables and the lengths are written before the first of the overlapping kernels (LaunchOrder) starts:
//           this kernel reads them before grid_dependency_wait().
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
  std::int32_t window = 0;  // > 0: only the last `window` tokens
  float scale = 0;
  bool tables_late = false;    // the preceding kernels also write the tables and any page: wait before reading them
  bool lengths_early = false;  // .. but not lengths and begins: count pages before waiting
  ArrivingSlots arriving;      // requires both of these
  // [layers][sequence slots][KV heads] i32 as the tables, written by the preceding kernels (tables_late, lengths not
  // early): heads with 0 keep their `out` and lse; or null. Pages alone.
  const std::int32_t* only = nullptr;
  // Splits of a (row, KV head) by its own pages alone: its results have the same bits whatever other rows there are.
  // Tables of single tokens are then attended a row at a time.
  bool own_splits = false;
  std::byte* scratch = nullptr;  // decode_attention_scratch_bytes(), zeroed before the first use
};
std::size_t decode_attention_scratch_bytes(std::int32_t n, std::int32_t n_kv_heads, std::int32_t head_dim);
void attend_decode_cuda(const DecodeAttentionCuda& a, const KvTables& tables, std::int32_t layer,
                        const CudaContext& context);

// n_rows new tokens of one sequence, whose keys and values are in its pages already. Row i is at position first + i and
// attends all tokens up to itself (with a window: only the last `window` of them).
//
//   q    [n_rows, heads * D] bf16, post-RoPE
//   out  [n_rows, heads * D] bf16
//   lse  [n_rows, heads] f32, or null
//
// A tile of 128 (row, query head) pairs of one KV head shares the pages that it attends. Where tiles are fewer than the
// device's SMs, each is cut into KV splits, which a second launch merges by LSE.
struct PrefillAttentionCuda {
  const void* q = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  std::int32_t slot = 0, first = 0, n_rows = 0, n_heads = 0;
  std::int32_t window = 0;
  float scale = 0;
  std::byte* scratch = nullptr;  // prefill_attention_scratch_bytes(); null: no splits
};
std::size_t prefill_attention_scratch_bytes(std::int32_t head_dim);
void attend_prefill_cuda(const PrefillAttentionCuda& a, const KvTables& tables, std::int32_t layer,
                         const CudaContext& context);

// Gathers tokens [0, n_tokens) of one sequence and layer from their pages into [KV heads, tokens_a_head, 2 D], in the
// cache's dtype; 8 bits as bf16, as readers see them (kv_quant.h).
void gather_kv_cuda(const KvTables& tables, std::int32_t layer, std::int32_t slot, std::int32_t n_tokens,
                    std::int64_t tokens_a_head, void* out, const CudaContext& context);

}  // namespace mneme
