#include "src/kv/sequence_cache.h"

#include <gtest/gtest.h>

#include <deque>

#include "src/base/rng.h"
#include "src/base/size32.h"
#include "src/kv/cache_invariants.h"
#include "tests/kv/stamped_tokens.h"

namespace mneme {
namespace {

std::uint64_t stamp(std::uint64_t content, std::int32_t layer, std::int32_t head, std::int32_t position) {
  return Rng(content * 1000003u + (layer * 64 + head), position).next();
}

// A sequence and its expected content.
struct Checked {
  SequenceCache cache;
  std::vector<std::uint64_t> contents;  // one value per token

  void append(std::int32_t n, Rng& rng) {
    cache.extend(n);
    for (std::int32_t i = 0; i < n; ++i) {
      const auto position = size32(contents);
      contents.push_back(rng.next());
      for (std::int32_t l = 0; l < kShape.n_layers; ++l) {
        for (std::int32_t h = 0; h < kShape.n_kv_heads; ++h) {
          stamp_token(cache.token(l, h, position), stamp(contents.back(), l, h, position));
        }
      }
    }
  }

  void expect_contents() const {
    ASSERT_EQ(cache.length(), size32(contents));
    for (std::int32_t p = 0; p < cache.length(); ++p) {
      for (std::int32_t l = 0; l < kShape.n_layers; ++l) {
        for (std::int32_t h = 0; h < kShape.n_kv_heads; ++h) {
          const std::uint64_t s = stamp(contents[p], l, h, p);
          ASSERT_TRUE(has_stamp(cache.token(l, h, p), s)) << "position " << p << " layer " << l << " head " << h;
        }
      }
    }
  }
};

// A sequence of n tokens and a fork of it.
struct Forked {
  explicit Forked(std::int32_t n) {
    a.append(n, rng);
    b = {a.cache.fork(), a.contents};
  }
  PagePool pool{kShape, 100};
  Rng rng{1};
  Checked a{SequenceCache(pool), {}}, b{SequenceCache(pool), {}};
};

TEST(SequenceCache, LengthsAroundAPage) {
  for (std::int32_t n : {0, 1, 31, 32, 33, 63, 64, 65}) {
    PagePool pool(kShape, 100);
    Rng rng(7);
    Checked c{SequenceCache(pool), {}};
    EXPECT_EQ(c.cache.blocks_needed(n), (n + 31) / 32 * 4);
    c.append(n, rng);
    EXPECT_EQ(c.cache.n_pages(), (n + 31) / 32);
    EXPECT_EQ(pool.n_used(), (n + 31) / 32 * 4);
    EXPECT_EQ(c.cache.table(1, 1).size(), static_cast<std::size_t>(c.cache.n_pages()));
    c.expect_contents();
    c.cache.clear();
    EXPECT_EQ(pool.n_free(), 100);
  }
}

TEST(SequenceCache, RunsCoverTheRangeInOrderOnePerPage) {
  PagePool pool(kShape, 100);
  SequenceCache c(pool);
  c.extend(100);
  for (auto [begin, end] : {std::pair{0, 100}, {0, 0}, {100, 100}, {5, 6}, {31, 33}, {32, 64}, {40, 99}}) {
    std::vector<KvRun> runs;
    c.append_runs(1, 0, begin, end, runs);
    std::int32_t at = begin;
    for (const KvRun& run : runs) {
      EXPECT_EQ(run.kv, c.token(1, 0, at));
      EXPECT_EQ((at + run.n_tokens - 1) / kPageTokens, at / kPageTokens);
      at += run.n_tokens;
    }
    EXPECT_EQ(at, end);
    EXPECT_EQ(size32(runs), begin == end ? 0 : (end - 1) / kPageTokens - begin / kPageTokens + 1);
  }
}

TEST(SequenceCache, UnitsAreRunsOfTheirTokens) {
  PagePool pool(kShape, 100);
  SequenceCache c(pool);
  c.extend(100);
  for (const std::int32_t unit : {1, 5, 20})
    for (const std::vector<std::int32_t>& units :
         {std::vector<std::int32_t>{}, {0}, {4}, {0, 1, 2, 3, 4}, {0, 2, 4}, {1, 2, 4}}) {
      std::vector<KvRun> runs;
      EXPECT_EQ(c.append_units(1, 0, units, unit, runs), std::ssize(units) * unit);
      std::vector<const std::byte*> tokens, expected;
      for (const KvRun& run : runs)
        for (std::int32_t i = 0; i < run.n_tokens; ++i) tokens.push_back(run.kv + i * c.shape().token_bytes());
      for (const std::int32_t u : units)
        for (std::int32_t i = 0; i < unit; ++i) expected.push_back(c.token(1, 0, u * unit + i));
      EXPECT_EQ(tokens, expected);
    }
  std::vector<KvRun> runs;
  const std::int32_t neighbours[] = {3, 4, 6};
  c.append_units(1, 0, neighbours, 5, runs);
  EXPECT_EQ(runs.size(), 3u);  // 15 to 24, 30 and 31, 32 to 34
  EXPECT_DEATH(c.append_units(1, 0, neighbours, 20, runs), "units 3 to 6 of 20 tokens, of 100");
}

TEST(SequenceCache, AForkCopiesOnlyTheSharedOpenPage) {
  Forked forked(40);
  auto& [pool, rng, a, b] = forked;
  EXPECT_EQ(pool.n_used(), 8);  // nothing was copied
  EXPECT_EQ(b.cache.blocks_needed(1), 4);
  b.append(1, rng);
  EXPECT_EQ(pool.n_used(), 12);
  EXPECT_EQ(a.cache.blocks_needed(1), 0);  // the only owner of its page again
  a.append(1, rng);
  EXPECT_EQ(pool.n_used(), 12);
  EXPECT_EQ(a.cache.table(0, 0)[0], b.cache.table(0, 0)[0]);
  EXPECT_NE(a.cache.table(0, 0)[1], b.cache.table(0, 0)[1]);
  a.expect_contents();
  b.expect_contents();
}

TEST(SequenceCache, AForkAtThePageBoundaryCopiesNothing) {
  Forked forked(64);
  auto& [pool, rng, a, b] = forked;
  EXPECT_EQ(b.cache.blocks_needed(1), 4);
  b.append(1, rng);
  EXPECT_EQ(pool.n_used(), 12);
  a.append(33, rng);
  a.expect_contents();
  b.expect_contents();
}

TEST(SequenceCache, TruncatingAForkIntoASharedPageLeavesTheOtherAlone) {
  Forked forked(64);
  auto& [pool, rng, a, b] = forked;
  b.cache.truncate(50);
  b.contents.resize(50);
  EXPECT_EQ(b.cache.blocks_needed(14), 4);  // the page is full for `a`, has room for `b`
  b.append(14, rng);
  a.expect_contents();
  b.expect_contents();
}

TEST(SequenceCache, TheParentMayGoFirst) {
  Forked forked(70);
  auto& [pool, rng, a, b] = forked;
  a.cache.clear();
  EXPECT_EQ(pool.n_used(), 12);
  EXPECT_EQ(b.cache.blocks_needed(1), 0);
  b.append(100, rng);
  b.expect_contents();
  b.cache.clear();
  EXPECT_EQ(pool.n_free(), 100);
}

TEST(SequenceCache, MovesCarryThePages) {
  PagePool pool(kShape, 100);
  Rng rng(1);
  Checked a{SequenceCache(pool), {}};
  a.append(33, rng);
  SequenceCache moved(std::move(a.cache));
  EXPECT_EQ(a.cache.length(), 0);  // NOLINT: a moved-from cache is an empty one
  a.cache.extend(5);
  EXPECT_EQ(pool.n_used(), 12);
  moved = std::move(a.cache);
  EXPECT_EQ(moved.length(), 5);
  EXPECT_EQ(pool.n_used(), 4);
}

TEST(SequenceCache, RandomEventsKeepContentsAndInvariants) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    PagePool pool(kShape, 160);
    Rng rng(seed);
    std::deque<Checked> all;
    for (int event = 0; event < 1500; ++event) {
      const std::uint64_t what = rng.below(10);
      const std::size_t i = all.empty() ? 0 : static_cast<std::size_t>(rng.below(all.size()));
      if (all.empty() || (what == 0 && all.size() < 12)) {
        all.push_back(Checked{SequenceCache(pool), {}});
      } else if (what == 1 && all.size() < 12) {
        Checked copy{all[i].cache.fork(), all[i].contents};
        all.push_back(std::move(copy));
      } else if (what == 2) {
        all.erase(all.begin() + i);
      } else if (what == 3) {
        const auto n = rng.below(all[i].contents.size() + 1);
        all[i].cache.truncate(static_cast<std::int32_t>(n));
        all[i].contents.resize(n);
      } else {
        const auto n = static_cast<std::int32_t>(rng.below(2) == 0 ? 1 : rng.below(70));
        const std::int64_t needed = all[i].cache.blocks_needed(n), free = pool.n_free();
        if (needed > free) continue;
        all[i].append(n, rng);
        ASSERT_EQ(pool.n_free(), free - needed);
      }
      expect_sound(pool, all);
      if (event % 50 == 0) {
        for (const Checked& c : all) c.expect_contents();
      }
    }
    all.clear();
    EXPECT_EQ(pool.n_free(), pool.n_blocks());
  }
}

