// Methods that decide how a prompt is read, in the engine: what they may share, and that chunks change nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mneme/error.h"
#include "src/engine/engine.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "tests/engine/kept_request.h"
#include "tests/error_message.h"
#include "tests/model/test_models.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

std::unique_ptr<Engine> make_engine(int max_batched_tokens) {
  EngineOptions options;
  options.max_batched_tokens = max_batched_tokens;
  options.deterministic = true;
  options.kv_memory_bytes = 8 << 20;
  auto threads = std::make_unique<ThreadPool>(kTestThreads);
  auto model = Model::random(small_config(), DType::kBF16, {}, 11, {threads.get(), Rounding::kFixed});
  return std::make_unique<Engine>(std::move(model), options, std::move(threads));
}

std::shared_ptr<const Plan> plan_of(const Engine& engine, const char* name, const char* overrides = "") {
  Recipe recipe = make_recipe(name, {.budget = 64, .sink = 4});
  apply_overrides(overrides, recipe);
  return compile(recipe, engine.method_shape());
}

void drain(Engine& engine) {
  while (!engine.idle()) engine.step();
  engine.check_invariants();
}

std::vector<std::int32_t> tokens_of(const Engine& engine, RequestId id) {
  const auto t = engine.tokens(id);
  return {t.begin(), t.end()};
}

struct WindowMethod {
  const char* name;
  const char* overrides;
};
constexpr WindowMethod kWindowMethods[] = {
    {"streaming_llm", "prefill=window:32"},
    {"streaming_llm", "prefill=window:32,positions=absolute"},
    {"streaming_llm", "prefill=window:32,positions=one_angle"},
    {"actqkv", "sink=8,unit=page:8,recent=16,prefill=window:32"},
    {"actqkv", "sink=8,unit=page:8,recent=16,prefill=window:32,positions=absolute"}};

TEST(EngineWindow, NeitherChunksNorOthersChangeTheAnswer) {
  const auto prompt = random_tokens(300, 50, 5);
  for (const auto& [name, overrides] : kWindowMethods) {
    std::vector<std::int32_t> expected;
    for (const int batched : {1000, 100, 33, 1}) {
      const auto engine = make_engine(batched);
      const auto plan = plan_of(*engine, name, overrides);
      const RequestId other = engine->start({}, kept_request(random_tokens(90, 50, 6), nullptr, 30));
      const RequestId id = engine->start({}, kept_request(prompt, plan));
      drain(*engine);
      if (expected.empty()) expected = tokens_of(*engine, id);
      EXPECT_EQ(tokens_of(*engine, id), expected) << overrides << ", " << batched << " tokens a step";
      EXPECT_EQ(engine->stats(other).answer_tokens, 30);
    }
  }
}

TEST(EngineWindow, ForksAndTurnsGoOnAsOneRequestWould) {
  const auto engine = make_engine(100);
  for (const auto& [name, overrides] : kWindowMethods) {
    const auto plan = plan_of(*engine, name, overrides);
    const auto document = random_tokens(160, 50, 7), question = random_tokens(32, 50, 8);
    const RequestId base = engine->start({}, kept_request(document, plan, 0));
    drain(*engine);
    const RequestId fork = engine->start(Origin::fork(base), kept_request(question, plan));
    drain(*engine);
    engine->start(Origin::next_turn(base), kept_request(question, plan));
    drain(*engine);
    EXPECT_EQ(tokens_of(*engine, fork), tokens_of(*engine, base)) << overrides;
    // Windows end where they would in one prompt: 160 is a multiple of 32.
    auto both = document;
    both.insert(both.end(), question.begin(), question.end());
    const RequestId whole = engine->start({}, kept_request(both, plan));
    drain(*engine);
    EXPECT_EQ(tokens_of(*engine, whole), tokens_of(*engine, base)) << overrides;
    for (const RequestId id : {base, fork, whole}) engine->cancel(id);
  }
}

// A marked question changes what windows select, and nothing else.
TEST(EngineWindow, TheQuestionSpanIsTokensOfThePrompt) {
  const auto engine = make_engine(100);
  const auto plan = plan_of(*engine, "actqkv", "sink=8,unit=page:8,recent=16,prefill=window:32");
  const auto prompt = random_tokens(300, 50, 12);
  const auto answer = [&](std::pair<std::int32_t, std::int32_t> span) {
    RequestInput input = kept_request(prompt, plan);
    input.question_span = span;
    const RequestId id = engine->start({}, std::move(input));
    drain(*engine);
    const auto& stats = engine->method_stats(id)->layers[0];
    const double evenness = stats.score_entropy;
    engine->cancel(id);
    return evenness;
  };
  EXPECT_EQ(answer({0, 0}), answer({7, 7}));
  EXPECT_NE(answer({0, 0}), answer({7, 20}));
  for (const auto& span : {std::pair{-1, 3}, {5, 4}, {0, 301}}) EXPECT_THROW(answer(span), Error);
}

template <typename F>
std::string refusal(const F& action) {
  return error_message(ErrorKind::kRequest, action);
}

TEST(EngineWindow, ASequenceKeepsTheMethodThatReadIt) {
  const auto engine = make_engine(100);
  const auto windowed = plan_of(*engine, "streaming_llm"), other = plan_of(*engine, "streaming_llm"),
             quest = plan_of(*engine, "quest", "dense=none,sink=0");
  const auto prompt = random_tokens(100, 50, 9);
  const RequestId a = engine->start({}, kept_request(prompt, windowed, 0)),
                  b = engine->start({}, kept_request(prompt, quest, 0));
  drain(*engine);
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal([&] { engine->start(Origin::fork(a), kept_request({1}, quest)); }),
              HasSubstr("computed under 'streaming_llm'"));
  EXPECT_THAT(refusal([&] { engine->start(Origin::fork(a), kept_request({1}, nullptr)); }),
              HasSubstr("'streaming_llm'"));
  EXPECT_THAT(refusal([&] { engine->start(Origin::fork(a), kept_request({1}, other)); }), HasSubstr("'streaming_llm'"));
  EXPECT_THAT(refusal([&] { engine->start(Origin::next_turn(b), kept_request({1}, windowed)); }),
              HasSubstr("computed under 'quest'"));
  EXPECT_THAT(refusal([&] { engine->attach_method(b, windowed); }), HasSubstr("'streaming_llm'"));
  engine->start(Origin::fork(b), kept_request({1}, nullptr));  // read exactly: any method may go on
  engine->start(Origin::fork(a), kept_request({1}, windowed));
  drain(*engine);
}

}  // namespace
}  // namespace mneme
