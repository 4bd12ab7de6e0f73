// States of sequences: shared by forks and copies, counted in blocks of the pool, and cut back to where there is one.
#include "src/kv/recurrent_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "src/base/rng.h"
#include "src/base/size32.h"
#include "src/kv/cache_invariants.h"
#include "src/kv/sequence_cache.h"

namespace mneme {
namespace {

// A page of one layer and head is 32 x 2 x 8 x 2 bytes; a state counts as three.
constexpr KvShape kShape = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 8, .dtype = DType::kBF16, .state_bytes = 2500};

// A sequence whose state is the sum of its tokens.
struct Checked {
  SequenceCache cache;
  std::vector<int> tokens;

  void append(std::int32_t n, Rng& rng) {
    cache.extend(n);
    int& sum = *reinterpret_cast<int*>(cache.states().begin_write().host());
    for (std::int32_t i = 0; i < n; ++i) sum += tokens.emplace_back(static_cast<int>(rng.below(100)));
    cache.states().end_write(cache.length());
  }
  void cut(std::int32_t length) {
    cache.truncate(length);
    tokens.resize(length);
  }
  void expect_state() {
    SequenceCache copy = cache.fork();
    if (cache.length() == 0) return;
    copy.extend(1);
    int sum = 0;
    for (const int t : tokens) sum += t;
    EXPECT_EQ(*reinterpret_cast<int*>(copy.states().begin_write().host()), sum);
  }
};

void expect_invariants(const PagePool& pool, const std::deque<Checked>& all) {
  std::vector<CacheSnapshot> caches;
  for (const Checked& c : all) caches.push_back(snapshot_of(c.cache));
  EXPECT_EQ(find_violation(snapshot_of(pool), caches), "");
}

TEST(RecurrentState, CountsAsBlocksOfThePool) {
  PagePool pool(kShape, 20);
  SequenceCache cache(pool);
  EXPECT_EQ(kShape.state_blocks(), 3);
  EXPECT_EQ(cache.blocks_needed(40), 2 + 3);
  cache.extend(40);
  EXPECT_EQ(pool.n_used(), 5);
  EXPECT_EQ(cache.n_blocks(), 5);
  SequenceCache fork = cache.fork();
  EXPECT_EQ(pool.n_used(), 5);
  EXPECT_EQ(fork.blocks_needed(1), 1 + 3) << "the open page and the state are copied";
  EXPECT_EQ(cache.blocks_needed(1), 1 + 3);
  fork.extend(1);
  EXPECT_EQ(pool.n_used(), 9);
  EXPECT_EQ(cache.blocks_needed(1), 0);
  fork.clear();
  cache.clear();
  EXPECT_EQ(pool.n_used(), 0);
}

TEST(RecurrentState, BeginsAsZerosAndForksHaveTheirOwn) {
  PagePool pool(kShape, 40);
  Rng rng(1);
  Checked a{SequenceCache(pool), {}};
  a.append(10, rng);
  Checked b{a.cache.fork(), a.tokens};
  b.append(3, rng);
  a.append(5, rng);
  a.expect_state();
  b.expect_state();
}

TEST(RecurrentState, IsCutBackToNothingOrACopy) {
  PagePool pool(kShape, 60);
  Rng rng(1);
  Checked a{SequenceCache(pool), {}};
  a.append(50, rng);
  a.cache.states().keep();
  a.append(20, rng);
  EXPECT_TRUE(a.cache.can_truncate(70));
  EXPECT_FALSE(a.cache.can_truncate(69));
  EXPECT_TRUE(a.cache.can_truncate(50));
  EXPECT_TRUE(a.cache.can_truncate(0));
  EXPECT_EQ(a.cache.longest_cut(69), 50);
  EXPECT_EQ(a.cache.longest_cut(49), 0);
  a.cut(50);
  a.expect_state();
  a.append(7, rng);
  a.expect_state();
  EXPECT_EQ(a.cache.longest_cut(56), 50) << "the copy is still there";
  a.cut(0);
  EXPECT_EQ(pool.n_used(), 0);
  a.append(5, rng);
  a.expect_state();
}

// What a step that failed left behind is no state.
TEST(RecurrentState, OfAStepThatFailedIsGone) {
  PagePool pool(kShape, 60);
  Rng rng(1);
  Checked a{SequenceCache(pool), {}};
  a.append(50, rng);
  a.cache.extend(5);
  EXPECT_TRUE(a.cache.can_truncate(50)) << "nothing was written yet";
  a.cache.states().begin_write();
  EXPECT_FALSE(a.cache.can_truncate(50));
  EXPECT_EQ(a.cache.longest_cut(50), 0);
  a.cut(0);
  a.append(5, rng);
  a.expect_state();
}

TEST(RecurrentState, ForgetsTheCopyWhoseLossCostsLeast) {
  PagePool pool(kShape, 200);
  Rng rng(1);
  Checked a{SequenceCache(pool), {}};
  for (int i = 0; i < RecurrentStates::kMaxKept; ++i) {
    a.append(i == 3 ? 2 : 10, rng);
    a.cache.states().keep();
  }
  EXPECT_EQ(a.cache.longest_cut(32), 32);
  a.append(10, rng);
  a.cache.states().keep();
  EXPECT_EQ(a.cache.longest_cut(32), 30) << "two tokens behind the one before";
  EXPECT_EQ(a.cache.longest_cut(82), 82);
}

TEST(RecurrentState, RandomLivesKeepTheInvariants) {
  PagePool pool(kShape, 400);
  Rng rng(5);
  std::deque<Checked> all;
  for (int event = 0; event < 3000; ++event) {
    const std::uint64_t what = rng.below(10);
    if (all.empty() || (what == 0 && all.size() < 8)) {
      all.push_back({SequenceCache(pool), {}});
      continue;
    }
    Checked& c = all[rng.below(all.size())];
    if (what == 1 && all.size() < 8) {
      all.push_back({c.cache.fork(), c.tokens});
    } else if (what == 2) {
      c.cut(c.cache.longest_cut(static_cast<std::int32_t>(rng.below(c.tokens.size() + 1))));
    } else if (what == 3 && pool.n_free() > 40) {
      c.cache.states().keep();
    } else if (what == 4) {
      Checked moved{std::move(c.cache), std::move(c.tokens)};
      c = std::move(moved);
    } else if (what == 5) {
      std::erase_if(all, [&](const Checked& x) { return &x == &c; });
    } else if (const auto n = static_cast<std::int32_t>(rng.below(40));
               n > 0 && c.cache.blocks_needed(n) <= pool.n_free()) {
      c.append(n, rng);
    }
    expect_invariants(pool, all);
    if (!all.empty() && pool.n_free() > 8) all[rng.below(all.size())].expect_state();
    if (testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace mneme
