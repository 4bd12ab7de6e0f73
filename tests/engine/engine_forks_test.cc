// Forks, prefixes that one request takes from another, and requests that are held for them.
#include "src/engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/hash_model.h"

namespace mneme {
namespace {

// Wherever the parent stands, its fork goes on from all of its tokens, and neither disturbs the other.
TEST(Engine, AForkAtAnyPointGivesWhatAFreshSequenceGives) {
  for (int after = 0; after <= 45; after += (after < 6 || after > 30 ? 1 : 5)) {
    for (std::size_t n_extra : {0u, 1u, 40u}) {
      EngineOptions options = chunked(20);
      options.kv_memory_bytes = 1 << 20;
      TestEngine engine(options);
      RequestInput input = request(random_prompt(90, 6), 45);
      input.end_tokens = {};
      const RequestId parent = engine->start({}, input);
      for (int i = 0; i < after; ++i) engine->step();
      ASSERT_FALSE(engine->idle());
      const auto at_fork = joined(engine->tokens(parent), {});
      RequestInput more = request(random_prompt(n_extra, 99), 20);
      more.sampling = {.temperature = 1, .repetition_penalty = 1.4f, .seed = 17};
      const RequestId child = engine->start(Origin::fork(parent), more);
      engine->check_invariants();
      const Drained drained = drain(*engine);
      EXPECT_EQ(drained.of(child), answer_alone(joined(at_fork, more.prompt), more)) << after;
      const auto parent_rest = drained.of(parent).tokens;
      const auto expected = joined(input.prompt, answer_alone(input.prompt, input).tokens);
      EXPECT_EQ(joined(at_fork, parent_rest), expected) << after;
      EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
    }
  }
}

TEST(Engine, AForkOfAPrefixAnswersAsIfItHadReadEverything) {
  for (std::int32_t shared : {0, 1, 31, 32, 33, 64, 90, 100, 120}) {
    TestEngine engine;
    RequestInput first = request(random_prompt(100, 9), 30);
    first.end_tokens = {};
    first.keep_sequence = true;
    const RequestId parent = engine->start({}, first);
    drain(*engine);
    const std::vector<std::int32_t> all(engine->tokens(parent).begin(), engine->tokens(parent).end());
    ASSERT_EQ(all.size(), 130u);
    const auto before = std::span(all).first(shared);
    RequestInput second = request(random_prompt(40, 10), 12);
    const RequestId fork = engine->start(Origin::prefix(parent, shared), second);
    engine->check_invariants();
    EXPECT_EQ(drain(*engine).of(fork), answer_alone(joined(before, second.prompt), second)) << shared;
    EXPECT_EQ(engine->stats(fork).shared_tokens, shared);
    EXPECT_TRUE(std::ranges::equal(engine->tokens(parent), all));
    engine->cancel(parent);
    EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
  }
}

TEST(Engine, AForkOfAPrefixOfARunningRequestLeavesItAlone) {
  TestEngine engine(chunked(32));
  const RequestInput first = request(random_prompt(100, 9), 30);
  const RequestId parent = engine->start({}, first);
  engine->step();
  engine->step();  // 64 tokens are computed
  const RequestInput second = request(random_prompt(5, 11), 9);
  const RequestId fork = engine->start(Origin::prefix(parent, 96), second);
  const Drained drained = drain(*engine);
  EXPECT_EQ(drained.of(parent), answer_alone(first.prompt, first));
  EXPECT_EQ(drained.of(fork), answer_alone(joined(std::span(first.prompt).first(96), second.prompt), second));
  EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
}

TEST(Engine, AHeldRequestStartsFromWhatAnotherOneHasComputed) {
  for (std::int32_t shared : {0, 32, 64, 96}) {
    TestEngine engine(chunked(32));
    const RequestInput first = request(random_prompt(130, 9), 9);
    const RequestId leader = engine->start({}, first);
    const RequestInput second = request(joined(std::span(first.prompt).first(96), random_prompt(20, 11)), 9);
    const RequestId held = engine->start({}, second);
    engine->hold(held);
    for (int i = 0; i < 3; ++i) engine->step();  // 96 tokens are computed
    EXPECT_EQ(engine->cache(held).length(), 0);
    EXPECT_EQ(engine->take_prefix(held, leader, shared), shared);
    engine->check_invariants();
    EXPECT_EQ(engine->take_prefix(held, leader, 32), std::max(shared, 32)) << "never less than it has";
    engine->unhold(held);
    const Drained drained = drain(*engine);
    EXPECT_EQ(drained.of(leader), answer_alone(first.prompt, first)) << shared;
    EXPECT_EQ(drained.of(held), answer_alone(second.prompt, second)) << shared;
    EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
  }
}

// It runs, is held, and goes on from what another one has read of its prompt meanwhile. Its reservation stays.
TEST(Engine, ARunningRequestIsHeldAndTakesAPrefixOver) {
  TestEngine engine(chunked(32));
  const RequestInput first = request(random_prompt(200, 9), 9);
  RequestInput urgent = request(joined(std::span(first.prompt).first(192), random_prompt(20, 11)), 9);
  urgent.priority = 1;
  const RequestId slow = engine->start({}, first);
  engine->step();
  const RequestId fast = engine->start({}, urgent);
  EXPECT_EQ(engine->take_prefix(fast, slow, 32), 32);
  engine->hold(slow);
  const std::int64_t reserved = engine->reserved_blocks();
  for (int i = 0; i < 5; ++i) engine->step();
  EXPECT_EQ(engine->cache(slow).length(), 32);
  EXPECT_GE(engine->reserved_blocks(), reserved);
  EXPECT_EQ(engine->take_prefix(slow, fast, 192), 192);
  engine->check_invariants();
  engine->unhold(slow);
  const Drained drained = drain(*engine);
  EXPECT_EQ(drained.of(slow), answer_alone(first.prompt, first));
  EXPECT_EQ(drained.of(fast), answer_alone(urgent.prompt, urgent));
  EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
}

// Whom it waited for is gone, and nobody else runs.
TEST(Engine, AHeldRequestThatRunsGoesOnBeforeAStepFindsNothing) {
  EngineOptions options = chunked(32);
  options.context = 256;
  options.kv_memory_bytes = 8 * 4096;
  TestEngine engine(options);
  const RequestInput input = request(random_prompt(150, 9), 5), other = request(random_prompt(150, 10), 5);
  const RequestId runs = engine->start({}, input);
  engine->step();
  engine->hold(runs);
  const RequestId waits = engine->start({}, other);  // without room beside it
  const Drained drained = drain(*engine);
  EXPECT_EQ(drained.of(runs), answer_alone(input.prompt, input));
  EXPECT_EQ(drained.of(waits), answer_alone(other.prompt, other));
}

TEST(Engine, AHeldRequestDelaysNobodyAndKeepsItsPosition) {
  EngineOptions options = chunked(32);
  options.max_sequences = 1;
  TestEngine engine(options);
  const RequestInput input = request(random_prompt(40, 9), 5);
  const RequestId held = engine->start({}, input), second = engine->start({}, input), third = engine->start({}, input);
  engine->hold(held);
  EXPECT_EQ(engine->views().size(), 2u);
  engine->step();
  EXPECT_GT(engine->cache(second).length(), 0);
  engine->unhold(held);
  std::vector<RequestId> order;  // in which they end
  while (!engine->idle())
    for (const RequestEvent& event : engine->step())
      if (event.finished) order.push_back(event.id);
  EXPECT_EQ(order, (std::vector{second, held, third}));
  // Alone it has nothing to compute, and can be cancelled.
  const RequestId last = engine->start({}, input);
  engine->hold(last);
  EXPECT_TRUE(engine->step().empty());
  engine->cancel(last);
  EXPECT_EQ(engine->step().size(), 1u);
  EXPECT_TRUE(engine->idle());
}

}  // namespace
}  // namespace mneme
