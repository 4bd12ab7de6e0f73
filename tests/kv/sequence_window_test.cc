// Sequences whose second layer keeps a window: what it reads is there, and is what was written, whatever is cut, forked
// and released around it.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>

#include "src/base/rng.h"
#include "src/base/size32.h"
#include "tests/kv/stamped_tokens.h"

namespace mneme {
namespace {

const KvWindows kWindows{.tokens = 40, .layers = {false, true}, .step_tokens = 50};

std::unique_ptr<PagePool> window_pool(std::int64_t n_blocks) {
  auto pool = std::make_unique<PagePool>(kShape, n_blocks);
  pool->set_windows(kWindows);
  return pool;
}

struct Checked {
  SequenceCache cache;
  std::vector<std::uint64_t> contents;

  void append(std::int32_t n, Rng& rng) {
    cache.extend(n);
    for (std::int32_t i = 0; i < n; ++i) {
      const std::int32_t position = size32(contents);
      contents.push_back(rng.next());
      for (std::int32_t l = 0; l < 2; ++l)
        for (std::int32_t h = 0; h < 2; ++h)
          stamp_token(cache.token(l, h, position), contents.back() + static_cast<unsigned>(l * 2 + h));
    }
  }

  void cut(std::int32_t length) {
    cache.truncate(length);
    contents.resize(length);
  }

  // What the next token attends.
  void expect_contents() const {
    ASSERT_EQ(cache.length(), size32(contents));
    for (std::int32_t l = 0; l < 2; ++l) {
      const std::int32_t from = l == 0 ? 0 : std::max(0, cache.length() - kWindows.tokens + 1);
      for (std::int32_t p = from; p < cache.length(); ++p)
        for (std::int32_t h = 0; h < 2; ++h)
          ASSERT_TRUE(has_stamp(cache.token(l, h, p), contents[p] + static_cast<unsigned>(l * 2 + h)))
              << "position " << p << " of " << cache.length() << ", layer " << l;
    }
  }
};

TEST(SequenceWindow, HoldsTheWindowAndWhatACutMayNeed) {
  const auto pool = window_pool(1000);
  Rng rng(1);
  Checked a{SequenceCache(*pool), {}};
  for (std::int32_t n = 0; n < 40; ++n) {
    a.append(50, rng);
    EXPECT_LE(std::ssize(a.cache.table(1, 0)) - a.cache.first_page(1), kWindows.most_pages(50));
    a.cache.release_behind();
  }
  EXPECT_EQ(a.cache.released_pages(), (2000 - 64 - 40 + 1) / 32);
  EXPECT_EQ(a.cache.n_stored(1, 1), 2000 - 32 * a.cache.released_pages());
  EXPECT_EQ(a.cache.n_stored(0, 1), 2000);
  EXPECT_EQ(a.cache.n_blocks(), 2 * 63 + 2 * (63 - a.cache.released_pages()));
  EXPECT_EQ(pool->n_used(), a.cache.n_blocks());
  a.expect_contents();
  a.cut(2000 - KvWindows::kSlack);
  a.expect_contents();
  EXPECT_DEATH((void)a.cache.token(1, 0, 0), "behind the window");
}

TEST(SequenceWindow, TakesPagesBackUntilTheyAreWrittenAgain) {
  const auto pool = window_pool(400);
  Rng rng(2);
  Checked a{SequenceCache(*pool), {}};
  a.append(1000, rng);
  a.cache.release_behind();
  ASSERT_TRUE(a.cache.can_truncate(500));
  Checked b{a.cache.fork(), a.contents};
  b.cut(500);
  b.expect_contents();
  a.expect_contents();
  // The fork writes into a page that it took back: nobody else has the old content.
  b.append(1, rng);
  EXPECT_FALSE(a.cache.can_truncate(500));
  EXPECT_TRUE(a.cache.can_truncate(480));
  // Everything that is free is used: the pages are gone.
  Checked c{SequenceCache(*pool), {}};
  c.append(count32(pool->n_free() / 4 * kPageTokens), rng);
  EXPECT_FALSE(a.cache.can_truncate(300));
  EXPECT_TRUE(a.cache.can_truncate(0));
  EXPECT_DEATH(a.cache.truncate(300), "are gone");
  a.expect_contents();
  b.expect_contents();
  c.expect_contents();
}

TEST(SequenceWindow, WhatWasNeverWrittenIsNotTakenBack) {
  const auto pool = window_pool(400);
  SequenceCache a(*pool);
  a.extend(1000);
  a.release_first((1000 - KvWindows::kSlack - 39) / kPageTokens, true);
  EXPECT_FALSE(a.can_truncate(500));
  EXPECT_TRUE(a.can_truncate(1000 - KvWindows::kSlack));
}

// A sequence that goes on in steps never takes more blocks than it counted on, whoever shares its pages.
TEST(SequenceWindow, CountsToTheEnd) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto pool = window_pool(2000);
    Rng rng(seed);
    Checked a{SequenceCache(*pool), {}};
    std::deque<Checked> others;
    const std::int32_t end = 600 + static_cast<std::int32_t>(rng.below(800));
    std::int64_t promised = a.cache.blocks_to_end(end, kWindows.step_tokens);
    EXPECT_LT(promised, std::int64_t{end} / kPageTokens * kShape.blocks_per_page());
    while (a.cache.length() < end) {
      const auto step = std::min(1 + static_cast<std::int32_t>(rng.below(50)), end - a.cache.length());
      const std::int64_t before = pool->n_free();
      a.append(step, rng);
      a.cache.release_behind();
      const std::int64_t left = a.cache.blocks_to_end(end - a.cache.length(), kWindows.step_tokens);
      ASSERT_LE(left + before - pool->n_free(), promised);
      promised = left;
      if (rng.below(6) == 0) {
        others.push_back({a.cache.fork(), a.contents});
        promised = a.cache.blocks_to_end(end - a.cache.length(), kWindows.step_tokens);
      }
    }
    EXPECT_EQ(promised, 0);
  }
}

