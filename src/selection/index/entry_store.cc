#include "src/selection/index/entry_store.h"

#include <cstring>
#include <utility>

#include "src/base/check.h"

namespace mneme {

std::byte* EntryStore::append() {
  const std::int32_t c = size_ / kChunkEntries, used = size_ % kChunkEntries;
  const std::size_t chunk_bytes = kChunkEntries * entry_bytes_;
  if (std::cmp_equal(c, chunks_.size())) {
    chunks_.push_back(std::make_shared<Buffer>(chunk_bytes));
  } else if (chunks_.back().use_count() > 1) {
    auto own = std::make_shared<Buffer>(chunk_bytes);
    std::memcpy(own->data(), chunks_.back()->data(), used * entry_bytes_);
    chunks_.back() = std::move(own);
  }
  ++size_;
  return chunks_.back()->data() + used * entry_bytes_;
}

void EntryStore::truncate(std::int32_t size) {
  MNEME_CHECK(size >= 0 && size <= size_, "{} entries cut to {}", size_, size);
  size_ = size;
  chunks_.resize((size + kChunkEntries - 1) / kChunkEntries);
}

void EntryStore::write(ByteWriter& out) const {
  for_contiguous(0, size_, [&](const std::byte* entries, std::int32_t, std::int32_t n) {
    out.put(std::span(entries, n * entry_bytes_));
  });
}

void EntryStore::read(ByteReader& in, std::int32_t size) {
  MNEME_CHECK(size_ == 0, "{} entries are there", size_);
  for (std::int32_t i = 0; i < size; ++i) {
    const auto entry = in.take(entry_bytes_, "index entries");
    std::memcpy(append(), entry.data(), entry.size());
  }
}

}  // namespace mneme
