#include "src/blocks/entry_store.h"

#include <cstring>

#include "src/base/check.h"

namespace mneme {

std::byte* EntryStore::append() {
  const std::int32_t c = size_ / kChunkEntries, used = size_ % kChunkEntries;
  const std::size_t chunk_bytes = kChunkEntries * entry_bytes_;
  if (static_cast<std::size_t>(c) == chunks_.size()) {
    chunks_.push_back(std::make_shared<Buffer>(chunk_bytes));
  } else if (chunks_.back().use_count() > 1) {
    auto own = std::make_shared<Buffer>(chunk_bytes);
    std::memcpy(own->data(), chunks_.back()->data(), static_cast<std::size_t>(used) * entry_bytes_);
    chunks_.back() = std::move(own);
  }
  ++size_;
  return chunks_.back()->data() + static_cast<std::size_t>(used) * entry_bytes_;
}

void EntryStore::truncate(std::int32_t size) {
  MNEME_CHECK(size >= 0 && size <= size_, "{} entries cut to {}", size_, size);
  size_ = size;
  chunks_.resize(static_cast<std::size_t>((size + kChunkEntries - 1) / kChunkEntries));
}

}  // namespace mneme
