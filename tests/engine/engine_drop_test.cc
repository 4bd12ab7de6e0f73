// Sequences that drop tokens, through the engine: in a batch, in forks, in turns, when memory is short.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "mneme/error.h"
#include "src/engine/engine.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "tests/engine/kept_request.h"
#include "tests/error_message.h"
#include "tests/model/test_models.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using Tokens = std::vector<std::int32_t>;

Tokens prompt_of(std::size_t n, std::uint64_t seed) {
  return random_tokens(n, 50, seed);
}

class EngineDrop : public ::testing::TestWithParam<const char*> {
 protected:
  static std::unique_ptr<Engine> make_engine(std::int64_t pages = 0) {
    auto threads = std::make_unique<ThreadPool>(1);
    auto model = Model::random(small_config(), DType::kF32, {}, 5, {.pool = threads.get()});
    EngineOptions options{.context = 448, .max_batched_tokens = 64, .deterministic = true};
    options.kv_memory_bytes =
        (pages == 0 ? 400 : pages) * static_cast<std::int64_t>(model->kv_shape(DType::kBF16).page_bytes()) * 4;
    return std::make_unique<Engine>(std::move(model), options, std::move(threads));
  }
  static std::shared_ptr<const Plan> plan(const Engine& engine, std::string_view method,
                                          std::string_view overrides = "dense=none,budget=48") {
    Recipe r = make_recipe(method, {.budget = 48});
    if (method == "refreekv") overrides = "dense=none,loss=0.7";
    if (method == "snapkv") overrides = "rows=8,recent=8";
    apply_overrides(overrides, r);
    return compile(r, engine.method_shape());
  }
  // Steps until all have ended; the answers' tokens.
  static std::map<RequestId, Tokens> drain(Engine& engine) {
    std::map<RequestId, Tokens> answers;
    while (!engine.idle()) {
      for (const RequestEvent& e : engine.step())
        if (e.token) answers[e.id].push_back(e.token->token);
      engine.check_invariants();
    }
    return answers;
  }
  static Tokens run(Engine& engine, RequestInput input) {
    const RequestId id = engine.start({}, std::move(input));
    return drain(engine)[id];
  }
  template <typename F>
  static std::string refusal(const F& action) {
    return error_message(ErrorKind::kRequest, action);
  }
};

TEST_P(EngineDrop, TheMethodMattersAndMemoryIsFreed) {
  const auto engine = make_engine();
  const auto method = plan(*engine, GetParam());
  const RequestId full = engine->start({}, kept_request(prompt_of(300, 1), nullptr));
  const RequestId id = engine->start({}, kept_request(prompt_of(300, 1), method));
  auto answers = drain(*engine);
  EXPECT_NE(answers[id], answers[full]) << "random weights attend everywhere";
  EXPECT_TRUE(engine->cache(id).dropped());
  EXPECT_LT(engine->kv_bytes(id), engine->kv_bytes(full));
  const MethodStats& stats = *engine->method_stats(id);
  EXPECT_EQ(stats.layers[0].retention.prefill_ends, 1);
  EXPECT_GT(stats.layers[0].retention.dropped_tokens, 0);
  EXPECT_GT(stats.prefill_end_seconds, 0);
}

// What was dropped stays dropped, whoever goes on: the sequence itself, or a fork.
TEST_P(EngineDrop, ForksAndTurnsGoOnAlike) {
  const auto engine = make_engine();
  const auto method = plan(*engine, GetParam());
  const RequestId id = engine->start({}, kept_request(prompt_of(200, 2), method));
  drain(*engine);
  const RequestId fork = engine->start(Origin::fork(id), kept_request(prompt_of(40, 3), method));
  const RequestId other = engine->start(Origin::fork(id), kept_request(prompt_of(30, 4), method));
  engine->start(Origin::next_turn(id), kept_request(prompt_of(40, 3), method));
  auto answers = drain(*engine);
  EXPECT_EQ(answers[fork], answers[id]);
  EXPECT_EQ(answers[id].size(), 12u);
  EXPECT_NE(answers[other], answers[id]);
  for (std::int32_t l = 0; l < 2; ++l)
    for (std::int32_t h = 0; h < 2; ++h) EXPECT_EQ(engine->cache(fork).stored(l, h), engine->cache(id).stored(l, h));
  EXPECT_LT(engine->cache(id).n_stored(0, 0), engine->cache(id).length());
  engine->cancel(id);
  drain(*engine);
  engine->start(Origin::next_turn(fork), kept_request(prompt_of(5, 6), nullptr));
  EXPECT_EQ(drain(*engine)[fork].size(), 12u) << "full attention over what is left";
}

