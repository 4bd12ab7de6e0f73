// Append-only store of fixed-size index entries of one (layer, KV head), shared between forks.
//
// Entries are stored in chunks. Complete chunks are immutable and shared by forks; the last, partly filled chunk is
// copied on write when it has two owners.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/formats/bytes/byte_reader.h"
#include "src/formats/bytes/byte_writer.h"
#include "src/tensor/buffer.h"

namespace mneme {

class EntryStore {
 public:
  static constexpr std::int32_t kChunkEntries = 256;

  EntryStore() = default;
  explicit EntryStore(std::size_t entry_bytes) : entry_bytes_(entry_bytes) {}
  EntryStore(const EntryStore&) = default;  // a fork shares the chunks
  EntryStore& operator=(const EntryStore&) = default;

  std::int32_t size() const { return size_; }
  std::size_t entry_bytes() const { return entry_bytes_; }
  // Bytes of all referenced chunks, shared ones included.
  std::size_t bytes() const { return chunks_.size() * kChunkEntries * entry_bytes_; }

  // Appends one entry; the caller writes it before it is read.
  std::byte* append();
  const std::byte* entry(std::int32_t i) const { return chunk(i / kChunkEntries) + (i % kChunkEntries) * entry_bytes_; }
  void truncate(std::int32_t size);
  // Serialise all entries for saved sessions. Requires  (read) the store is empty. Errors  kFormat: unexpected end of
  // data.
  void write(ByteWriter& out) const;
  void read(ByteReader& in, std::int32_t size);

  // Calls fn(first entry's bytes, first, n) for ranges that cover [begin, end) in order, each within one chunk.
  template <typename F>
  void for_contiguous(std::int32_t begin, std::int32_t end, F&& fn) const {
    while (begin < end) {
      const std::int32_t stop = std::min(end, (begin / kChunkEntries + 1) * kChunkEntries);
      fn(entry(begin), begin, stop - begin);
      begin = stop;
    }
  }

 private:
  const std::byte* chunk(std::int32_t c) const { return chunks_[c]->data(); }

  std::size_t entry_bytes_ = 0;
  std::int32_t size_ = 0;
  std::vector<std::shared_ptr<Buffer>> chunks_;
};

}  // namespace mneme
