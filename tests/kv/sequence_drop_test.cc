// Permanent drops of tokens, head by head.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "src/base/rng.h"
#include "src/base/size32.h"
#include "src/kv/cache_invariants.h"
#include "src/kv/sequence_cache.h"
#include "tests/kv/stamped_tokens.h"

namespace mneme {
namespace {

constexpr std::int32_t kHeads = 4;

// A sequence and each head's expected content: positions, and a value per token.
struct Checked {
  struct Token {
    std::int32_t position;
    std::uint64_t content;
  };
  SequenceCache cache;
  std::vector<Token> heads[kHeads];

  void append(std::int32_t n, Rng& rng) {
    cache.extend(n);
    for (std::int32_t t = cache.length() - n; t < cache.length(); ++t)
      for (std::int32_t h = 0; h < kHeads; ++h) {
        heads[h].push_back({t, rng.next()});
        stamp_token(cache.token(h / 2, h % 2, t), heads[h].back().content);
      }
  }
  void keep(std::int32_t h, const std::vector<TokenRange>& ranks) {
    std::vector<Token> left;
    for (const TokenRange& r : ranks) left.insert(left.end(), heads[h].begin() + r.begin, heads[h].begin() + r.end);
    heads[h] = std::move(left);
    cache.keep(h / 2, h % 2, ranks);
  }
  // All heads at once; ranks by head.
  void keep_all(const std::vector<std::vector<TokenRange>>& ranks) {
    std::vector<SequenceCache::HeadRanks> all;
    for (std::int32_t h = kHeads - 1; h >= 0; --h) {
      const auto& of = ranks[h];
      std::vector<Token> left;
      for (const TokenRange& r : of) left.insert(left.end(), heads[h].begin() + r.begin, heads[h].begin() + r.end);
      heads[h] = std::move(left);
      all.push_back({h / 2, h % 2, of});
    }
    cache.keep(all);
  }
  void truncate(std::int32_t length) {
    for (auto& head : heads) std::erase_if(head, [&](const Token& t) { return t.position >= length; });
    cache.truncate(length);
  }
  Checked fork() const {
    Checked other{cache.fork(), {}};
    std::copy(std::begin(heads), std::end(heads), std::begin(other.heads));
    return other;
  }
  std::int32_t count(std::int32_t h) const { return size32(heads[h]); }

