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
  };
  std::int32_t find(const SequenceCache& sequence) const;
  std::int32_t free_seq_slot(const SequenceCache& sequence) const;
  void add_pages(const SequenceCache& sequence, std::int32_t slot, const Stream& stream);
  void forget_drops(std::int32_t slot, const Stream& stream);
  void take_masks(const Stream& stream);
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
