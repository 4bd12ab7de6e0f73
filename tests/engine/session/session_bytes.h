// Makes the checksums of a session's bytes right again, so that a reader's other checks are met.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "src/engine/session/session_file.h"

namespace mneme {

// Entries that point outside of the bytes keep their checksum.
inline void reseal(std::span<std::byte> bytes) {
  using Layout = SessionLayout;
  if (bytes.size() < Layout::kEntries) return;
  std::uint32_t version = 0;
  std::memcpy(&version, bytes.data() + Layout::kMagic.size(), sizeof(version));
  if (bytes.size() < Layout::header(version)) return;
  for (std::size_t i = 0; i < Layout::n_sections(version); ++i) {
    Layout::Entry entry;
    std::byte* const at = bytes.data() + Layout::kEntries + i * sizeof(entry);
    std::memcpy(&entry, at, sizeof(entry));
    if (entry.offset > bytes.size() || entry.bytes > bytes.size() - entry.offset) continue;
    entry.checksum = session_checksum(bytes.subspan(entry.offset, entry.bytes));
    std::memcpy(at, &entry, sizeof(entry));
  }
  const std::uint64_t checksum = session_checksum(bytes.first(Layout::header_checksum(version)));
  std::memcpy(bytes.data() + Layout::header_checksum(version), &checksum, sizeof(checksum));
}

}  // namespace mneme
