// Cache of one encode call: where the output of an earlier equal piece starts. Nothing is copied: keys point into the
// text, values into the output, so it needs no lock and no memory beyond its slots.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "src/text/tokenizer/token_index.h"

namespace mneme {

class PieceCache {
 public:
  // Slots in proportion to the text, so that a short question does not pay for clearing a large table; 2^14 slots are
  // 512 KiB.
  explicit PieceCache(std::size_t text_bytes)
      : slots_(std::bit_ceil(std::clamp<std::size_t>(text_bytes / 8, 16, std::size_t{1} << 14))) {}

  // Appends the ids of a piece to `out`: those of an earlier equal piece, or what append_new() appends, which returns
  // whether equal pieces will have the same ids.
  template <typename AppendNew>
  void append(std::string_view piece, std::vector<TokenId>& out, const AppendNew& append_new) {
    if (piece.size() > kLongestPiece) {
      append_new();
      return;
    }
    Entry& entry = slots_[hash_text(piece) & (slots_.size() - 1)];  // the only one that may hold this piece
    const std::size_t at = out.size();
    if (entry.holds(piece)) {
      out.resize(at + entry.count);
      for (std::size_t i = 0; i < entry.count; ++i) out[at + i] = out[entry.at + i];
      return;
    }
    if (append_new())
      entry = {piece.data(), static_cast<std::uint32_t>(piece.size()), static_cast<std::uint32_t>(out.size() - at), at};
  }

 private:
  struct Entry {
    const char* data = nullptr;
    std::uint32_t length = 0;
    std::uint32_t count = 0;  // ids
    std::size_t at = 0;       // index of the first id in the output

    bool holds(std::string_view piece) const {
      return data != nullptr && length == piece.size() && std::memcmp(data, piece.data(), length) == 0;
    }
  };
  // Longer pieces are rare, and comparing them costs as much as it saves.
  static constexpr std::size_t kLongestPiece = 64;

  std::vector<Entry> slots_;
};

}  // namespace mneme
