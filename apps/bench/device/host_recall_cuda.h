// Recall driven by the host, as systems without a device-side gather do it: the selection is copied to the host, which
// maintains the slot tables and issues a copy for every missing page while the step waits. A baseline for
// recall_units_cuda (`mneme bench decode --recall`).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/cuda/memory.h"
#include "src/cuda/stream.h"
#include "src/model/cuda/retrieval/page_recall.h"

namespace mneme {

// Same order as kRecallNames of bench.h.
enum class RecallBy : std::int32_t {
  kMerged,      // RecallForm::merged
  kGather,      // by the device, before attention starts; always for tokens and clusters, unless by the host
  kCopies,      // one copy per page and KV head
  kBatch,       // those copies in one batched call
  kTokenMajor,  // one copy per page of 32 pieces, spaced as in pages of all KV heads. The fetched
                // bytes are not the page: for benchmarks with random content only.
  // Through a staging buffer on the device, from which a kernel scatters pages to their cache slots, as systems do that
  // convert the host's layout to the device's.
  kStaged,       // one buffer: a KV head's pages are fetched after the previous head is done
  kStagedTwice,  // two buffers: they are fetched while the previous head is scattered
};
// What the forward pass runs in this form.
RecallForm recall_form(RecallBy by);

class CudaHostRecall : public PageRecall {
 public:
  // Manages slot_layers' state for `slots`.
  CudaHostRecall(const DeviceCache& cache, RecallBy by);
  void recall(std::span<const Row> rows, std::int32_t layer, std::int32_t slot_layer, const Stream& stream) override;
  const SlotCounts& counts(std::int32_t slot_layer, std::int32_t seq_slot) const override {
    return counts_[static_cast<std::size_t>(slot_layer * cache_.n_seq_slots + seq_slot)];
  }

 private:
  struct Head {
    std::vector<std::int32_t> page_of, last_used;  // by cache slot of the third kind
  };
  void take(const Row& row, std::int32_t layer, std::int32_t slot_layer, std::int32_t kv_head);
  void fetch_staged(std::size_t n_buffers, const Stream& stream);

  DeviceCache cache_;
  RecallBy by_;
  std::vector<Head> heads_;  // indexed as in DeviceCache
  std::vector<SlotCounts> counts_;
  PinnedBuffer selected_ids_, listed_;  // [seq slots][KV heads][max_listed]; [slot layers] of them
  std::vector<CopyRequest> copies_;
  std::vector<std::size_t> ends_;  // end of the copies of each KV head of each row
  std::vector<std::int32_t> missing_, free_;
  struct Staging {
    DeviceBuffer pages;
    Event arrived, free;
  };
  std::vector<Staging> staging_;  // allocated on first use
  Stream copying_;
};

}  // namespace mneme
