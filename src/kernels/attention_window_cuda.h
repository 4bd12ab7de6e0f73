// Attention of a prompt's rows that is windowed, on the device over pages: window_attention.h is the specification.
// All windows of a chunk in one launch.
//
// A row at position p of a block of rows attends
//
//     sinks     [0, sink)                    by far_q     where the block says so
//     selected  units of 32 tokens           by far_q     of the block's window
//     middle    [base, p - recent]           by far_q     where the block says so
//     near      [base, p], or of that the last `recent`   by q
//
// Numerics, NaN  as attention_cuda.h.   Async  enqueues; allocates nothing.
#pragma once

#include <cstdint>

#include "src/kernels/cuda_context.h"
#include "src/kernels/kv_tables_cuda.h"

namespace mneme {

inline constexpr std::int32_t kWindowBlockRows = 128;

// Rows that one block of threads takes, all of one window.
struct WindowBlock {
  std::int32_t row = 0, n_rows = 0;  // of the chunk; at most kWindowBlockRows
  std::int32_t window = 0;           // number in the chunk: whose selection
  std::int32_t base = 0;
  std::int32_t sinks = 0, middle = 0, slides = 0;  // 0 or 1
};

//   q, far_q, out  [n_rows, heads * D] bf16; far_q as q where nothing is seen from elsewhere
//   blocks         [n_blocks]
//   units          [windows][unit_stride] i32 ascending, n_units [windows] i32; or null: nothing is selected
//   far            where sinks, units and the middle lie; near: the others, page p at entry p % near_ring, or p
struct WindowAttentionCuda {
  const void *q = nullptr, *far_q = nullptr;
  void* out = nullptr;
  const WindowBlock* blocks = nullptr;
  std::int32_t n_blocks = 0;
  const std::int32_t *units = nullptr, *n_units = nullptr;
  std::int32_t unit_stride = 0;
  KvTables far, near;
  std::int32_t far_slot = 0, far_layer = 0, near_slot = 0, near_layer = 0, near_ring = 0;
  std::int32_t first = 0, n_heads = 0;  // position of the chunk's first row
  std::int32_t sink = 0, recent = 0;
  bool dense = false;  // rows attend everything, as blocks with base 0, a middle, and near tokens that slide
  float scale = 0;
};
void attend_windows_cuda(const WindowAttentionCuda& a, const CudaContext& context);

}  // namespace mneme
