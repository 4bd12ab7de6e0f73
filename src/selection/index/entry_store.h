// Index entries of one (layer, KV head): append-only, equal in size, shared between forks.
//
// Entries lie in chunks; a chunk that is complete is never written again, so that a fork shares it, and only the last,
// partly filled one is copied when two owners would write it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/checkpoint/byte_reader.h"
#include "src/checkpoint/byte_writer.h"
#include "src/tensor/buffer.h"

namespace mneme {

class EntryStore {
 public:
  static constexpr std::int32_t kChunkEntries = 256;

  EntryStore() = default;
  explicit EntryStore(std::size_t entry_bytes) : entry_bytes_(entry_bytes) {}
  EntryStore(const EntryStore&) = default;  // a fork: shares the chunks
  EntryStore& operator=(const EntryStore&) = default;

  std::int32_t size() const { return size_; }
  std::size_t entry_bytes() const { return entry_bytes_; }
  // Bytes of all chunks that this store refers to, shared ones included.
  std::size_t bytes() const { return chunks_.size() * kChunkEntries * entry_bytes_; }

  // Room for one more entry, to be written by the caller before anybody reads it.
  std::byte* append();
  const std::byte* entry(std::int32_t i) const {
    return chunk(i / kChunkEntries) + static_cast<std::size_t>(i % kChunkEntries) * entry_bytes_;
  }
  void truncate(std::int32_t size);
  // All entries, for saved sessions. Requires, for read: none is there yet. Errors  kFormat: the bytes end.
  void write(ByteWriter& out) const;
  void read(ByteReader& in, std::int32_t size);

  // Calls fn(first entry's bytes, first, n) for stretches that cover [begin, end) in order, each within one chunk.
  template <typename F>
  void for_stretches(std::int32_t begin, std::int32_t end, F&& fn) const {
    while (begin < end) {
      const std::int32_t stop = std::min(end, (begin / kChunkEntries + 1) * kChunkEntries);
      fn(entry(begin), begin, stop - begin);
      begin = stop;
    }
  }

 private:
  const std::byte* chunk(std::int32_t c) const { return chunks_[static_cast<std::size_t>(c)]->data(); }

  std::size_t entry_bytes_ = 0;
  std::int32_t size_ = 0;
  std::vector<std::shared_ptr<Buffer>> chunks_;
};

}  // namespace mneme
