// Pools in which not everybody has room.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "src/engine/engine.h"
#include "tests/engine/hash_model.h"

namespace mneme {
namespace {

constexpr std::int64_t kPageBytes = 4096;  // of one page of tokens over the model's four (layer, head) pairs

EngineOptions pages(std::int64_t n, int max_sequences = 16) {
  EngineOptions o;
  o.kv_memory_bytes = n * kPageBytes;
  o.max_sequences = max_sequences;
  return o;
}

// 32 * n_pages tokens in the end, none of them an end token.
RequestInput filling(std::int64_t n_pages, std::int32_t answer, std::uint64_t seed) {
  RequestInput input = request(random_prompt(n_pages * 32 - answer, seed), answer);
  input.end_tokens = {};
  return input;
}

TEST(EngineMemory, ThePoolIsSizedForOneSequenceAndAPageForEveryOther) {
  EngineOptions o;
  o.context = 320;
  o.max_sequences = 5;
  TestEngine engine(o);
  EXPECT_EQ(engine->pool().n_blocks(), (10 + 5) * kHashBlocksPerPage);
  EXPECT_EQ(engine->options().context, 320);
  EXPECT_EQ(TestEngine(pages(7))->options().context, 7 * 32);
}

TEST(EngineMemory, WhoDoesNotFitWaitsAndNobodyPasses) {
  TestEngine engine(pages(10));
  std::map<RequestId, HashAnswer> expected;
  std::vector<RequestId> ids;
  for (std::int64_t n : {6, 5, 1, 4, 10, 1}) {
    const RequestInput input = filling(n, 12, n);
    ids.push_back(engine->start({}, input));
    expected[ids.back()] = answer_alone(input.prompt, input);
  }
  std::vector<RequestId> finished;
  std::map<RequestId, HashAnswer> got;
  while (!engine->idle()) {
    for (const RequestEvent& e : engine->step()) {
      if (e.token) got[e.id].tokens.push_back(e.token->token);
      if (e.finished) finished.push_back(e.id);
    }
    engine->check_invariants();
  }
  EXPECT_EQ(got, expected);
  // 6 alone (5 beside it is too much, and 1 may not pass); 5, 1 and 4 together; 10 alone; 1.
  EXPECT_EQ(finished, ids);
  std::vector<std::size_t> widths;
  for (const auto& s : engine.log->steps) widths.push_back(s.size());
  EXPECT_EQ(std::ranges::max(widths), 3u);
  EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
}

TEST(EngineMemory, AForkOfARunningSequenceWithoutRoomForACopySharesFullPages) {
  TestEngine engine(pages(4));
  const RequestInput input = filling(4, 60, 1);  // takes the whole pool in the end
  const RequestId parent = engine->start({}, input);
  for (int i = 0; i < 6; ++i) engine->step();
  const auto at_fork = joined(engine->tokens(parent), {});
  ASSERT_EQ(at_fork.size(), 74u);
  RequestInput more = request(random_prompt(2, 2), 5);
  const RequestId child = engine->start(Origin::fork(parent), more);
  EXPECT_EQ(engine->kv_bytes(child), 2u * kPageBytes);  // of 73 computed tokens 64 are shared
  engine->check_invariants();
  EXPECT_EQ(drain(*engine).of(child), answer_alone(joined(at_fork, more.prompt), more));
  EXPECT_EQ(engine->stats(child).shared_tokens, 64);
  EXPECT_EQ(engine->stats(child).prompt_tokens, 12);
  EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
}

TEST(EngineMemory, AKeptSequenceLosesItsPagesOnlyWhenNothingElseHelps) {
  TestEngine engine(pages(10));
  std::vector<RequestId> kept;
  std::vector<std::vector<std::int32_t>> tokens;
  for (std::uint64_t i = 0; i < 3; ++i) {
    RequestInput input = filling(3, 5, i);
    input.keep_sequence = true;
    kept.push_back(engine->start({}, input));
    drain(*engine);
    tokens.push_back(joined(engine->tokens(kept.back()), {}));
  }
  // One page is free. Room for two takes the last page of the first, which was used longest ago.
  engine->start({}, filling(2, 5, 9));
  drain(*engine);
  EXPECT_EQ(engine->kv_bytes(kept[0]), 2u * kPageBytes);
  EXPECT_EQ(engine->kv_bytes(kept[1]), 3u * kPageBytes);
  EXPECT_EQ(engine->kv_bytes(kept[2]), 3u * kPageBytes);
  EXPECT_TRUE(std::ranges::equal(engine->tokens(kept[0]), tokens[0]));
  // It goes on all the same: what is missing is computed again.
  RequestInput more = request(random_prompt(4, 5), 6);
  engine->start(Origin::next_turn(kept[0]), more);
  EXPECT_EQ(drain(*engine).of(kept[0]), answer_alone(joined(tokens[0], more.prompt), more));
  EXPECT_EQ(engine->stats(kept[0]).shared_tokens, 64);
  EXPECT_EQ(engine->stats(kept[0]).prompt_tokens, 36);
}

TEST(EngineMemory, WhileSomethingRunsKeptSequencesStay) {
  TestEngine engine(pages(10));
  RequestInput input = filling(5, 5, 1);
  input.keep_sequence = true;
  const RequestId kept = engine->start({}, input);
  drain(*engine);
  const RequestId running = engine->start({}, filling(4, 40, 2)), waiting = engine->start({}, filling(3, 5, 3));
  for (int i = 0; i < 39; ++i) {
    engine->step();
    EXPECT_EQ(engine->kv_bytes(kept), 5u * kPageBytes);
    EXPECT_EQ(engine->kv_bytes(waiting), 0u);
  }
  EXPECT_GT(engine->kv_bytes(running), 0u);
  drain(*engine);
  EXPECT_EQ(engine->kv_bytes(kept), 5u * kPageBytes);  // there was room once `running` had ended
}

TEST(EngineMemory, WaitingForksCannotBlockWhoIsAheadOfThem) {
  TestEngine engine(pages(8));
  RequestInput input = filling(5, 5, 1);
  input.keep_sequence = true;
  const RequestId doc = engine->start({}, input);
  drain(*engine);
  const auto all = joined(engine->tokens(doc), {});
  const RequestInput big = filling(8, 5, 2);  // needs the whole pool
  const RequestId first = engine->start({}, big);
  RequestInput more = request(random_prompt(3, 3), 9);
  std::vector<RequestId> forks;
  for (int i = 0; i < 3; ++i) forks.push_back(engine->start(Origin::fork(doc), more));
  engine->cancel(doc);
  const Drained drained = drain(*engine);
  EXPECT_EQ(drained.of(first), answer_alone(big.prompt, big));
  for (RequestId id : forks) EXPECT_EQ(drained.of(id), answer_alone(joined(all, more.prompt), more));
  EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
}

TEST(EngineMemory, ForksOfADocumentThatFillsThePoolRunOneAfterTheOther) {
  TestEngine engine(pages(6));
  RequestInput input = request(random_prompt(150, 1), 0);
  input.keep_sequence = true;
  const RequestId doc = engine->start({}, input);
  drain(*engine);
  RequestInput more = request(random_prompt(3, 3), 20);
  std::vector<RequestId> forks;
  for (int i = 0; i < 4; ++i) forks.push_back(engine->start(Origin::fork(doc), more));
  const Drained drained = drain(*engine);
  for (RequestId id : forks) EXPECT_EQ(drained.of(id), answer_alone(joined(input.prompt, more.prompt), more));
  // Six pages hold the document and the pages of one question only if they need not both have the open page.
  EXPECT_EQ(engine->kv_bytes(doc), 4u * kPageBytes);
  EXPECT_EQ(engine->stats(forks.back()).shared_tokens, 128);
}

}  // namespace
}  // namespace mneme
