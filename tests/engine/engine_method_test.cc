// The engine with methods on the shipped model: forks in the middle of an answer, several turns, edges of the budget.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <span>
#include <string>

#include "src/engine/engine.h"
#include "src/formats/checkpoint.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "src/text/chat/chat_format.h"
#include "src/text/tokenizer/tokenizer.h"
#include "tests/model/needle_prompts.h"
#include "tests/sanitized.h"

namespace mneme {
namespace {

using Tokens = std::vector<TokenId>;

struct Method {
  const char* name;
  const char* overrides;
};
constexpr Method kAll[] = {{"freekv", "tau=0.6,dense=none"},
                           {"louiskv", "tau=0.8,dense=none"},
                           {"oracle", ""},
                           {"quest", "dense=none"},
                           {"freekv", "tau=0.9,index=one_bit,unit=token"},
                           {"fier", "dense=none"}};
// Under sanitizers one whose selection is corrected and one with boundaries: each takes 5 s a test there.
constexpr std::span<const Method> kMethods(kAll, kSanitized ? 2 : std::size(kAll));

class EngineMethod : public testing::Test {
 protected:
  EngineMethod() {
    EngineOptions options;
    options.context = 8192;
    options.deterministic = true;
    auto threads = std::make_unique<ThreadPool>(1);
    auto model = Model::load(Checkpoint::open(path()), {.context = 8192}, {.pool = threads.get()});
    engine_ = std::make_unique<Engine>(std::move(model), options, std::move(threads));
  }
  static std::string path() { return std::string(MNEME_SOURCE_DIR) + "/models/needle-27m-q8_0.gguf"; }

  std::shared_ptr<const Plan> plan(const Method& m, std::int32_t budget = 512) const {
    Recipe recipe = make_recipe(m.name, {.budget = budget, .sink = 32, .recent = 128});
    apply_overrides(m.overrides, recipe);
    return compile(recipe, engine_->method_shape());
  }
  // A question of n tokens at the prompt's end goes one token a step, through the method.
  RequestInput ask(Tokens prompt, std::size_t n_question, std::shared_ptr<const Plan> method) const {
    RequestInput input;
    input.prompt = std::move(prompt);
    input.decode_prompt_tail = static_cast<std::int32_t>(n_question);
    input.max_tokens = 60;
    input.end_tokens = {*tokenizer_->eos()};
    input.keep_sequence = true;
    input.method = std::move(method);
    return input;
  }
  // A kept sequence of a document, for every method to fork.
  RequestId read(const NeedlePrompt& p) {
    RequestInput input =
        ask(format_.user_turn_split({.document = p.document, .question = p.question}, true).document, 0, nullptr);
    input.max_tokens = 0;
    const RequestId id = engine_->start({}, std::move(input));
    drain(id);
    return id;
  }
  RequestId fork(RequestId document, const NeedlePrompt& p, const std::shared_ptr<const Plan>& method) {
    engine_->attach_method(document, method);
    Tokens question = format_.user_turn_split({.document = p.document, .question = p.question}, true).question;
    const std::size_t n = question.size();
    return engine_->start(Origin::fork(document), ask(std::move(question), n, method));
  }
  // The next turn: the end of the last answer, and a turn of this document (if any) and question.
  RequestInput next(const std::string& document, const std::string& question, std::shared_ptr<const Plan> m) const {
    Tokens all = format_.end_of_answer();
    auto split = format_.user_turn_split({.document = document, .question = question}, false);
    all.insert(all.end(), split.document.begin(), split.document.end());
    all.insert(all.end(), split.question.begin(), split.question.end());
    return ask(std::move(all), split.question.size(), std::move(m));
  }

  void step(std::map<RequestId, Tokens>& answers) {
    for (const RequestEvent& e : engine_->step())
      if (e.token) answers[e.id].push_back(e.token->token);
  }
  Tokens drain(RequestId id, std::map<RequestId, Tokens> answers = {}) {
    while (!engine_->idle()) step(answers);
    engine_->check_invariants();
    return answers[id];
  }
  std::string text(const Tokens& tokens) const { return tokenizer_->decode(tokens); }

