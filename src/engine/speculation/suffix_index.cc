#include "src/engine/speculation/suffix_index.h"

#include <algorithm>
#include <bit>

#include "src/base/check.h"
#include "src/base/size32.h"

namespace mneme {
namespace {

constexpr std::size_t kLeastBuckets = 64;
// A search ends after so many entries of a bucket, other n-grams of the same hash included.
constexpr int kMaxSteps = 4 * SuffixIndex::kCandidates;

// Tokens before and with `a` and `b` that agree, at most `most`.
std::int32_t agreement(const std::int32_t* a, const std::int32_t* b, std::int32_t most) {
  std::int32_t n = 0;
  while (n < most && a[-n] == b[-n]) ++n;
  return n;
}

}  // namespace

SuffixIndex::SuffixIndex(std::int32_t min_match) : min_match_(min_match) {
  MNEME_CHECK(min_match >= 1 && min_match <= kLongest, "matches of {} tokens", min_match);
}

// Requires  min_match_ tokens up to `last`.
std::size_t SuffixIndex::bucket(const std::int32_t* last) const {
  std::uint64_t hash = 0;
  for (std::int32_t i = 0; i < min_match_; ++i)
    hash = (std::rotl(hash, 25) ^ static_cast<std::uint32_t>(last[-i])) * 0x9e3779b97f4a7c15ull;
  return (hash >> 32) & (heads_.size() - 1);
}

void SuffixIndex::insert(std::span<const std::int32_t> tokens, std::int32_t at) {
  if (at + 1 < min_match_) return;
  std::int32_t& head = heads_[bucket(&tokens[at])];
  before_[at] = head;
  head = at;
}

void SuffixIndex::rebuild(std::span<const std::int32_t> tokens) {
  heads_.assign(std::bit_ceil(std::max(tokens.size() + tokens.size() / 2, kLeastBuckets)), -1);
  for (std::int32_t at = 0; at < size32(before_); ++at) insert(tokens, at);
}

void SuffixIndex::follow(std::span<const std::int32_t> tokens) {
  const auto known = size32(before_);
  MNEME_CHECK(known <= size32(tokens), "{} tokens after {}", tokens.size(), known);
  before_.resize(tokens.size(), -1);
  if (tokens.size() > heads_.size()) return rebuild(tokens);
  for (std::int32_t at = known; at < size32(tokens); ++at) insert(tokens, at);
}

SuffixIndex::Match SuffixIndex::longest(std::span<const std::int32_t> tokens) const {
  MNEME_CHECK(tokens.size() == before_.size(), "{} tokens, {} known", tokens.size(), before_.size());
  Match best;
  const std::int32_t last = size32(tokens) - 1;
  if (last < min_match_) return best;
  int steps = 0, candidates = 0;
  for (std::int32_t at = before_[last]; at >= 0 && candidates < kCandidates && steps < kMaxSteps; at = before_[at]) {
    ++steps;
    const std::int32_t n = agreement(&tokens[last], &tokens[at], std::min(at + 1, kLongest));
    if (n < min_match_) continue;
    ++candidates;
    if (n > best.length) best = {.next = at + 1, .length = n};
    if (n == kLongest) break;
  }
  return best;
}

}  // namespace mneme
