// Prefill attention by a library's kernel, where this build has one for the device. Same contract as
// attend_prefill_cuda, about twice as fast on Hopper. The kernel needs contiguous keys and values, so one layer's are
// gathered from their pages first (under 1 % of the attention's time).
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
  // kv [KV heads, tokens_a_head, 2 D] bf16, contiguous; `a` and `tables` as checked by attend_contiguous(). Async:
  // enqueues.
  void (*attend)(const PrefillAttentionCuda& a, const KvTables& tables, const std::byte* kv, std::int64_t tokens_a_head,
                 const CudaContext& context);
};

class LibraryAttention {
 public:
  // Device bytes that prepare() allocates.
  static std::int64_t bytes(std::int32_t n_kv_heads, std::int32_t head_dim, std::int64_t max_context);
  // Allocates room for one layer of one sequence. Errors  kResource.
  void prepare(std::int32_t n_heads, const KvTables& tables, std::int64_t max_context);
  // Enqueues and returns true, or returns false where the library has no kernel (use attend_prefill_cuda): for
  // sequences that dropped tokens, and where the log-sum-exp is wanted.
  bool attend(const PrefillAttentionCuda& a, const KvTables& tables, std::int32_t layer, const CudaContext& context);
  // The same for contiguous kv [KV heads, tokens_a_head, 2 D]; does not need prepare(). `tables` gives the shape.
  bool attend_contiguous(const PrefillAttentionCuda& a, const KvTables& tables, const std::byte* kv,
                         std::int64_t tokens_a_head, const CudaContext& context);

 private:
  DeviceBuffer kv_;
};

}  // namespace mneme
