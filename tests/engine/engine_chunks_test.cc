// With fixed rounding neither the chunks of a prompt nor its company change a bit of an answer, whatever reads it.
#include <gtest/gtest.h>

#include <map>

#include "src/engine/engine.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "tests/engine/kept_request.h"
#include "tests/model/test_models.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

std::unique_ptr<Engine> chunked_engine(int max_batched_tokens) {
  auto threads = std::make_unique<ThreadPool>(kTestThreads);
  auto model = Model::random(small_config(), DType::kBF16, {}, 11, {threads.get(), Rounding::kFixed});
  const EngineOptions options{
      .kv_memory_bytes = 8 << 20, .max_batched_tokens = max_batched_tokens, .deterministic = true};
  return std::make_unique<Engine>(std::move(model), options, std::move(threads));
}

struct ReadingMethod {
  const char* name;
  const char* overrides;
};
constexpr ReadingMethod kReadingMethods[] = {{"quest", "dense=none"},
                                             {"mneme", "dense=none"},
                                             {"freekv", "tau=0.8,dense=none"},
                                             {"louiskv", "budget=320,recent=128,tau=0.8,dense=none"},
                                             {"fier", "dense=none"},
                                             {"snapkv", ""},
                                             {"h2o", ""},
                                             {"streaming_llm", "prefill=window:32"},
                                             {"streaming_llm", "prefill=window:32,positions=absolute"},
                                             {"actqkv", "sink=8,unit=page:8,recent=16,prefill=window:32"}};

struct ChunkedAnswer {
  std::vector<std::int32_t> tokens;
  std::vector<float> logprobs;
  bool operator==(const ChunkedAnswer&) const = default;
};

ChunkedAnswer chunked_answer(int max_batched_tokens, const ReadingMethod& m) {
  const auto engine = chunked_engine(max_batched_tokens);
  Recipe recipe = make_recipe(m.name, {.budget = 160, .sink = 32, .recent = 32});
  apply_overrides(m.overrides, recipe);
  engine->start({}, kept_request(random_tokens(90, 50, 6), nullptr, 30));
  const RequestId id =
      engine->start({}, kept_request(random_tokens(301, 50, 5), compile(recipe, engine->method_shape()), 30));
  ChunkedAnswer all;
  while (!engine->idle())
    for (const RequestEvent& e : engine->step()) {
      if (e.id != id || !e.token) continue;
      all.tokens.push_back(e.token->token);
      all.logprobs.push_back(e.token->logprob);
    }
  return all;
}

TEST(EngineChunks, ChangeNoBitOfAnAnswer) {
  for (const ReadingMethod& m : kReadingMethods) {
    const ChunkedAnswer whole = chunked_answer(1000, m);
    EXPECT_EQ(whole.tokens.size(), 30u);
    for (const int n : {100, 33, 24, 1})
      EXPECT_EQ(chunked_answer(n, m), whole) << m.name << " " << m.overrides << ", " << n << " tokens a step";
  }
}

}  // namespace
}  // namespace mneme
