// Several contexts at once answer as one after another, with the shipped model.
#include <gtest/gtest.h>

#include <map>

#include "apps/eval/prose/text_source.h"
#include "apps/eval/runs/suite_prompt.h"
#include "apps/eval/runs/suite_runner.h"
#include "mneme/error.h"
#include "mneme/recipe.h"
#include "src/engine/kv_method.h"
#include "src/engine/kv_plan.h"
#include "src/formats/checkpoint.h"
#include "src/model/shapes.h"
#include "tests/test_threads.h"

namespace mneme::eval {
namespace {

std::unique_ptr<Engine> shipped_engine() {
  auto checkpoint = Checkpoint::open(MNEME_MODEL_FILE);
  EngineOptions options{.context = 512, .max_sequences = 2, .deterministic = true};
  options.kv_memory_bytes = kv_shape_of(checkpoint->config(), kv_dtype_of(options)).bytes_per_token() * 512 * 8;
  auto threads = std::make_unique<ThreadPool>(kTestThreads);
  const CpuContext context{.pool = threads.get(), .rounding = Rounding::kFixed};
  auto model = Model::load(std::move(checkpoint), {.context = 512}, context);
  return std::make_unique<Engine>(std::move(model), options, std::move(threads));
}

struct Bench {
  std::vector<SuiteContext> needles() const {
    std::vector<SuiteContext> all = read_suite(
        find_suite("niah"), {.lengths = {140}, .samples = 1, .max_tokens = 3, .prose = &prose, .counter = &counter});
    all.resize(3);
    return all;
  }

  TextSource prose = TextSource::generated();
  std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(Checkpoint::open(MNEME_MODEL_FILE)->tokenizer());
  TokenizerCounter counter{*tokenizer};
  std::unique_ptr<Engine> engine = shipped_engine();
};

using Answers = std::map<std::pair<std::int64_t, std::string>, std::vector<std::string>>;

void keep(Answers& answers, const SuiteRecord& r) {
  auto& texts = answers[{r.context, r.method}];
  for (const SuiteAnswer& a : r.answers) texts.insert(texts.end(), a.texts.begin(), a.texts.end());
  EXPECT_GT(r.prompt_tokens, 0);
  EXPECT_GT(r.cost.attended_heads, 0) << r.method;
}

TEST(SuiteTogether, AnswersAreThoseOfOneContextAfterAnother) {
  Bench bench;
  for (const QuestionPath path : {QuestionPath::kDecode, QuestionPath::kPrefill}) {
    const char* name = path == QuestionPath::kDecode ? "mneme" : "snapkv";
    const std::vector<MethodSpec> methods = {{name, make_recipe(name, {.budget = 96, .sink = 0, .recent = 32})}};
    SuiteRunner runner(*bench.engine, *bench.tokenizer, {.question = path});
    const auto contexts = bench.needles();
    Answers apart, together;
    std::vector<SuiteRunner::Numbered> numbered;
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      numbered.push_back({&contexts[i], static_cast<std::int64_t>(i)});
      runner.run(contexts[i], static_cast<std::int64_t>(i), methods, [&](const SuiteRecord& r) { keep(apart, r); });
    }
    runner.run_together(numbered, methods, [&](const SuiteRecord& r) { keep(together, r); });
    EXPECT_EQ(apart.size(), 3u);
    EXPECT_EQ(apart, together);
  }
}

TEST(SuiteTogether, RefusesConversations) {
  Bench bench;
  SuiteRunner runner(*bench.engine, *bench.tokenizer, {});
  SuiteContext talk = bench.needles().front();
  talk.make = [make = talk.make] {
    auto items = make();
    items[0].turns.push_back({"And where?", "There."});
    return items;
  };
  const std::vector<SuiteRunner::Numbered> numbered = {{&talk, 0}};
  EXPECT_THROW(runner.run_together(numbered, {{"full", make_recipe("full")}}, [](const SuiteRecord&) {}), Error);
}

}  // namespace
}  // namespace mneme::eval
