// How long sequences may be and how many blocks the pool gets: a pure function of options, model and machine.
#pragma once

#include <cstdint>

#include "mneme/options.h"
#include "src/kv/page_pool.h"

namespace mneme {

struct KvPlan {
  std::int64_t context = 0;   // tokens
  std::int64_t n_blocks = 0;  // of the pool
  // Bytes of them that lie in memory, where the others lie in a file; 0: all of them do.
  std::int64_t resident_bytes = 0;
};

// Blocks over all layers and KV heads that hold n tokens.
std::int64_t blocks_of(const KvShape& shape, std::int64_t n_tokens);
// Those that a sequence of n tokens holds at most where some layers keep a window.
std::int64_t blocks_of(const KvShape& shape, const KvWindows& windows, std::int64_t n_tokens);
DType kv_dtype_of(const EngineOptions& options);

// options.kv_memory_bytes > 0: that much. 0: one sequence of the context, and a page for every sequence that may run
// beside it, so that forks of the longest sequence can copy the page they share, and their state. options.context > 0: that, or an
// error. 0: what the model was made for, or less where the memory has not room for it.
//
//   available_bytes  memory of the machine for keys and values; looked at when kv_memory_bytes is 0
//
// options.kv_spill adds room in a file. windows: of layers that keep no more than these; with none, all keep everything.
//
// Errors  kOption: values out of range, a context longer than the model's. kResource: no room for one sequence of the
// context. kUnsupported: a file on a device.
KvPlan plan_kv(const KvShape& shape, const EngineOptions& options, std::int64_t model_context,
               std::int64_t available_bytes, const KvWindows& windows = {});

}  // namespace mneme