TEST(SequenceWindow, RandomCutsAndForks) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const auto pool = window_pool(seed % 2 == 0 ? 160 : 1000);
    Rng rng(seed);
    std::deque<Checked> all;
    int taken_back = 0;
    for (int event = 0; event < 1500; ++event) {
      if (all.empty() || (all.size() < 6 && rng.below(20) == 0)) all.push_back({SequenceCache(*pool), {}});
      const std::size_t i = rng.below(all.size());
      Checked& c = all[i];
      const std::uint64_t what = rng.below(10);
      if (what < 6) {
        const auto n = 1 + static_cast<std::int32_t>(rng.below(50));
        if (c.cache.blocks_needed(n) <= pool->n_free()) c.append(n, rng);
        c.cache.release_behind();
      } else if (what == 6 && all.size() < 6) {
        all.push_back({c.cache.fork(), c.contents});
      } else if (what < 9) {
        const auto to = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(c.cache.length()) + 1));
        const std::int32_t released = c.cache.released_pages();
        if (c.cache.can_truncate(to)) c.cut(to);
        taken_back += to > 0 && c.cache.released_pages() < released ? 1 : 0;
      } else {
        all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
      }
      for (const Checked& each : all) each.expect_contents();
      expect_sound(*pool, all);
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_GT(taken_back, 3);
    all.clear();
    EXPECT_EQ(pool->n_free(), pool->n_blocks());
  }
}

TEST(KvWindowsTest, CountsLayersBeyondThe64th) {
  KvWindows windows{.tokens = 40, .layers = std::vector<bool>(88)};
  EXPECT_EQ(windows.n_layers(), 0);
  windows.layers[70] = windows.layers[87] = true;
  EXPECT_EQ(windows.n_layers(), 2);
  EXPECT_EQ(windows.first_layer(), 70);
  EXPECT_TRUE(windows.has(87));
  EXPECT_FALSE(windows.has(86));
  EXPECT_FALSE(windows.has(88));
}

}  // namespace
}  // namespace mneme
