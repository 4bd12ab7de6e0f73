// Tables as kernels ask them.
#pragma once

#include "src/kernels/kv_tables_cuda.h"

namespace mneme::cuda {

// A head's first table entry.
__device__ __forceinline__ std::int64_t table_at(const KvTables& t, int layer, int sequence, int kv_head) {
  return sequence * t.sequence_stride + (static_cast<std::int64_t>(layer) * t.n_kv_heads + kv_head) * t.max_pages;
}
// How many slots fewer than positions a head has: its token at position p, if it is a new one, is in slot p - this.
__device__ __forceinline__ int shift_of(const KvTables& t, int layer, int sequence, int kv_head) {
  if (t.shifts == nullptr) return 0;
  return t.shifts[static_cast<std::int64_t>(sequence) * t.shift_stride + layer * t.n_kv_heads + kv_head];
}

}  // namespace mneme::cuda
