// Page table lookups in kernels.
#pragma once

#include "src/kv/kv_tables_cuda.h"

namespace mneme::cuda {

__device__ __forceinline__ std::int64_t token_bytes(const KvTables& t) {
  return kv_token_bytes(t.codes, t.head_dim);
}
// Index of a head's first table entry.
__device__ __forceinline__ std::int64_t table_at(const KvTables& t, int layer, int sequence, int kv_head) {
  return sequence * t.sequence_stride + (static_cast<std::int64_t>(layer) * t.n_kv_heads + kv_head) * t.max_pages;
}
// Offset of dropped tokens: a new token at position p has table index p - shift.
__device__ __forceinline__ int shift_of(const KvTables& t, int layer, int sequence, int kv_head) {
  if (t.shifts == nullptr) return 0;
  return t.shifts[static_cast<std::int64_t>(sequence) * t.shift_stride + layer * t.n_kv_heads + kv_head];
}

}  // namespace mneme::cuda
