// Remembers, during one encode call, where in the output the ids of an earlier equal piece begin. Nothing is copied:
// keys point into the text, values into the output, so the cache needs no lock and no memory beyond its slots.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "src/tokenizer/token_index.h"

namespace mneme {

class PieceCache {
 public:
  struct Entry {
    const char* data = nullptr;
    std::uint32_t length = 0;
    std::uint32_t count = 0;  // ids
    std::size_t at = 0;       // of the first, in the output

    bool holds(std::string_view piece) const {
      return data != nullptr && length == piece.size() && std::memcmp(data, piece.data(), length) == 0;
    }
  };
  // Longer pieces are rare, and comparing them costs as much as it saves.
  static constexpr std::size_t kLongestPiece = 64;

  // Slots in proportion to the text, so that a short question does not pay for clearing a large table; 2^14 slots are
  // 512 KiB.
  explicit PieceCache(std::size_t text_bytes)
      : slots_(std::bit_ceil(std::clamp<std::size_t>(text_bytes / 8, 16, std::size_t{1} << 14))) {}

  // The one slot where this piece may be.
  Entry& slot(std::string_view piece) { return slots_[hash_text(piece) & (slots_.size() - 1)]; }

 private:
  std::vector<Entry> slots_;
};

}  // namespace mneme
