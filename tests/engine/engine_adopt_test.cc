// Sequences that come from elsewhere.
#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>

#include "mneme/error.h"
#include "src/engine/engine.h"
#include "tests/engine/hash_model.h"

namespace mneme {
namespace {

// Keys and values of `from`, token by token.
void copy_kv(const SequenceCache& from, SequenceCache& to) {
  for (std::int32_t l = 0; l < from.shape().n_layers; ++l)
    for (std::int32_t h = 0; h < from.shape().n_kv_heads; ++h)
      for (std::int32_t t = 0; t < to.length(); ++t)
        std::memcpy(to.token(l, h, t), from.token(l, h, t), from.shape().token_bytes());
}

RequestInput kept(std::vector<std::int32_t> prompt, std::int32_t max_tokens = 20) {
  RequestInput input = request(std::move(prompt), max_tokens);
  input.keep_sequence = true;
  return input;
}

TEST(Adopt, GoesOnAsTheSequenceItWas) {
  for (std::size_t n : {1u, 31u, 32u, 33u, 100u}) {
    TestEngine from, to;
    const RequestId id = from->start({}, kept(random_prompt(n, n)));
    drain(*from);
    const auto tokens = from->tokens(id);
    const SequenceCache& cache = from->cache(id);
    for (const std::int32_t computed : {cache.length(), cache.length() / 2, 0}) {
      const RequestId other =
          to->adopt({tokens.begin(), tokens.end()}, computed, [&](SequenceCache& mine) { copy_kv(cache, mine); });
      to->check_invariants();
      RequestInput more = kept(random_prompt(5, 9));
      const HashAnswer expected = answer_alone(joined(tokens, more.prompt), more);
      to->start(Origin::next_turn(other), more);
      EXPECT_EQ(drain(*to).of(other), expected) << n << " tokens, " << computed << " computed";
      EXPECT_EQ(to->stats(other).shared_tokens, computed);
      to->check_invariants();
    }
  }
}

TEST(Adopt, WhatCannotBeLeavesNothing) {
  TestEngine engine({.context = 64});
  const auto kind_of = [&](std::vector<std::int32_t> tokens, std::int32_t computed) {
    try {
      engine->adopt(std::move(tokens), computed, [](SequenceCache&) {});
    } catch (const Error& e) {
      return e.kind();
    }
    return ErrorKind::kDevice;
  };
  EXPECT_EQ(kind_of({}, 0), ErrorKind::kRequest);
  EXPECT_EQ(kind_of({1, kHashVocab}, 0), ErrorKind::kRequest);
  EXPECT_EQ(kind_of(random_prompt(65, 1), 0), ErrorKind::kRequest);
  EXPECT_EQ(kind_of({1, 2}, 3), ErrorKind::kRequest);
  EXPECT_EQ(kind_of({1, 2}, -1), ErrorKind::kRequest);
  EXPECT_THROW(engine->adopt({1, 2}, 2, [](SequenceCache&) { throw std::runtime_error("unreadable"); }),
               std::runtime_error);
  EXPECT_EQ(engine->pool().n_used(), 0);
  engine->check_invariants();
}

TEST(Adopt, KeptSequencesMakeRoomAndRunningOnesDoNot) {
  EngineOptions options{.context = 128, .max_sequences = 2};
  options.kv_memory_bytes =
      static_cast<std::int64_t>(KvShape{2, 2, 8, DType::kBF16}.page_bytes()) * 4 * kHashBlocksPerPage;
  TestEngine engine(options);  // four pages
  const RequestId old = engine->start({}, kept(random_prompt(80, 1)));
  drain(*engine);
  const std::vector<std::int32_t> before(engine->tokens(old).begin(), engine->tokens(old).end());
  TestEngine elsewhere;
  const RequestId far = elsewhere->start({}, kept(random_prompt(90, 2)));
  drain(*elsewhere);
  const auto tokens = elsewhere->tokens(far);
  const auto fill = [&](SequenceCache& cache) { copy_kv(elsewhere->cache(far), cache); };
  const RequestId id = engine->adopt({tokens.begin(), tokens.end()}, 90, fill);
  engine->check_invariants();
  for (const auto& [which, known] :
       {std::pair(id, std::vector<std::int32_t>(tokens.begin(), tokens.end())), {old, before}}) {
    RequestInput more = kept({3, 4}, 4);
    engine->start(Origin::next_turn(which), more);
    EXPECT_EQ(drain(*engine).of(which), answer_alone(joined(known, more.prompt), more));
  }
  engine->start({}, request(random_prompt(90, 3), 30));
  engine->step();
  try {
    engine->adopt({tokens.begin(), tokens.end()}, 90, fill);
    ADD_FAILURE() << "a running request gave way";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kResource) << e.what();
  }
  engine->check_invariants();
  drain(*engine);
}

TEST(Adopt, DrawsFollowAnEarlierTurn) {
  TestEngine engine;
  RequestInput one = kept(random_prompt(10, 1), 6);
  one.sampling = {.temperature = 2.0f, .seed = 5};
  one.end_tokens.clear();
  const RequestId id = engine->start({}, one);
  drain(*engine);
  EXPECT_EQ(engine->sampler(id).seed(), 5u);
  EXPECT_EQ(engine->sampler(id).draws(), 6u);
  RequestInput two = one;
  two.prompt = {1};
  two.draws_before = 6;
  engine->start(Origin::next_turn(id), two);
  drain(*engine);
  EXPECT_EQ(engine->sampler(id).draws(), 12u);
}

}  // namespace
}  // namespace mneme
