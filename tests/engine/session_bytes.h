// Makes the checksums of a session's bytes right again, so that a reader's other checks are met.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "src/engine/session_file.h"

namespace mneme {

// Entries that point outside of the bytes keep their checksum.
inline void reseal(std::span<std::byte> bytes) {
  using Layout = SessionLayout;
  if (bytes.size() < Layout::kHeader) return;
  for (std::size_t i = 0; i < Layout::kSections; ++i) {
    Layout::Entry entry;
    std::byte* const at = bytes.data() + Layout::kEntries + i * sizeof(entry);
    std::memcpy(&entry, at, sizeof(entry));
    if (entry.offset > bytes.size() || entry.bytes > bytes.size() - entry.offset) continue;
    entry.checksum = session_checksum(bytes.subspan(entry.offset, entry.bytes));
    std::memcpy(at, &entry, sizeof(entry));
  }
  const std::uint64_t checksum = session_checksum(bytes.first(Layout::kHeaderChecksum));
  std::memcpy(bytes.data() + Layout::kHeaderChecksum, &checksum, sizeof(checksum));
}

}  // namespace mneme