  void expect_contents() const {
    for (std::int32_t h = 0; h < kHeads; ++h) {
      ASSERT_EQ(cache.n_stored(h / 2, h % 2), count(h));
      std::vector<std::int32_t> positions;
      for (const TokenRange& r : cache.stored(h / 2, h % 2))
        for (std::int32_t t = r.begin; t < r.end; ++t) positions.push_back(t);
      std::vector<KvRun> runs;
      ASSERT_EQ(cache.append_runs(h / 2, h % 2, 0, cache.length(), runs), count(h));
      std::size_t i = 0;
      for (const KvRun& run : runs) {
        ASSERT_LE(run.n_tokens, kPageTokens);
        for (std::int32_t t = 0; t < run.n_tokens; ++t, ++i) {
          const std::byte* at = run.kv + t * kShape.token_bytes();
          ASSERT_EQ(positions[i], heads[h][i].position);
          ASSERT_EQ(at, cache.token(h / 2, h % 2, positions[i]));
          ASSERT_EQ(cache.rank_of(h / 2, h % 2, positions[i]), static_cast<std::int32_t>(i));
          ASSERT_TRUE(has_stamp(at, heads[h][i].content)) << "head " << h << " position " << positions[i];
        }
      }
      ASSERT_EQ(i, heads[h].size());
      expect_slots(h);
    }
  }
  // The mapping that a copy of the tables relies on.
  void expect_slots(std::int32_t h) const {
    const std::span<const BlockId> table = cache.table(h / 2, h % 2);
    std::size_t i = 0;
    for (const TokenRange& r : cache.stored_slots(h / 2, h % 2))
      for (std::int32_t slot = r.begin; slot < r.end; ++slot, ++i) {
        const std::byte* at =
            cache.pool().data(table[slot / kPageTokens]) + (slot % kPageTokens) * kShape.token_bytes();
        ASSERT_TRUE(has_stamp(at, heads[h][i].content)) << "head " << h << " slot " << slot;
        ASSERT_LT(slot, cache.n_slots(h / 2, h % 2));
      }
    ASSERT_EQ(i, heads[h].size());
  }
};

TEST(SequenceDrop, ASuffixFreesItsPagesAtOnce) {
  PagePool pool(kShape, 100);
  Rng rng(1);
  Checked c{SequenceCache(pool), {}};
  c.append(320, rng);
  for (std::int32_t h = 0; h < kHeads; ++h) c.keep(h, {{0, 4}, {160, 320}});
  EXPECT_EQ(pool.n_used(), 4 * 6) << "one page of sinks, five of the suffix";
  EXPECT_EQ(c.cache.n_blocks(), 24);
  EXPECT_EQ(c.cache.length(), 320);
  EXPECT_EQ(c.cache.stored(1, 1), (std::vector<TokenRange>{{0, 4}, {160, 320}}));
  c.expect_contents();
  c.append(40, rng);
  c.expect_contents();
  EXPECT_EQ(c.cache.append_runs(0, 0, 4, 160, *std::make_unique<std::vector<KvRun>>()), 0);
  EXPECT_DEATH((void)c.cache.token(0, 0, 100), "position 100 was dropped");
}

TEST(SequenceDrop, ScatteredTokensAreCompactedAndReadAsWholePages) {
  PagePool pool(kShape, 100);
  Rng rng(2);
  Checked c{SequenceCache(pool), {}};
  c.append(640, rng);
  std::vector<TokenRange> every_tenth;
  for (std::int32_t t = 0; t < 640; t += 10) every_tenth.push_back({t, t + 1});
  for (std::int32_t h = 0; h < kHeads; ++h) c.keep(h, every_tenth);
  EXPECT_EQ(pool.n_used(), 4 * 2);
  c.expect_contents();
  std::vector<KvRun> runs;
  c.cache.append_runs(0, 0, 0, 640, runs);
  EXPECT_EQ(runs.size(), 2u);
  EXPECT_EQ(c.cache.blocks_needed(1), 4);
}

// A fork's pages are never written: dropped pages are released, kept tokens stay in place.
TEST(SequenceDrop, SharedPagesAreLetGoOfButNotCompacted) {
  PagePool pool(kShape, 200);
  Rng rng(3);
  Checked a{SequenceCache(pool), {}};
  a.append(320, rng);
  Checked b = a.fork();
  std::vector<TokenRange> some;
  for (std::int32_t t = 0; t < 160; t += 8) some.push_back({t, t + 1});
  for (std::int32_t h = 0; h < kHeads; ++h) b.keep(h, some);
  EXPECT_EQ(b.cache.n_blocks(), 4 * 5);
  EXPECT_EQ(pool.n_used(), 4 * 10);
  a.expect_contents();
  b.expect_contents();
  b.append(1, rng);
  a.append(3, rng);
  a.expect_contents();
  b.expect_contents();
  a.cache.clear();
  EXPECT_EQ(pool.n_used(), b.cache.n_blocks());
  b.keep(0, {{0, 5}, {9, b.count(0)}});  // the only owner now
  EXPECT_EQ(b.cache.table(0, 0).size(), 1u);
  b.expect_contents();
}

TEST(SequenceDrop, NothingLeftAndEverythingKept) {
  PagePool pool(kShape, 100);
  Rng rng(4);
  Checked c{SequenceCache(pool), {}};
  c.append(50, rng);
  c.keep(1, {{0, 20}, {20, 50}});
  EXPECT_FALSE(c.cache.dropped());
  c.keep(0, {});
  EXPECT_TRUE(c.cache.dropped());
  EXPECT_EQ(c.cache.table(0, 0).size(), 0u);
  c.expect_contents();
  c.append(3, rng);
  c.expect_contents();
  EXPECT_EQ(c.cache.stored(0, 0), (std::vector<TokenRange>{{50, 53}}));
  c.truncate(50);
  c.expect_contents();
  c.append(2, rng);
  c.expect_contents();
  c.truncate(0);
  EXPECT_FALSE(c.cache.dropped());
  EXPECT_EQ(pool.n_used(), 0);
}

TEST(SequenceDrop, TheSnapshotTellsTooManyPages) {
  PagePool pool(kShape, 100);
  SequenceCache c(pool);
  c.extend(200);
  for (std::int32_t h = 0; h < kHeads; ++h) c.keep(h / 2, h % 2, std::vector<TokenRange>{{0, 3}});
  CacheSnapshot s = snapshot_of(c);
  EXPECT_EQ(find_violation(snapshot_of(pool), std::span(&s, 1)), "");
  s.stored[2] = 0;
  EXPECT_NE(find_violation(snapshot_of(pool), std::span(&s, 1)), "");
  s.stored[2] = 200;
  EXPECT_NE(find_violation(snapshot_of(pool), std::span(&s, 1)), "");
}

// Sequences that are extended, pruned, truncated, forked and freed in any order keep their content, and memory adds up.
TEST(SequenceDrop, AnyOrderOfEvents) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    PagePool pool(kShape, 400);
    Rng rng(seed + 10);
    std::deque<Checked> all;
    all.push_back({SequenceCache(pool), {}});
    for (int event = 0; event < 120; ++event) {
      Checked& c = all[rng.below(all.size())];
      const auto what = rng.below(10);
      if (what < 4) {
        const auto n = static_cast<std::int32_t>(rng.below(event % 3 == 0 ? 90 : 3));
        const std::int64_t needed = c.cache.blocks_needed(n), used = pool.n_used();
        if (needed > pool.n_free()) continue;
        c.append(n, rng);
        ASSERT_EQ(pool.n_used() - used, needed);
      } else if (what < 7) {
        const auto h = static_cast<std::int32_t>(rng.below(kHeads));
        std::vector<TokenRange> ranks;
        const double share = rng.uniform();
        for (std::int32_t t = 0; t < c.count(h); ++t)
          if (rng.uniform() < share) ranks.push_back({t, t + 1});
        const std::int64_t used = pool.n_used();
        c.keep(h, ranks);
        std::vector<std::vector<TokenRange>> left(kHeads);
        for (std::int32_t other = 0; other < kHeads && event % 2 == 0; ++other)
          for (std::int32_t t = 0; t < c.count(other); ++t)
            if (rng.below(3) > 0) left[other].push_back({t, t + 1});
        if (event % 2 == 0) c.keep_all(left);
        ASSERT_LE(pool.n_used(), used) << "dropping takes nothing";
      } else if (what == 7) {
        c.truncate(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(c.cache.length()) + 1)));
      } else if (what == 8 && all.size() < 4) {
        Checked other = c.fork();
        all.push_back(std::move(other));
      } else if (what == 9 && all.size() > 1) {
        all.erase(all.begin() + rng.below(all.size()));
      }
      expect_sound(pool, all);
      if (HasFailure()) return;
    }
    for (const Checked& c : all) c.expect_contents();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace mneme
