// The index against a search of all positions.
#include "src/engine/speculation/suffix_index.h"

#include <gtest/gtest.h>

#include "src/base/rng.h"
#include "src/base/size32.h"

namespace mneme {
namespace {

using Tokens = std::vector<std::int32_t>;

SuffixIndex::Match longest_ref(std::span<const std::int32_t> tokens, std::int32_t min_match) {
  SuffixIndex::Match best;
  const std::int32_t last = size32(tokens) - 1;
  int candidates = 0;
  for (std::int32_t at = last - 1; at >= 0 && candidates < SuffixIndex::kCandidates; --at) {
    std::int32_t n = 0;
    while (n < SuffixIndex::kLongest && n <= at && tokens[at - n] == tokens[last - n]) ++n;
    if (n < min_match) continue;
    ++candidates;
    if (n > best.length) best = {.next = at + 1, .length = n};
  }
  return best;
}

// Tokens come in pieces of 1 to `most`; after each the search must find what the reference finds.
void expect_same(const Tokens& tokens, std::int32_t min_match, std::uint64_t most, Rng& rng) {
  SuffixIndex index(min_match);
  for (std::size_t n = 0; n < tokens.size();) {
    n = std::min<std::size_t>(tokens.size(), n + 1 + rng.below(most));
    const auto so_far = std::span(tokens).first(n);
    index.follow(so_far);
    ASSERT_EQ(index.longest(so_far), longest_ref(so_far, min_match)) << n << " tokens, at least " << min_match;
  }
}

TEST(SuffixIndex, FindsWhatASearchOfAllPositionsFinds) {
  Rng rng(1);
  for (int i = 0; i < 400; ++i) {
    Tokens tokens(rng.below(300));
    const std::uint64_t alphabet = 1 + rng.below(i % 3 == 0 ? 2 : 50);
    for (auto& t : tokens) t = static_cast<std::int32_t>(rng.below(alphabet));
    // Every other text quotes itself.
    for (std::size_t at = 40; i % 2 == 0 && at + 60 < tokens.size(); at += 60)
      std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(rng.below(at - 35)), 1 + rng.below(60),
                  tokens.begin() + static_cast<std::ptrdiff_t>(at));
    expect_same(tokens, 1 + static_cast<std::int32_t>(rng.below(8)), 1 + rng.below(20), rng);
  }
}

TEST(SuffixIndex, RepeatsOfAnyPeriod) {
  Rng rng(2);
  for (std::size_t period = 1; period < 40; ++period) {
    Tokens tokens(400);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i % period * 1000003);
    expect_same(tokens, 4, 7, rng);
  }
}

TEST(SuffixIndex, NothingAndOneToken) {
  for (std::int32_t min_match : {1, 4, SuffixIndex::kLongest}) {
    SuffixIndex index(min_match);
    index.follow({});
    EXPECT_EQ(index.longest({}), SuffixIndex::Match{});
    const Tokens one = {7};
    index.follow(one);
    EXPECT_EQ(index.longest(one), SuffixIndex::Match{});
  }
}

// A run of one token is one bucket with all of them: the search must not walk it.
TEST(SuffixIndex, HugeRunsTakeTwelveBytesAToken) {
  Tokens tokens(200000, 3);
  SuffixIndex index(4);
  for (std::size_t n = 0; n < tokens.size(); n += 1000) {
    const auto so_far = std::span(tokens).first(n + 1000);
    index.follow(so_far);
    ASSERT_EQ(index.longest(so_far), (SuffixIndex::Match{size32(so_far) - 1, SuffixIndex::kLongest}));
  }
  EXPECT_LE(index.bytes(), 16 * tokens.size());
}

TEST(SuffixIndex, CopiesGoOnByThemselves) {
  const Tokens shared = {1, 2, 3, 4, 5, 1, 2};
  SuffixIndex a(2);
  a.follow(shared);
  SuffixIndex b = a;
  Tokens left = shared, right = shared;
  left.insert(left.end(), {3, 4});
  right.insert(right.end(), {9, 9, 9});
  a.follow(left);
  b.follow(right);
  EXPECT_EQ(a.longest(left), longest_ref(left, 2));
  EXPECT_EQ(b.longest(right), longest_ref(right, 2));
}

}  // namespace
}  // namespace mneme
