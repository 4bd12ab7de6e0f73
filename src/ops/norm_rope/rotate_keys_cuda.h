// Rotates pre-RoPE keys on the device to their own positions. rotate_keys.h is the specification; angles are computed
// in the kernel, in f64.
#pragma once

#include <cstdint>

#include "src/cuda/context.h"
#include "src/kv/kv_tables_cuda.h"

namespace mneme {

// Tokens [begin, end) of one sequence, in layers [0, n_layers) of both tables, all KV heads: token p of `from` is
// written to token p % (32 ring) of `to`, whose tables have `ring` pages.
//   inv_freq  [D / 2] f64 on the device
// Rounding  angles to f32, rotation in f32, then round to nearest even; values are copied. NaN propagates.
// Async     enqueues.
struct RotateKeysCuda {
  KvTables from, to;
  std::int32_t from_slot = 0, from_layer = 0, to_slot = 0, to_layer = 0;  // of the first layer
  std::int32_t from_layer_step = 1, to_layer_step = 1;
  std::int32_t n_layers = 1, begin = 0, end = 0, ring = 0;
  const double* inv_freq = nullptr;
  bool neighbours = false;  // RopePairs::kNeighbours
};
void rotate_keys_cuda(const RotateKeysCuda& t, const CudaContext& context);

}  // namespace mneme
