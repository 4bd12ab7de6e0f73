// Prefill attention by a library's kernel for the device at hand, where this build has one: the contract of
// attend_prefill_cuda, about twice as fast on Hopper. It wants a sequence's keys and values in one piece, so one
// layer's are copied out of their pages first (under 1 % of the attention's time).
#pragma once

#include <cstdint>

#include "src/device/memory.h"
#include "src/kernels/attention_cuda.h"

namespace mneme {

class LibraryAttention {
 public:
  // Bytes that prepare() will take on this device.
  static std::int64_t bytes(std::int32_t n_kv_heads, std::int32_t head_dim, std::int64_t max_context);
  // Takes room for one layer of one sequence. Errors  kResource.
  void prepare(std::int32_t n_heads, const KvTables& tables, std::int64_t max_context);
  // Enqueues, or returns false where it has no kernel for this (then attend_prefill_cuda does it): of sequences that
  // dropped tokens, and where the log-sum-exp is wanted, it has none.
  bool attend(const PrefillAttentionCuda& a, const KvTables& tables, std::int32_t layer, const CudaContext& context);
  // Where they are in one piece already: kv [KV heads, tokens_a_head, 2 D]; prepare() is not needed. `tables` says the
  // rest.
  bool attend_contiguous(const PrefillAttentionCuda& a, const KvTables& tables, const std::byte* kv,
                         std::int64_t tokens_a_head, const CudaContext& context);

 private:
  DeviceBuffer kv_;
};

}  // namespace mneme
