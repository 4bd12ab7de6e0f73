// Hash index from a token's text to its id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/ascii.h"
#include "src/text/tokenizer/tokenizer.h"

namespace mneme {

// Fast for short strings such as tokens and words. Not collision-resistant: an adversary could make many keys collide.
inline std::uint64_t hash_text(std::string_view text) {
  std::uint64_t hash = text.size() * 0x9E3779B97F4A7C15ull;
  auto mix = [&](std::uint64_t word) {
    hash = (hash ^ word) * 0xD6E8FEB86659FD93ull;
    hash ^= hash >> 32;
  };
  const char* p = text.data();
  std::size_t left = text.size();
  std::uint64_t word = 0;
  for (; left >= 8; p += 8, left -= 8) {
    std::memcpy(&word, p, 8);
    mix(word);
  }
  word = 0;
  for (; left > 0; --left) word = (word << 8) | byte_of(p[left - 1]);
  mix(word);
  return hash;
}

class TokenIndex {
 public:
  // `texts`, by id, must outlive the index and not change. Llama 3's 128,256 tokens take 2 MiB here, 9 MiB in
  // std::unordered_map.
  TokenIndex(const std::vector<std::string>& texts, std::size_t expected);

  // The first of two tokens with the same text wins.
  void add(TokenId id);
  // -1: none.
  TokenId find(std::string_view text) const;

 private:
  struct Slot {
    std::uint32_t hash = 0;
    TokenId id = -1;
  };
  std::size_t slot_of(std::string_view text, std::uint64_t hash) const;

  const std::vector<std::string>* texts_;
  std::vector<Slot> slots_;  // open addressing; a power of two, at most half full
};

TokenIndex index_of_all(const std::vector<std::string>& texts);

}  // namespace mneme
