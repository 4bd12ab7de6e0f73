// Keys that were stored before RoPE, turned on the device to where they stand. turn_keys.h is the specification; here
// angles are made on the way, in f64.
#pragma once

#include <cstdint>

#include "src/kernels/cuda_context.h"
#include "src/kernels/kv_tables_cuda.h"

namespace mneme {

// Tokens [begin, end) of one sequence, in layers [0, n_layers) of both tables, all KV heads: token p of `from` goes to
// token p % (32 ring) of `to`, whose tables have `ring` pages.
//   inv_freq  [D / 2] f64 on the device
// Rounding  angles to f32, turned in f32, rounded to nearest even once more; values are copied. NaN goes through.
// Async     enqueues.
struct TurnKeysCuda {
  KvTables from, to;
  std::int32_t from_slot = 0, from_layer = 0, to_slot = 0, to_layer = 0;  // of the first layer
  std::int32_t from_layer_step = 1, to_layer_step = 1;
  std::int32_t n_layers = 1, begin = 0, end = 0, ring = 0;
  const double* inv_freq = nullptr;
  bool neighbours = false;  // RopePairs::kNeighbours
};
void turn_keys_cuda(const TurnKeysCuda& t, const CudaContext& context);

}  // namespace mneme
