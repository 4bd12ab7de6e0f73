#include "src/engine/loop/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "src/base/rng.h"
#include "src/base/size32.h"
#include "src/kv/page_pool.h"

namespace mneme {
namespace {

std::vector<TokenId> tokens(std::size_t n, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<TokenId> out(n);
  for (TokenId& t : out) t = static_cast<TokenId>(rng.below(1000));
  return out;
}

std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void put(PrefixCache& cache, std::int64_t id, const std::vector<TokenId>& t, bool running = false,
         const std::string& salt = "") {
  cache.put({.id = RequestId(id), .tokens = t, .n_shared = size32(t), .salt = salt, .running = running});
}

TEST(PrefixCache, FindsTheLongestOfWholePages) {
  PrefixCache cache;
  const auto document = tokens(100, 1);
  put(cache, 1, document);
  put(cache, 2, joined(document, tokens(60, 2)));
  EXPECT_FALSE(cache.find(tokens(100, 3), ""));
  EXPECT_FALSE(cache.find({}, ""));
  EXPECT_FALSE(cache.find(std::span(document).first(31), ""));
  EXPECT_EQ(cache.find(std::span(document).first(32), "")->n_tokens, 32);
  EXPECT_EQ(cache.find(document, "")->n_tokens, 96);
  const auto match = cache.find(joined(document, tokens(60, 2)), "");
  EXPECT_EQ(match->id, RequestId(2));
  EXPECT_EQ(match->n_tokens, 160);
  auto other_end = joined(document, tokens(60, 2));
  other_end[127] ^= 1;  // in the fourth page
  EXPECT_EQ(cache.find(other_end, "")->n_tokens, 96);
  other_end[0] ^= 1;
  EXPECT_FALSE(cache.find(other_end, ""));
}

TEST(PrefixCache, SharesNothingAmongSaltsNorBeyondWhatMayBeShared) {
  PrefixCache cache;
  const auto document = tokens(100, 1);
  put(cache, 1, document, false, "a");
  EXPECT_FALSE(cache.find(document, ""));
  EXPECT_FALSE(cache.find(document, "b"));
  EXPECT_EQ(cache.find(document, "a")->n_tokens, 96);
  cache.put({.id = RequestId(1), .tokens = document, .n_shared = 70, .salt = "a"});  // again
  EXPECT_EQ(cache.find(document, "a")->n_tokens, 64);
  EXPECT_EQ(cache.size(), 1u);
  cache.erase(RequestId(1));
  cache.erase(RequestId(1));
  EXPECT_FALSE(cache.find(document, "a"));
}

TEST(PrefixCache, GivesUpTheLeastRecentlyUsedThatDoesNotRun) {
  PrefixCache cache;
  for (std::int64_t i = 0; i < 4; ++i) put(cache, i, tokens(64, i), i == 1);
  cache.find(tokens(64, 0), "");
  EXPECT_EQ(cache.least_recently_used(), RequestId(2));
  cache.erase(RequestId(2));
  EXPECT_EQ(cache.least_recently_used(), RequestId(3));
  cache.erase(RequestId(3));
  cache.erase(RequestId(0));
  EXPECT_FALSE(cache.least_recently_used());
  put(cache, 1, tokens(64, 1), false);
  EXPECT_EQ(cache.least_recently_used(), RequestId(1));
}

TEST(PrefixCache, KnowsWhatALongerSequenceReplaces) {
  PrefixCache cache;
  const auto document = tokens(96, 1), first = joined(document, tokens(64, 2));
  put(cache, 1, document);
  put(cache, 2, joined(document, tokens(10, 5)));  // its own whole pages are the document's
  put(cache, 3, joined(document, tokens(64, 6)));  // has a page of its own
  put(cache, 4, first);
  EXPECT_EQ(cache.superseded_by(RequestId(4)), (std::vector{RequestId(1), RequestId(2)}));
  put(cache, 1, document, true);  // it is never evicted
  EXPECT_EQ(cache.superseded_by(RequestId(4)), (std::vector{RequestId(2)}));
}

TEST(PrefixCache, FindsAmongThoseThatTheCallerAccepts) {
  PrefixCache cache;
  const auto document = tokens(96, 1);
  put(cache, 1, std::vector(document.begin(), document.begin() + 64));
  put(cache, 2, document);
  EXPECT_EQ(cache.find(document, "", [](RequestId id) { return id != RequestId(2); })->id, RequestId(1));
  EXPECT_EQ(cache.find(document, "", [](RequestId) { return true; })->id, RequestId(2));
  EXPECT_FALSE(cache.find(document, "", [](RequestId) { return false; }));
}

// Against a list that is searched from one end to the other.
TEST(PrefixCache, AgreesWithASearchOfAllSequences) {
  Rng rng(7);
  PrefixCache cache;
  std::map<std::int64_t, std::vector<TokenId>> all;
  const auto random_sequence = [&] {
    std::vector<TokenId> t;
    const std::uint64_t pages = rng.below(6);
    for (std::uint64_t p = 0; p < pages; ++p) t = joined(t, tokens(32, rng.below(3)));
    return joined(t, tokens(rng.below(32), 50));
  };
  for (std::int64_t step = 0; step < 2000; ++step) {
    if (rng.below(3) > 0) {
      all[step] = random_sequence();
      put(cache, step, all[step]);
    } else if (!all.empty()) {
      const auto it = std::next(all.begin(), static_cast<std::ptrdiff_t>(rng.below(all.size())));
      cache.erase(RequestId(it->first));
      all.erase(it);
    }
    const std::vector<TokenId> wanted = random_sequence();
    std::int32_t longest = 0;
    for (const auto& [id, t] : all) {
      const auto end = std::mismatch(wanted.begin(), wanted.end(), t.begin(), t.end()).first;
      longest = std::max(longest, static_cast<std::int32_t>(end - wanted.begin()) / kPageTokens * kPageTokens);
    }
    const auto match = cache.find(wanted, "");
    ASSERT_EQ(match ? match->n_tokens : 0, longest);
    if (match) {
      ASSERT_TRUE(std::equal(wanted.begin(), wanted.begin() + longest, all.at(match->id.value).begin()));
    }
  }
  EXPECT_EQ(cache.size(), all.size());
}

TEST(PrefixCache, TellsOfPagesWhenTheFirstSequenceHasThemAndWhenTheLastIsGone) {
  PrefixCache cache;
  std::vector<std::string> told;
  std::vector<std::uint64_t> hashes;
  cache.report_pages([&](const PageEvent& e) {
    if (e.stored) {
      if (std::find(hashes.begin(), hashes.end(), e.hash) == hashes.end()) hashes.push_back(e.hash);
      EXPECT_EQ(e.tokens.size(), static_cast<std::size_t>(kPageTokens));
    }
    const auto index = [&](std::uint64_t hash) {
      return std::to_string(std::find(hashes.begin(), hashes.end(), hash) - hashes.begin());
    };
    told.push_back((e.stored ? "+" : "-") + index(e.hash) + (e.parent ? " after " + index(*e.parent) : ""));
  });
  const auto take = [&] { return std::exchange(told, {}); };
  using Told = std::vector<std::string>;
  const std::vector<TokenId> two = tokens(2 * kPageTokens, 1), three = joined(two, tokens(kPageTokens, 2));
  put(cache, 1, two);
  EXPECT_EQ(take(), (Told{"+0", "+1 after 0"}));
  put(cache, 1, three);  // grown: the pages that it has already are not told again
  EXPECT_EQ(take(), (Told{"+2 after 1"}));
  put(cache, 2, two);
  EXPECT_EQ(take(), Told{});
  cache.erase(RequestId(1));
  EXPECT_EQ(take(), (Told{"-2"}));
  cache.erase(RequestId(2));
  EXPECT_EQ(take(), (Told{"-1", "-0"}));
  put(cache, 3, two, false, "salt");
  EXPECT_EQ(take(), Told{});
}

}  // namespace
}  // namespace mneme
