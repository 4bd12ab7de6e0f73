// Followers repeat a leader's calls: thousands of drawn ones, in pools that are too small for them, with every step
// compared; what ends or differs ends all.
#include <gmock/gmock.h>

#include "src/engine/ranks/rank_engine.h"
#include "tests/engine/random_life.h"
#include "tests/parallel/ranks.h"

namespace mneme {
namespace {

using parallel_test::in_threads;
using testing::Each;
using testing::HasSubstr;

void follow(TestEngine& engine) {
  while (repeat_next_call(*engine.engine, [](std::uint8_t, std::span<const std::byte>) {})) engine->check_invariants();
}

// What every rank saw of `n_events` events, step by step.
void expect_same_lives(int size, const EngineOptions& options, std::uint64_t seed, int n_events) {
  std::vector<std::vector<std::vector<std::int32_t>>> steps(size);
  EXPECT_THAT(in_threads(size,
                         [&](Collective& ranks) {
                           EngineOptions mine = options;
                           if (ranks.rank() == 0) {
                             mine.kv_memory_bytes += 3 * 4096;  // the smallest pool is everyone's
                             RandomLife life(mine, seed, &ranks);
                             life.run(n_events);
                             steps[0] = life.log().steps;
                             return;
                           }
                           TestEngine engine(mine, 1, &ranks);
                           follow(engine);
                           steps[ranks.rank()] = engine.log->steps;
                         }),
              Each(""));
  EXPECT_GT(steps[0].size(), 50u);
  for (int r = 1; r < size; ++r) EXPECT_EQ(steps[r], steps[0]) << "rank " << r;
}

TEST(RankCalls, TwoRanksInARoomyAndInTightPools) {
  expect_same_lives(2, random_life_options(400, 8, 64), 1, 2000);
  for (std::uint64_t seed = 10; seed < 13; ++seed) expect_same_lives(2, random_life_options(12, 8, 40), seed, 2000);
}

TEST(RankCalls, FourRanksThatForecastsOvercommit) {
  for (std::uint64_t seed = 40; seed < 42; ++seed) {
    EngineOptions o = random_life_options(9, 8, 40);
    o.kv_admission = KvAdmission::kForecast;
    o.inter_token_ms = seed % 2 == 0 ? 0 : 0.05;  // the leader's clock alone decides
    expect_same_lives(4, o, seed, 1000);
  }
}

TEST(RankCalls, ALeaderThatEndsWithoutAWordEndsItsFollowers) {
  const std::vector<std::string> errors = in_threads(2, [](Collective& ranks) {
    TestEngine engine({.context = 4096}, 1, &ranks);
    if (ranks.rank() == 0) {
      engine->start({}, request({1, 2, 3}));
      ranks.abort("the leader fell");
      return;
    }
    follow(engine);
  });
  EXPECT_THAT(errors[1], HasSubstr("the leader fell"));
}

TEST(RankCalls, AStepThatFailsOnOneRankEndsAll) {
  const std::vector<std::string> errors = in_threads(2, [](Collective& ranks) {
    TestEngine engine({.context = 4096}, 1, &ranks);
    if (ranks.rank() == 1) engine.log->fail_in = 2;
    if (ranks.rank() == 1) return follow(engine);
    engine->start({}, request({1, 2, 3}, 1000));
    while (!engine->idle()) engine->step();
  });
  EXPECT_THAT(errors[0], HasSubstr("the test asked for it"));
  EXPECT_THAT(errors[1], HasSubstr("the test asked for it"));
}

}  // namespace
}  // namespace mneme