TEST(CacheInvariants, ABrokenSnapshotIsNoticed) {
  PagePool pool(kShape, 20);
  SequenceCache a(pool);
  a.extend(40);
  SequenceCache b = a.fork();
  b.extend(1);
  const PoolSnapshot good_pool = snapshot_of(pool);
  const std::vector<CacheSnapshot> good{snapshot_of(a), snapshot_of(b)};
  ASSERT_EQ(find_violation(good_pool, good), "");

  const auto expect_found = [&](auto&& breaks, const char* words) {
    PoolSnapshot p = good_pool;
    std::vector<CacheSnapshot> c = good;
    breaks(p, c);
    EXPECT_NE(find_violation(p, c).find(words), std::string::npos) << words << ": " << find_violation(p, c);
  };
  using P = PoolSnapshot;
  using C = std::vector<CacheSnapshot>;
  expect_found([](P& p, C&) { p.references[0] = 3; }, "3 references, 2 tables");
  expect_found([](P&, C& c) { c.pop_back(); }, "2 references, 1 tables");  // leaked
  expect_found(
      [](P& p, C&) {
        p.free.push_back(0);
        p.n_free++;
      },
      "2 tables hold it, 1 times free");
  expect_found(
      [](P& p, C&) {
        p.free.push_back(p.free[0]);
        p.n_free++;
      },
      "0 tables hold it, 2 times free");
  expect_found(
      [](P& p, C&) {
        p.free.pop_back();
        p.n_free--;
      },
      "0 tables hold it, 0 times free");
  expect_found([](P& p, C&) { p.n_free++; }, "the pool says");
  expect_found([](P&, C& c) { c[0].length = 65; }, "65 tokens in 2 pages");
  expect_found([](P&, C& c) { c[0].tables[3].pop_back(); }, "1 blocks for 2 pages");
  expect_found([](P&, C& c) { c[0].tables.clear(); }, "no table");
  expect_found([](P&, C& c) { c[0].tables[1][0] = c[0].tables[0][0]; }, "twice");
  expect_found([](P&, C& c) { c[0].tables[1][0] = 20; }, "no block 20");
}

TEST(SequenceCacheDeathTest, MisuseAborts) {
  PagePool pool(kShape, 7);
  SequenceCache c(pool);
  c.extend(32);
  EXPECT_DEATH(c.extend(1), "4 blocks needed, 3 free");
  EXPECT_DEATH(c.extend(-1), "-1 new tokens");
  EXPECT_DEATH(c.truncate(33), "to 33 of 32");
  EXPECT_DEATH(c.truncate(-1), "to -1");
  EXPECT_DEATH((void)c.token(0, 0, 32), "position 32 of 32");
  EXPECT_DEATH((void)c.token(2, 0, 0), "layer 2 of 2");
  EXPECT_DEATH((void)c.table(0, 2), "KV head 2 of 2");
  std::vector<KvRun> runs;
  EXPECT_DEATH(c.append_runs(0, 0, 0, 33, runs), "positions \\[0, 33\\) of 32");
}

}  // namespace
}  // namespace mneme
