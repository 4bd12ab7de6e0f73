// Device copies of the running sequences' page tables, updated incrementally.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/cuda/memory.h"
#include "src/kv/kv_tables_cuda.h"
#include "src/kv/sequence_cache.h"

namespace mneme {

class CudaTables {
 public:
  CudaTables(const KvShape& shape, std::byte* blocks, std::int32_t max_sequences, std::int64_t max_context);

  // Assigns a sequence slot to each sequence and updates its tables; sequences of the last call may lose theirs.
  // Enqueues on `stream`. Requires  earlier updates have completed.
  // Errors  kResource: no memory for the masks of stored tokens, at the first sequence that dropped some.
  void assign_slots(std::span<const SequenceCache* const> sequences, const Stream& stream,
                    std::span<std::int32_t> slots);
  // Drops on the device: allocates the masks, before the step whose sequences may drop is assigned its slots.
  // Errors  kResource.
  void take_masks(const Stream& stream);
  // The masks of a step's sequences that the device may clear bits of, from now on without the host's knowledge.
  std::uint32_t* masks() const { return masks_.as<std::uint32_t>(); }
  void expect_drops(std::int32_t slot) { seq_slots_[static_cast<std::size_t>(slot)].device_drops = true; }
  // Whether a slot has the tables of the sequence that had this revision.
  bool holds(std::int32_t slot, std::uint64_t revision) const {
    return seq_slots_[static_cast<std::size_t>(slot)].revision == revision;
  }
  // What the device has made of the masks of a head, [layer * KV heads + head]; then of all of them.
  void learn_masks(std::int32_t slot, std::int64_t head, std::span<const std::uint32_t> masks);
  void learned(std::int32_t slot) { seq_slots_[static_cast<std::size_t>(slot)].device_drops = false; }

  // For steps without dropped tokens; for all others.
  const KvTables& tables() const { return tables_; }
  const KvTables& ragged_tables() const { return ragged_; }
  std::size_t bytes() const { return entries_.size() + updates_.size() + masks_.size() + shifts_.size(); }

 private:
  // Device state of a head that dropped tokens: entries change in the middle, a few per step.
  struct HeadPages {
    std::vector<std::int32_t> blocks;
    std::vector<std::uint32_t> masks;
    std::int32_t shift = 0;
  };
  struct SeqSlot {
    std::uint64_t revision = 0;  // of the sequence with these tables; 0: none
    std::int32_t n_pages = 0;    // of that sequence
    std::int64_t last_used = 0;
    const SequenceCache* last = nullptr;  // the last sequence here: dropping changes the revision
    std::vector<HeadPages> heads;         // [layer * KV heads + head], where tokens were dropped; else empty
    bool device_drops = false;            // `heads` may have masks that are not the device's any more
  };
  std::int32_t find(const SequenceCache& sequence) const;
  std::int32_t free_seq_slot(const SequenceCache& sequence) const;
  void add_pages(const SequenceCache& sequence, std::int32_t slot, const Stream& stream);
  void forget_drops(std::int32_t slot, const Stream& stream);
  void reset_masks(std::int32_t slot, const Stream& stream);
  void add_ragged(const SequenceCache& sequence, std::int32_t slot, const Stream& stream);
  void add_masks(const SequenceCache& sequence, std::int32_t layer, std::int32_t head, std::int64_t at,
                 HeadPages& there);
  void update(std::int32_t* array, std::int64_t at, std::int64_t value, const Stream& stream);
  void flush(const Stream& stream);

  KvShape shape_;
  DeviceBuffer entries_, updates_, masks_, shifts_;
  PinnedBuffer staging_;
  std::size_t n_staged_ = 0, n_flushed_ = 0;
  std::int32_t* staged_for_ = nullptr;  // the array that the updates from n_flushed_ on belong to
  KvTables tables_, ragged_;
  std::vector<SeqSlot> seq_slots_;
  std::vector<TableUpdate> mask_updates_, shift_updates_;
  std::vector<std::uint32_t> masks_now_;
  std::int64_t steps_ = 0;
};

}  // namespace mneme
