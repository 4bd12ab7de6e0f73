// Recall of pages by the host, in place of recall_units_cuda: what a benchmark compares with (apps/bench).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "src/cuda/stream.h"
#include "src/kv/sequence_cache.h"
#include "src/offload/device_cache_cuda.h"

namespace mneme {

class PageRecall {
 public:
  struct Row {
    const SequenceCache* cache = nullptr;
    SelectionPlan plan;
    std::int32_t seq_slot = -1;
    bool reset = false;  // its cache slots were filled since the last step
  };
  virtual ~PageRecall() = default;
  // Call after select_pages_cuda(kNow) of the same rows, with schedule kEveryStep: waits for it, and enqueues what
  // recall_units_cuda would do.
  virtual void recall(std::span<const Row> rows, std::int32_t layer, std::int32_t slot_layer, const Stream& stream) = 0;
  // Counters of a sequence slot, as DeviceCache::counts.
  virtual const SlotCounts& counts(std::int32_t slot_layer, std::int32_t seq_slot) const = 0;
};

// How missing units come: by the device, while hits are attended (`merged`: pages that are selected at every step) or
// before attention starts, or by the host.
struct RecallForm {
  bool merged = true;
  std::unique_ptr<PageRecall> (*by_host)(const DeviceCache&) = nullptr;
  bool operator==(const RecallForm&) const = default;
};

}  // namespace mneme
