// Memory layout of keys and values: one [K: D | V: D] pair per token, bf16 or f16, pairs contiguous within a page.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/tensor/dtype.h"

namespace mneme {

// Tokens whose [K | V] pairs are contiguous.
struct KvRun {
  const std::byte* kv = nullptr;
  std::int32_t n_tokens = 0;
};

struct AttentionShape {
  std::int32_t group = 1;         // G, query heads per KV head: 1 to 16
  std::int32_t head_dim = 0;      // D, a multiple of 8, at most 256
  DType kv_dtype = DType::kBF16;  // or kF16
  float scale = 0.0f;             // 1 / sqrt(D), usually

  std::size_t token_bytes() const { return std::size_t{4} * head_dim; }
};

// Checks that G, D and the type are what AttentionShape says.
void check_attention_shape(const AttentionShape& shape);

// Writes one token's key and value as a [K | V] pair, rounded to nearest even.   k, v [D] f32
void store_kv(const float* k, const float* v, const AttentionShape& shape, std::byte* token);

}  // namespace mneme
