// Copies on the device of the tables of the sequences that run, kept current with few bytes a step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/cache/sequence_cache.h"
#include "src/device/memory.h"
#include "src/kernels/kv_tables_cuda.h"

namespace mneme {

class CudaTables {
 public:
  CudaTables(const KvShape& shape, std::byte* blocks, std::int32_t max_sequences, std::int64_t max_context);

  // The place of each sequence, its tables as they are now; those of the last call may lose theirs. Enqueues on
  // `stream`, which must be idle as far as earlier updates go.
  void place(std::span<const SequenceCache* const> sequences, const Stream& stream, std::span<std::int32_t> slots);
  const KvTables& tables() const { return tables_; }
  std::size_t bytes() const { return entries_.size() + updates_.size(); }

 private:
  struct Place {
    std::uint64_t revision = 0;  // of the sequence whose tables are there; 0: none
    std::int32_t n_pages = 0;    // of them
    std::int64_t used_at = 0;
  };
  std::int32_t find(std::uint64_t revision);
  void add_pages(const SequenceCache& sequence, std::int32_t slot, const Stream& stream);
  void flush(const Stream& stream);

  KvShape shape_;
  DeviceBuffer entries_, updates_;
  PinnedBuffer staging_;
  std::size_t n_staged_ = 0;
  KvTables tables_;
  std::vector<Place> places_;
  std::int64_t steps_ = 0;
};

}  // namespace mneme
