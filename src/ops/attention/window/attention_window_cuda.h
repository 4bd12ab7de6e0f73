// Windowed attention of prompt rows, on the device over pages; window_attention.h is the specification. One launch for
// all windows of a chunk.
//
// A row at position p attends
//
//      sinks     [0, sink)                        by remote_q   where its block has sinks
//      selected  units of 32 tokens               by remote_q   of its block's window
//      middle    [base, p - recent]               by remote_q   where its block has a middle
//      local     [base, p], or its last `recent`  by q
//
// Numerics, NaN  as attention_cuda.h.   Async  enqueues; allocates nothing.
#pragma once

#include <cstdint>

#include "src/cuda/context.h"
#include "src/kv/kv_tables_cuda.h"

namespace mneme {

inline constexpr std::int32_t kWindowBlockRows = 128;

// Rows of one thread block, all of one window.
struct WindowBlock {
  std::int32_t row = 0, n_rows = 0;  // rows of the chunk; at most kWindowBlockRows
  std::int32_t window = 0;           // index in the chunk: whose selection
  std::int32_t base = 0;
  std::int32_t sinks = 0, middle = 0, slides = 0;  // 0 or 1
};

// Which sequence and layer of its tables a call reads.
struct SlotOfTables {
  std::int32_t slot = 0, layer = 0;
};

//    q, remote_q, out  [n_rows, heads * D] bf16; remote_q = q where no positions are remapped
//    blocks         [n_blocks]
//    units          [windows][unit_stride] i32 ascending, n_units [windows] i32; or null: nothing is selected
//    remote         tables of sinks, units and middle
//    local          tables of the local part: page p is entry p % local_ring, or p where local_ring is 0
struct WindowAttentionCuda {
  const void *q = nullptr, *remote_q = nullptr;
  void* out = nullptr;
  const WindowBlock* blocks = nullptr;
  std::int32_t n_blocks = 0;
  const std::int32_t *units = nullptr, *n_units = nullptr;
  std::int32_t unit_stride = 0;
  KvTables remote, local;
  SlotOfTables remote_at, local_at;
  std::int32_t local_ring = 0;
  std::int32_t first = 0, n_heads = 0;  // position of the chunk's first row
  std::int32_t sink = 0, recent = 0;
  bool dense = false;  // rows attend everything, as blocks with base 0, a middle, and a local part that slides
  float scale = 0;
};
void attend_windows_cuda(const WindowAttentionCuda& a, const CudaContext& context);

}  // namespace mneme
