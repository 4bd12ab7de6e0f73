// LSE merge: combines attention over two disjoint sets of tokens into attention over both, or with attention sinks.
#pragma once

#include <cstdint>

#include "src/cuda/context.h"

namespace mneme {

// Attention over one set, all heads. All pointers are device memory.
//   out  [n, heads * D] bf16
//   lse  [n, heads] f32, natural logarithm; -inf: the set is empty and its `out` is ignored
struct AttentionPartCuda {
  const void* out = nullptr;
  const float* lse = nullptr;
};

// out [n, heads * D] bf16: sum of the parts weighted by their share of exp(lse); 0 where both are empty. D % 16 == 0.
// NaN  in an lse: the head's row is NaN.   Async  enqueues.
void merge_attention_cuda(const AttentionPartCuda& a, const AttentionPartCuda& b, std::int32_t n, std::int32_t n_heads,
                          std::int32_t head_dim, void* out, const CudaContext& context);

// Adds an attention sink a head, a logit without a value, to attention whose parts are merged.
//   out [n, heads * D] bf16 and lse [n, heads] f32, in place; sinks [heads] f32, natural logarithms. D % 8 == 0, <= 256
struct SinkLogitsCuda {
  void* out = nullptr;
  float* lse = nullptr;
  const float* sinks = nullptr;
  std::int32_t n = 0, n_heads = 0, head_dim = 0;
};
void add_sinks_cuda(const SinkLogitsCuda& rows, const CudaContext& context);

}  // namespace mneme
