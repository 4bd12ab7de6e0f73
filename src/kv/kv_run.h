// Memory layout of keys and values: one [K: D | V: D] pair per token, pairs contiguous within a page; bf16, f16, or 8
// bits with two scales behind them (kv_quant.h).
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

// Whether keys and values of this type are codes with a scale a row.
inline bool is_eight_bit(DType kv_dtype) {
  return kv_dtype == DType::kInt8 || kv_dtype == DType::kFp8;
}
// Bytes of one head's [K | V] pair.
inline std::size_t kv_token_bytes(DType kv_dtype, std::int32_t head_dim) {
  return is_eight_bit(kv_dtype) ? std::size_t{2} * head_dim + 8 : std::size_t{4} * head_dim;
}

struct AttentionShape {
  std::int32_t group = 1;         // G, query heads per KV head: 1 to 16
  std::int32_t head_dim = 0;      // D, a multiple of 8, at most 256
  DType kv_dtype = DType::kBF16;  // or kF16, kInt8, kFp8
  float scale = 0.0f;             // 1 / sqrt(D), usually

  std::size_t token_bytes() const { return kv_token_bytes(kv_dtype, head_dim); }
  // The shape of what readers see: 8 bits are read as bf16. Index entries have this type too.
  AttentionShape wide() const {
    AttentionShape shape = *this;
    if (is_eight_bit(kv_dtype)) shape.kv_dtype = DType::kBF16;
    return shape;
  }
};

// Checks that G, D and the type are what AttentionShape says.
void check_attention_shape(const AttentionShape& shape);

// Writes one token's key and value as a [K | V] pair, rounded to nearest even.   k, v [D] f32
void store_kv(const float* k, const float* v, const AttentionShape& shape, std::byte* token);

}  // namespace mneme
