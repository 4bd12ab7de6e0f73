// Append: the queries, keys and values of a step's tokens, as a GEMM made them, become rotated queries and stored keys
// and values. rope.h and kv_run.h (store_kv) are the specifications. All pointers are device memory.
#pragma once

#include <cstdint>

#include "src/cuda/context.h"
#include "src/kv/kv_tables_cuda.h"
#include "src/offload/device_cache_cuda.h"

namespace mneme {

// The last tokens of every sequence in a second copy: page p of sequence slot i is entry p % pages in layer `layer`.
struct KeyRing {
  KvTables tables;
  const std::int32_t* seq_slots = nullptr;  // [n], by row; -1: none
  std::int32_t layer = 0, pages = 0;
};

// Prepares rows of q, k and v for attention: bias, per-head norm (qwen3) before or behind RoPE, RoPE. Writes q to
// q_out, k and v to the pages of the row's sequence, or where `store` says. With cache slots it also adds the key to
// the box of the open page (if units have boxes), writes the cosine of each head's query with that of the previous
// step, and evaluates a gate by cosines (src/selection/gate/gate.h).
//
//   qkv [n, (heads + 2 KV heads) * D] f32 or bf16; q_out [n, heads * D] bf16
//   positions [n]; slots [n]: sequences of `tables`, -1: the row stores nothing; null: all rows are of the first one
//
// Requires  D up to 256; at most 16 query heads a KV head.
// Async     enqueues.
struct QkvRows {
  const void* qkv = nullptr;
  bool qkv_bf16 = false;
  const float* bias = nullptr;                       // [(heads + 2 KV heads) * D], or null
  const float *q_norm = nullptr, *k_norm = nullptr;  // [D], or null
  bool norm_behind = false;                          // their weights apply to rotated values; not with pre_rope_keys
  float norm_eps = 0;
  const float* angles = nullptr;  // [n, D / 2] of (cos, sin)
  bool neighbours = false;        // RopePairs::kNeighbours
  float query_scale = 1;          // of every query
  // mistral3: a query at position p is multiplied by 1 + temperature ln(1 + floor(p / temperature_context)).
  float temperature = 0;
  std::int32_t temperature_context = 1;
  const std::int32_t *positions = nullptr, *slots = nullptr;
  std::int32_t n = 0, n_heads = 0;
  SlotStore store;
  // For sequences with remapped positions: remote_q [n, heads * D] bf16 is q rotated by these angles instead.
  const float* remote_angles = nullptr;
  void* remote_q = nullptr;
  // Stores keys before RoPE, scaled by key_scale (RopeTable::scale at position 0), and rotated in `local`.
  bool pre_rope_keys = false;
  float key_scale = 1;
  KeyRing local;  // if it has pages: the row's key and value are stored there too
};
void store_qkv_cuda(const QkvRows& rows, const KvTables& tables, std::int32_t layer, void* q_out,
                    const CudaContext& context);

}  // namespace mneme
