// Attention over two sets of tokens, made one: what softmax over both gives, from what it gave for each.
#pragma once

#include <cstdint>

#include "src/kernels/cuda_context.h"

namespace mneme {

// One set's result for rows of all heads. All pointers are device memory.
//   out  [n, heads * D] bf16
//   lse  [n, heads] f32 natural logarithm; -inf: the set was empty, and its `out` does not count
struct AttentionPartCuda {
  const void* out = nullptr;
  const float* lse = nullptr;
};

// out [n, heads * D] bf16: each part by its share of the sum; 0 where both are empty.   D a multiple of 16.
// NaN  in an lse: the head's row.   Async  enqueues.
void merge_attention_cuda(const AttentionPartCuda& a, const AttentionPartCuda& b, std::int32_t n, std::int32_t n_heads,
                          std::int32_t head_dim, void* out, const CudaContext& context);

}  // namespace mneme
