// What a benchmark or a test launches between the kernels of a step: outcomes of its own over those of the model, delays.
// A pass without an observer launches what it does anyway.
#pragma once

#include "src/kv/kv_tables_cuda.h"
#include "src/offload/device_cache_cuda.h"
#include "src/selection/layer/layer_select_cuda.h"

namespace mneme {

// Async  every function enqueues on the stream of its context, which may be captured in a graph.
class StepObserver {
 public:
  // The decode rows of a layer.
  struct Layer {
    const DeviceCache& cache;
    SlotRows rows;
    KvTables pages;                          // of the sequences
    std::int32_t layer = 0, slot_layer = 0;  // of the model, of `cache`
    bool by_layer = false;                   // all KV heads have one selection
    bool listed = false;                     // the selection has written CacheSlots::listed: no recall follows
  };

  virtual ~StepObserver() = default;
  // Before a selection, a recall or attention on any of a step's streams.
  virtual void before_launch(const CudaContext&) {}
  // Behind the kernel that stores the step's tokens (append_cuda.h) and writes cosines and the flags of gates by
  // cosines (Selections::cosine, flags), before any that reads them.
  virtual void after_append(const Layer&, const CudaContext&) {}
  // Behind a selection (Selections::ids, n, and flags of the other gates), before the recall.
  virtual void after_selection(const Layer&, SelectWhen, const CudaContext&) {}
  // Behind the selections of a prompt's windows (SelectWindows::units, n_units). first_row: the chunk's, in its prompt.
  virtual void after_windows(const SelectWindows&, std::int32_t /*first_row*/, const CudaContext&) {}
};

}  // namespace mneme
