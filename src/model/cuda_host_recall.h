// Recall as it is done where the device has no gather of its own: what was chosen comes to the host, which keeps the
// tables of slots and asks for a copy of every page that is missing, while the step waits. For measuring what
// recall_units_cuda gains (`mneme bench decode --recall`).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/cache/sequence_cache.h"
#include "src/device/memory.h"
#include "src/device/stream.h"
#include "src/kernels/kv_slots_cuda.h"

namespace mneme {

// kRecallNames of bench.h are in this order.
enum class RecallBy : std::int32_t {
  kMerged,      // by the device, and pages that are there are attended meanwhile
  kGather,      // by the device, before attention begins: of tokens and clusters always, if not by the host
  kCopies,      // a copy for each page and KV head
  kBatch,       // these in one call
  kTokenMajor,  // a copy for each, of 32 pieces that lie as far apart as they would in pages of all KV heads. What
                // comes is something else than the page: for measuring with random content alone
  // Through a buffer on the device, out of which a kernel puts the pages into their slots, where systems turn them from
  // the host's layout to the device's.
  kStaged,       // one buffer: a KV head's pages come when the head before is done
  kStagedTwice,  // two: they come while the head before is put away
};
constexpr bool by_host(RecallBy by) {
  return by != RecallBy::kGather && by != RecallBy::kMerged;
}

class CudaHostRecall {
 public:
  // slot_layers' states, for `slots`.
  explicit CudaHostRecall(const KvSlots& slots);

  struct Row {
    const SequenceCache* cache = nullptr;
    SlotRules rules;
    std::int32_t place = -1;
    bool anew = false;  // its slots were filled since the last step
  };
  // After choose_pages_cuda(kNow) of the same rows, whose schedule is kEveryStep: waits for it, and enqueues what
  // recall_units_cuda would do.
  void recall(std::span<const Row> rows, RecallBy by, std::int32_t layer, std::int32_t slot_layer,
              const Stream& stream);

  // What was counted for a place, as KvSlots::counts.
  const SlotCounts& counts(std::int32_t slot_layer, std::int32_t place) const {
    return counts_[static_cast<std::size_t>(slot_layer * slots_.n_places + place)];
  }

 private:
  struct Head {
    std::vector<std::int32_t> page_of, used_at;  // by slot of the third kind
  };
  void take(const Row& row, std::int32_t layer, std::int32_t slot_layer, std::int32_t kv_head);
  void bring_staged(std::size_t n_buffers, const Stream& stream);

  KvSlots slots_;
  std::vector<Head> heads_;  // as slots' indices
  std::vector<SlotCounts> counts_;
  PinnedBuffer chosen_, listed_;  // [places][KV heads][max_listed]; [slot layers] of them
  std::vector<CopyRequest> copies_;
  std::vector<std::size_t> ends_;  // of the copies of each KV head of each row
  std::vector<std::int32_t> missing_, free_;
  struct Staging {
    DeviceBuffer pages;
    Event arrived, free;
  };
  std::vector<Staging> staging_;  // made when first asked for
  Stream copying_;
};

}  // namespace mneme