  std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::make(Checkpoint::open_tokenizer(path()));
  ChatFormat format_ = ChatFormat::detect(*tokenizer_);
  NeedleMaker maker_{NeedleMaker::made_up_prose(40000, 3), 7};
  std::unique_ptr<Engine> engine_;
};

// Selections, last queries, the index's open end: all of it goes into a fork, and stays in the original.
TEST_F(EngineMethod, AForkInTheMiddleOfAnAnswerGoesOnAsTheOriginal) {
  const NeedlePrompt p = maker_.make(NeedleKind::kNumbers, 4000);
  const RequestId document = read(p);
  for (const Method& m : kMethods) {
    SCOPED_TRACE(std::string(m.name) + " " + m.overrides);
    const auto method = plan(m);
    const Tokens expected = drain(fork(document, p, method));
    ASSERT_GE(expected.size(), 8u);
    std::map<RequestId, Tokens> answers;
    const RequestId original = fork(document, p, method);
    while (answers[original].size() < 4) step(answers);
    const RequestId other = engine_->start(Origin::fork(original), ask({}, 0, method));
    while (!engine_->idle()) step(answers);
    EXPECT_EQ(answers[original], expected);
    EXPECT_EQ(answers[other], Tokens(expected.begin() + 4, expected.end()));
    EXPECT_EQ(engine_->method_bytes(other), engine_->method_bytes(original));
    for (RequestId id : {original, other}) engine_->cancel(id);
  }
}

// A turn's tokens are indexed like the prompt's: tokens of the second turn are found in the third, and the first
// turn's fact too. The window alone holds neither.
TEST_F(EngineMethod, SeveralTurnsFindWhatEachOfThemAdded) {
  const auto tale = [](const char* fact, std::uint64_t seed) {
    return NeedleMaker::made_up_prose(1500, seed) + "\n" + fact + "\n" + NeedleMaker::made_up_prose(3000, seed + 1);
  };
  const std::string second_tale = tale("The secret number of silver-meadow is 91764.", 23);
  const NeedlePrompt first{"number", tale("The secret number of copper-lantern is 70935.", 21),
                           "What is the secret number of copper-lantern?", "70935"},
      second{"number", second_tale, "What is the secret number of silver-meadow?", "91764"};
  const RequestId document = read(first);
  const auto right = [&](const Method& m) {
    const auto method = plan(m);
    const RequestId id = fork(document, first, method);
    int n = text(drain(id)) == first.answer ? 1 : 0;
    engine_->start(Origin::next_turn(id), next(second.document, second.question, method));
    n += text(drain(id)) == second.answer ? 1 : 0;
    for (const NeedlePrompt* p : {&first, &second}) {
      engine_->start(Origin::next_turn(id), next("", p->question, method));
      n += text(drain(id)) == p->answer ? 1 : 0;
    }
    engine_->cancel(id);
    return n;
  };
  for (const Method& m : kMethods) EXPECT_EQ(right(m), 4) << m.name << " " << m.overrides;
  EXPECT_EQ(right({"window", ""}), 0);
}

// A fork taken between turns, asked the same: the same answer, and the same state afterwards.
TEST_F(EngineMethod, AForkBetweenTurnsAnswersAsTheOriginal) {
  const NeedlePrompt p = maker_.make(NeedleKind::kNumber, 3000);
  const RequestId document = read(p);
  for (const Method& m : kMethods) {
    const auto method = plan(m);
    const RequestId id = fork(document, p, method);
    drain(id);
    const RequestId other = engine_->start(Origin::fork(id), next("", "What is the pass key?", method));
    engine_->start(Origin::next_turn(id), next("", "What is the pass key?", method));
    std::map<RequestId, Tokens> answers;
    while (!engine_->idle()) step(answers);
    EXPECT_FALSE(answers[id].empty());
    EXPECT_EQ(answers[other], answers[id]) << m.name;
    EXPECT_EQ(engine_->method_bytes(other), engine_->method_bytes(id)) << m.name;
    for (RequestId each : {id, other}) engine_->cancel(each);
  }
}

TEST_F(EngineMethod, ABudgetBeyondTheContextGivesTheTokensOfFullAttention) {
  const NeedlePrompt p = maker_.make(NeedleKind::kNumbers, 3000);
  const RequestId document = read(p);
  const Tokens expected = drain(fork(document, p, plan({"full", ""})));
  EXPECT_FALSE(expected.empty());
  for (const Method& m : kMethods) EXPECT_EQ(drain(fork(document, p, plan(m, 1 << 20))), expected) << m.name;
}

// From the first token on, over page boundaries and the budget's edge, no step attends more than the budget.
TEST_F(EngineMethod, APromptOfOneTokenGrowsPastItsBudget) {
  constexpr std::int32_t kBudget = 224, kTail = 240;
  std::vector<RequestId> ids;
  for (const Method& m : kMethods) {
    Tokens prompt = {*tokenizer_->bos()};
    for (int i = 0; i < kTail; ++i) prompt.push_back(100 + i % 50);
    RequestInput input = ask(std::move(prompt), kTail, plan(m, kBudget));
    input.max_tokens = 0;
    ids.push_back(engine_->start({}, std::move(input)));
  }
  drain(ids[0]);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const MethodStats& stats = *engine_->method_stats(ids[i]);
    for (std::size_t l = 1; l < stats.layers.size(); ++l) {
      SCOPED_TRACE(std::string(kMethods[i].name) + " layer " + std::to_string(l));
      const LayerStats& s = stats.layers[l];
      EXPECT_EQ(s.sparse_steps, kTail + 1 - kBudget);
      const std::int64_t heads = s.attended_heads / kTail, whole = (kBudget * (kBudget + 1) / 2 - 1) * heads;
      EXPECT_GT(s.attended_tokens, whole);
      EXPECT_LE(s.attended_tokens - whole, s.sparse_steps * kBudget * heads);
    }
  }
}

}  // namespace
}  // namespace mneme
