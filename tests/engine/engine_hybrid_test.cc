// Models whose layers keep a state in place of keys and values: whatever happens around a sequence, its answer is that of
// a sequence that was computed in one piece.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/hybrid_engine.h"
#include "tests/error_message.h"

namespace mneme {
namespace {

std::vector<std::int32_t> joined(std::vector<std::int32_t> a, const std::vector<std::int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(EngineHybrid, NeitherChunksNorOthersChangeTheAnswer) {
  const auto prompt = random_prompt_of(200, 5);
  const auto expected = hybrid_alone(prompt);
  for (const int batched : {1000, 33, 7}) {
    const auto engine = hybrid_engine(16 << 20, batched);
    engine->start({}, kept_request(random_prompt_of(90, 6), nullptr, 30));
    const RequestId id = engine->start({}, kept_request(prompt, nullptr, 20));
    compute_all(*engine);
    EXPECT_EQ(sequence_of(*engine, id), expected) << batched << " tokens a step";
  }
}

// Kernels may read prompts in chunks of 64 rows: bits do not depend on the limit of a step.
TEST(EngineHybrid, StepsOfAPromptEndAtWholeChunks) {
  const auto prompt = random_prompt_of(200, 5);
  for (const bool deterministic : {true, false})
    for (const int batched : {1000, 77, 33, 7}) {
      const auto engine = hybrid_engine(16 << 20, batched, deterministic);
      engine->start({}, kept_request(random_prompt_of(90, 6), nullptr, 30));
      const RequestId id = engine->start({}, kept_request(prompt, nullptr, 20));
      bool kept = false;
      while (!engine->idle()) {
        engine->step();
        const std::int32_t n = engine->cache(id).length();
        EXPECT_TRUE(n >= 200 || n % 64 == 0) << n << " tokens, at most " << batched << " a step";
        kept |= n == 192;
      }
      EXPECT_TRUE(kept) << "the last whole chunk before the prompt's last eight tokens";
    }
}

TEST(EngineHybrid, ForksAndTurnsGoOnAsOneRequestWould) {
  const auto engine = hybrid_engine();
  const auto document = random_prompt_of(160, 7), question = random_prompt_of(30, 8);
  const RequestId base = engine->start({}, kept_request(document, nullptr, 5));
  compute_all(*engine);
  const RequestId fork = engine->start(Origin::fork(base), kept_request(question, nullptr, 20));
  compute_all(*engine);
  const auto expected = hybrid_alone(joined(sequence_of(*engine, base), question));
  engine->start(Origin::next_turn(base), kept_request(question, nullptr, 20));
  compute_all(*engine);
  EXPECT_EQ(sequence_of(*engine, base), expected);
  EXPECT_EQ(sequence_of(*engine, fork), expected);
}

// The state is of all tokens: the last one is computed again from the nearest copy, here the end of the first prompt.
TEST(EngineHybrid, AnAnswerWithoutANewPromptGoesOn) {
  const auto engine = hybrid_engine();
  const auto prompt = random_prompt_of(100, 7);
  const RequestId id = engine->start({}, kept_request(prompt, nullptr, 0));
  compute_all(*engine);
  engine->start(Origin::next_turn(id), kept_request({}, nullptr, 20));
  compute_all(*engine);
  EXPECT_EQ(sequence_of(*engine, id), hybrid_alone(prompt));
}

// A prompt of 150 tokens leaves a copy at 128: the last whole chunk before what a template may end it with.
TEST(EngineHybrid, APrefixIsSharedUpToACopyOfTheState) {
  const auto engine = hybrid_engine();
  const auto document = random_prompt_of(150, 7), question = random_prompt_of(30, 8);
  const RequestId parent = engine->start({}, kept_request(document, nullptr, 40));
  compute_all(*engine);
  const auto n = static_cast<std::int32_t>(engine->tokens(parent).size());
  for (const std::int32_t shared : {n - 1, 170, 128, 127}) {
    const auto before = sequence_of(*engine, parent);
    const RequestId id = engine->start(Origin::prefix(parent, shared), kept_request(question, nullptr, 20));
    compute_all(*engine);
    EXPECT_EQ(engine->stats(id).shared_tokens, shared == n - 1 ? n - 1 : shared >= 128 ? 128 : 0) << shared;
    const std::vector<std::int32_t> prefix(before.begin(), before.begin() + shared);
    EXPECT_EQ(sequence_of(*engine, id), hybrid_alone(joined(prefix, question))) << shared;
    engine->cancel(id);
  }
}

TEST(EngineHybrid, KeepsAStateWhereItIsAsked) {
  const auto engine = hybrid_engine();
  const auto document = random_prompt_of(150, 7), question = random_prompt_of(30, 8);
  const RequestId parent = engine->start({}, kept_request(document, nullptr, 5));
  EXPECT_TRUE(engine->keep_state_at(parent, 70));
  EXPECT_FALSE(engine->keep_state_at(parent, 200)) << "behind the prompt";
  EXPECT_FALSE(engine->keep_state_at(parent, 63));
  compute_all(*engine);
  EXPECT_FALSE(engine->keep_state_at(parent, 96)) << "it has ended";
  const RequestId id = engine->start(Origin::prefix(parent, 90), kept_request(question, nullptr, 20));
  compute_all(*engine);
  EXPECT_EQ(engine->stats(id).shared_tokens, 64);
  EXPECT_EQ(sequence_of(*engine, id), hybrid_alone(joined({document.begin(), document.begin() + 90}, question)));
}

TEST(EngineHybrid, PreemptedRequestsAreComputedAgain) {
  const auto prompt = random_prompt_of(60, 5);
  const auto expected = hybrid_alone(prompt, 60);
  for (const std::int64_t kib : {90, 120, 200}) {
    const auto engine = hybrid_engine(kib << 10);
    std::vector<RequestId> ids;
    for (int i = 0; i < 6; ++i) ids.push_back(engine->start({}, kept_request(prompt, nullptr, 60)));
    compute_all(*engine);
    for (const RequestId id : ids) {
      EXPECT_EQ(sequence_of(*engine, id), expected);
      EXPECT_EQ(engine->stats(id).answer_tokens, 60);
    }
  }
}

// Its own copies take the room that the turn needs: they are forgotten, whatever admission counts.
TEST(EngineHybrid, CopiesGiveWayToTheirOwnSequence) {
  const auto model = hybrid_engine();
  const KvShape& shape = model->pool().shape();
  const auto first = random_prompt_of(200, 5), second = random_prompt_of(150, 6);
  // Room for 400 tokens, their state, and little more.
  const auto n_blocks = (400 / kPageTokens + 1) * shape.blocks_per_page() + shape.state_blocks() + 1;
  for (const KvAdmission admission : {KvAdmission::kReserve, KvAdmission::kForecast}) {
    const auto engine = hybrid_engine(n_blocks * static_cast<std::int64_t>(shape.page_bytes()), 100, true, admission);
    const RequestId id = engine->start({}, kept_request(first, nullptr, 5));
    EXPECT_TRUE(engine->keep_state_at(id, 64));
    EXPECT_TRUE(engine->keep_state_at(id, 128));
    compute_all(*engine);
    const auto before = sequence_of(*engine, id);
    engine->start(Origin::next_turn(id), kept_request(second, nullptr, 40));
    compute_all(*engine);
    EXPECT_EQ(sequence_of(*engine, id), hybrid_alone(joined(before, second), 40));
  }
}

// States would fill the memory that the file was to spare.
TEST(EngineHybrid, PoolsInAFileAreRefused) {
  EngineOptions options;
  options.kv_spill = {.folder = "/nowhere", .bytes = 1 << 20};
  auto threads = std::make_unique<ThreadPool>(kTestThreads);
  auto model = Model::random(small_config(Architecture::kQwen35), DType::kBF16, {}, 11, {threads.get()});
  const std::string message =
      error_message(ErrorKind::kUnsupported, [&] { Engine(std::move(model), options, std::move(threads)); });
  EXPECT_THAT(message, testing::HasSubstr("kv_spill: this model's linear attention has states"));
  EXPECT_THAT(message, testing::HasSubstr("leave the option out"));
}

}  // namespace
}  // namespace mneme
