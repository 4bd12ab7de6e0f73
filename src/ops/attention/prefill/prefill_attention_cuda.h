// Prefill attention of a chunk, by the kernels that this build and device have: a library's where its thread blocks
// fill the device, split-KV for the rows that remain.
//
// A library's kernel is about twice as fast as attend_prefill_cuda on Hopper, but a thread block reads the whole
// context for 128 rows of one head: a chunk of 32 rows, or the last 32 of 544, takes as long as 512. At 50,000 tokens
// that is 0.7 ms a layer. Rows beyond whole waves of it are attend_prefill_cuda's, whose time is that of their bytes
// and products.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/memory.h"
#include "src/ops/attention/attention_cuda.h"

namespace mneme {

// A library's prefill kernel: the backend registered by a build that has its headers.
struct PrefillLibrary {
  // Whether it has a kernel for this head size on the current device.
  bool (*takes)(std::int32_t head_dim);
  // kv [KV heads, tokens_a_head, 2 D] bf16, contiguous; no window, log-sum-exp or masks. Async: enqueues.
  void (*attend)(const PrefillAttentionCuda& a, const KvTables& tables, const std::byte* kv, std::int64_t tokens_a_head,
                 const CudaContext& context);
};

// Rows of a chunk that a library with tiles of 128 rows of one head attends; the others are split-KV's. Whole waves of
// thread blocks, and a last wave that is at least half full.
std::int32_t library_rows(std::int32_t n_rows, std::int32_t n_heads, std::int32_t n_sms);

class PrefillAttention {
 public:
  // Device bytes that prepare() allocates at most. contiguous: callers have contiguous keys and values.
  static std::int64_t bytes(std::int32_t n_kv_heads, std::int32_t head_dim, std::int64_t max_context, bool contiguous);
  // Allocates scratch memory and, unless `contiguous`, room for one layer of one sequence, which the library needs in
  // one piece. Errors  kResource.
  //   batch_invariant  one kernel for all rows and no splits: a row has the same bits in every chunk that begins at a
  //                  multiple of 128 tokens
  void prepare(const KvTables& tables, std::int64_t max_context, bool contiguous, bool batch_invariant);

  // As attend_prefill_cuda. Enqueues; requires prepare().
  void attend(const PrefillAttentionCuda& a, const KvTables& tables, std::int32_t layer,
              const CudaContext& context) const;
  // The same where layer 0 of sequence `a.slot` in `tables` is also kv [KV heads, tokens_a_head, 2 D] in bf16.
  void attend_contiguous(const PrefillAttentionCuda& a, const KvTables& tables, const std::byte* kv,
                         std::int64_t tokens_a_head, const CudaContext& context) const;
  // Rows of `a` that the library attends; 0: there is none, or it lacks what `a` asks for.
  static std::int32_t by_library(const PrefillAttentionCuda& a, const KvTables& tables);

 private:
  std::int32_t library_part(const PrefillAttentionCuda& a, const KvTables& tables) const {
    return batch_invariant_ ? 0 : by_library(a, tables);
  }
  void attend_rest(PrefillAttentionCuda a, const KvTables& tables, std::int32_t layer, std::int32_t done,
                   const CudaContext& context) const;

  DeviceBuffer kv_, scratch_;
  bool batch_invariant_ = false;
};

}  // namespace mneme
