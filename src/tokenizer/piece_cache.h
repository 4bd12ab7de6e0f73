// Remembers, during one encode call, where in the output the ids of an earlier equal piece begin. Nothing is copied:
// keys point into the text, values into the output, so the cache needs no lock and no memory beyond its slots.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

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

  // The one slot where this piece may be. Requires  1 <= piece.size() <= kLongestPiece.
  Entry& slot(std::string_view piece) {
    std::uint64_t hash = piece.size() * 0x9E3779B97F4A7C15ull;
    const char* p = piece.data();
    std::size_t left = piece.size();
    for (; left > 8; p += 8, left -= 8) hash = mix(hash, p, 8);
    return slots_[mix(hash, p, left) & (slots_.size() - 1)];
  }

 private:
  static std::uint64_t mix(std::uint64_t hash, const char* p, std::size_t n) {
    std::uint64_t word = 0;
    std::memcpy(&word, p, n);
    hash = (hash ^ word) * 0xD6E8FEB86659FD93ull;
    return hash ^ (hash >> 32);
  }

  std::vector<Entry> slots_;
};

}  // namespace mneme