TEST_P(EngineDrop, InABatchAsAlone) {
  std::vector<Tokens> expected;
  for (std::uint64_t i = 0; i < 4; ++i) {
    const auto engine = make_engine();
    expected.push_back(
        run(*engine, kept_request(prompt_of(150 + 30 * i, i), i == 2 ? nullptr : plan(*engine, GetParam()))));
  }
  const auto engine = make_engine();
  const auto method = plan(*engine, GetParam());
  std::vector<RequestId> ids;
  for (std::uint64_t i = 0; i < 4; ++i)
    ids.push_back(engine->start({}, kept_request(prompt_of(150 + 30 * i, i), i == 2 ? nullptr : method)));
  auto answers = drain(*engine);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(answers[ids[i]], expected[i]) << i;
}

// A sequence that dropped tokens cannot lose some more from its end: it loses all, and is computed again when it goes
// on.
TEST_P(EngineDrop, EvictedMemoryIsRecomputed) {
  const auto engine = make_engine(14);
  const auto method = plan(*engine, GetParam());
  const RequestId a = engine->start({}, kept_request(prompt_of(200, 7), method));
  drain(*engine);
  ASSERT_TRUE(engine->cache(a).dropped());
  const RequestId b = engine->start({}, kept_request(prompt_of(380, 8), nullptr));
  EXPECT_EQ(drain(*engine)[b].size(), 12u);
  EXPECT_EQ(engine->cache(a).length(), 0);
  engine->cancel(b);
  engine->start(Origin::next_turn(a), kept_request(prompt_of(9, 9), method));
  EXPECT_EQ(drain(*engine)[a].size(), 12u);
  EXPECT_TRUE(engine->cache(a).dropped());
}

// What a method looks at when a prefill ends is computed again: the answer is a fresh request's.
TEST_P(EngineDrop, AForkOfAPrefixAnswersAsAFreshRequest) {
  const auto engine = make_engine();
  const auto method = plan(*engine, GetParam());
  const Tokens document = prompt_of(220, 10);
  const RequestId base = engine->start({}, kept_request(document, nullptr, 0));
  drain(*engine);
  const std::int32_t rows = method->observed_rows == Plan::kAllRows ? 220 : method->observed_rows;
  for (const std::int32_t tail : {1, 5, 30}) {
    const RequestId fork =
        engine->start(Origin::prefix(base, 220 - tail), kept_request({document.end() - tail, document.end()}, method));
    const RequestId fresh = engine->start({}, kept_request(document, method));
    auto answers = drain(*engine);
    EXPECT_EQ(answers[fork], answers[fresh]) << tail;
    EXPECT_EQ(engine->stats(fork).shared_tokens, std::min(220 - tail, 220 - rows));
    // Nothing of what has dropped tokens is there to share.
    Tokens joined(document.begin(), document.begin() + 100);
    for (std::int32_t t : prompt_of(50, 11)) joined.push_back(t);
    const RequestId early = engine->start(Origin::prefix(fork, 100), kept_request(prompt_of(50, 11), method));
    const RequestId same = engine->start({}, kept_request(joined, method));
    answers = drain(*engine);
    EXPECT_EQ(answers[early], answers[same]);
    EXPECT_EQ(engine->stats(early).shared_tokens, 0);
    for (RequestId id : {fork, fresh, early, same}) engine->cancel(id);
  }
  EXPECT_FALSE(engine->cache(base).dropped());
}

TEST_P(EngineDrop, MethodsThatSelectCannotGoOn) {
  const auto engine = make_engine();
  const RequestId id = engine->start({}, kept_request(prompt_of(200, 2), plan(*engine, GetParam())));
  drain(*engine);
  const auto oracle = plan(*engine, "oracle", "sink=4,recent=4");
  EXPECT_THAT(refusal([&] {
                engine->start(Origin::next_turn(id), kept_request({1, 2}, oracle));
              }),
              HasSubstr("were dropped by a KV method"));
  EXPECT_THAT(refusal([&] { engine->start(Origin::fork(id), kept_request({1, 2}, oracle)); }), HasSubstr("'oracle'"));
  EXPECT_THAT(refusal([&] { engine->attach_method(id, oracle); }), HasSubstr("'oracle'"));
  const bool by_head = std::string_view(GetParam()) == "snapkv" || std::string_view(GetParam()) == "h2o";
  const std::string layer = refusal([&] {
    engine->start(Origin::next_turn(id), kept_request({1, 2}, plan(*engine, "tova")));
  });
  drain(*engine);
  if (!by_head) {
    EXPECT_EQ(layer, "");
  }
  engine->check_invariants();
}

INSTANTIATE_TEST_SUITE_P(Methods, EngineDrop, ::testing::Values("refreekv", "snapkv", "h2o", "tova"));

}  // namespace
}  // namespace mneme
