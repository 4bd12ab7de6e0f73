// Models whose layers keep a state in place of keys and values: whatever happens around a sequence, its answer is that of
// a sequence that was computed in one piece.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/engine/engine.h"
#include "tests/engine/kept_request.h"
#include "tests/error_message.h"
#include "tests/model/test_models.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

std::unique_ptr<Engine> hybrid_engine(std::int64_t memory = 16 << 20, int max_batched_tokens = 100) {
  EngineOptions options;
  options.max_batched_tokens = max_batched_tokens;
  options.deterministic = true;
  options.kv_memory_bytes = memory;
  auto threads = std::make_unique<ThreadPool>(kTestThreads);
  auto model =
      Model::random(small_config(Architecture::kQwen35), DType::kBF16, {}, 11, {threads.get(), Rounding::kFixed});
  return std::make_unique<Engine>(std::move(model), options, std::move(threads));
}

void compute_all(Engine& engine) {
  while (!engine.idle()) {
    engine.step();
    engine.check_invariants();
  }
}

std::vector<std::int32_t> sequence_of(const Engine& engine, RequestId id) {
  const auto t = engine.tokens(id);
  return {t.begin(), t.end()};
}

std::vector<std::int32_t> alone(const std::vector<std::int32_t>& prompt, int max_tokens = 20) {
  const auto engine = hybrid_engine();
  const RequestId id = engine->start({}, kept_request(prompt, nullptr, max_tokens));
  compute_all(*engine);
  return sequence_of(*engine, id);
}

std::vector<std::int32_t> joined(std::vector<std::int32_t> a, const std::vector<std::int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(EngineHybrid, NeitherChunksNorOthersChangeTheAnswer) {
  const auto prompt = random_tokens(200, 50, 5);
  const auto expected = alone(prompt);
  for (const int batched : {1000, 33, 7}) {
    const auto engine = hybrid_engine(16 << 20, batched);
    engine->start({}, kept_request(random_tokens(90, 50, 6), nullptr, 30));
    const RequestId id = engine->start({}, kept_request(prompt, nullptr, 20));
    compute_all(*engine);
    EXPECT_EQ(sequence_of(*engine, id), expected) << batched << " tokens a step";
  }
}

TEST(EngineHybrid, ForksAndTurnsGoOnAsOneRequestWould) {
  const auto engine = hybrid_engine();
  const auto document = random_tokens(160, 50, 7), question = random_tokens(30, 50, 8);
  const RequestId base = engine->start({}, kept_request(document, nullptr, 5));
  compute_all(*engine);
  const RequestId fork = engine->start(Origin::fork(base), kept_request(question, nullptr, 20));
  compute_all(*engine);
  const auto expected = alone(joined(sequence_of(*engine, base), question));
  engine->start(Origin::next_turn(base), kept_request(question, nullptr, 20));
  compute_all(*engine);
  EXPECT_EQ(sequence_of(*engine, base), expected);
  EXPECT_EQ(sequence_of(*engine, fork), expected);
}

// The state is of all tokens: the last one is computed again from the nearest copy, here the end of the first prompt.
TEST(EngineHybrid, AnAnswerWithoutANewPromptGoesOn) {
  const auto engine = hybrid_engine();
  const auto prompt = random_tokens(100, 50, 7);
  const RequestId id = engine->start({}, kept_request(prompt, nullptr, 0));
  compute_all(*engine);
  engine->start(Origin::next_turn(id), kept_request({}, nullptr, 20));
  compute_all(*engine);
  EXPECT_EQ(sequence_of(*engine, id), alone(prompt));
}

TEST(EngineHybrid, APrefixIsSharedUpToTheEndOfAPrompt) {
  const auto engine = hybrid_engine();
  const auto document = random_tokens(150, 50, 7), question = random_tokens(30, 50, 8);
  const RequestId parent = engine->start({}, kept_request(document, nullptr, 40));
  compute_all(*engine);
  const auto n = static_cast<std::int32_t>(engine->tokens(parent).size());
  for (const std::int32_t shared : {n - 1, 170, 150, 149}) {
    const auto before = sequence_of(*engine, parent);
    const RequestId id = engine->start(Origin::prefix(parent, shared), kept_request(question, nullptr, 20));
    compute_all(*engine);
    EXPECT_EQ(engine->stats(id).shared_tokens, shared == n - 1 ? n - 1 : shared >= 150 ? 150 : 0) << shared;
    const std::vector<std::int32_t> prefix(before.begin(), before.begin() + shared);
    EXPECT_EQ(sequence_of(*engine, id), alone(joined(prefix, question))) << shared;
    engine->cancel(id);
  }
}

TEST(EngineHybrid, PreemptedRequestsAreComputedAgain) {
  const auto prompt = random_tokens(60, 50, 5);
  const auto expected = alone(prompt, 60);
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

}  // namespace
}  // namespace mneme
