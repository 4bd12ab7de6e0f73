// Where the end of a sequence occurred in it before: hash chains over its n-grams, as LZ77 compressors have them.
//
// Cost    append: O(1) a token, amortised; a search looks at kCandidates occurrences. 8 to 12 bytes a token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mneme {

class SuffixIndex {
 public:
  static constexpr std::int32_t kLongest = 32;      // tokens of a match that are compared
  static constexpr std::int32_t kCandidates = 256;  // earlier occurrences of the last n-gram, the latest first

  // Requires  1 <= min_match <= kLongest.
  explicit SuffixIndex(std::int32_t min_match);

  // Takes in the tokens behind those of the last call.
  //
  // Requires  `tokens` begins with them.
  void follow(std::span<const std::int32_t> tokens);

  struct Match {
    std::int32_t next = 0;    // position of the token that followed the earlier occurrence
    std::int32_t length = 0;  // tokens that agree, min_match to kLongest; 0: there is no earlier occurrence
    bool operator==(const Match&) const = default;
  };
  // The earlier occurrence of the last tokens that agrees longest; of equals the latest. It may overlap them.
  //
  // Requires  `tokens` are those of the last follow().
  Match longest(std::span<const std::int32_t> tokens) const;

  std::size_t bytes() const { return (heads_.capacity() + before_.capacity()) * sizeof(std::int32_t); }

 private:
  std::size_t bucket(const std::int32_t* last) const;
  void rebuild(std::span<const std::int32_t> tokens);
  void insert(std::span<const std::int32_t> tokens, std::int32_t at);

  std::int32_t min_match_;
  std::vector<std::int32_t> heads_;   // by bucket: position of the last token of the latest n-gram; -1: none
  std::vector<std::int32_t> before_;  // by position: the n-gram before it in the same bucket; -1: none
};

}  // namespace mneme
