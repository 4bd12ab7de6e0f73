// Keeps, of what a decode row attends, the fewest tokens that hold a share p of each query head's softmax (Cutoff TopP).
//
//   score   a warp a listed token: exact scores of the group's query heads
//   keep    a thread block a KV head: softmax, threshold, weights for attention
//
// Numerics  f32 scores and weights, sums in f64. Ties at the threshold: all of them are kept.
// NaN       a KV head with a score that is not finite keeps everything.
// Async     enqueues; allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/offload/device_cache_cuda.h"

namespace mneme {

// The tokens are those that attention would read: of `tables`, in `tables_layer`.
//
//   q            [n, heads, D] bf16 on the device
//   lengths      [n]: tokens listed, with the row's own as the last
//   log_weights  [n, KV heads, stride] f32 out: 0 for a token that some query head of the KV head keeps, and for the last
//                one; -inf else. Rows with SelectionPlan::top_p of 1 or more, or that attend everything, keep all.
//   scratch      top_p_scratch_bytes()
struct KeepTopP {
  SlotRows rows;
  const void* q = nullptr;
  const std::int32_t* lengths = nullptr;
  KvTables tables;
  std::int32_t tables_layer = 0;
  float scale = 1;
  float* log_weights = nullptr;
  std::int64_t stride = 0;
  std::byte* scratch = nullptr;
};
std::size_t top_p_scratch_bytes(const DeviceCache& cache, std::int32_t n_rows, std::int64_t stride);
void keep_top_p_cuda(const KeepTopP& k, const DeviceCache& cache, std::int32_t slot_layer, const CudaContext& context);

}  // namespace mneme
