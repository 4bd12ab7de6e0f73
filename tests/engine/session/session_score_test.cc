// Log-probabilities and logits of sessions, against teacher forcing and against one another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "src/engine/kv_method.h"
#include "tests/engine/session/session_fixture.h"
#include "tests/temp_folder.h"

namespace mneme {
namespace {

using SessionScore = SharedModelTest;

double log_sum_exp(std::span<const float> logits) {
  double largest = -INFINITY, sum = 0;
  for (const float v : logits) largest = std::max(largest, double{v});
  for (const float v : logits) sum += std::exp(v - largest);
  return largest + std::log(sum);
}

// The answer was sampled one token a step; a teacher reads it in one prefill.
TEST_F(SessionScore, AnAnswersLogprobsAreThoseOfATeacherForcedPass) {
  const AskOptions raw{.framing = Framing::kRaw, .top_logprobs = 3};
  Session asked(model()), teacher(model());
  const Answer answer = asked.ask({.question = kDocument}, {.max_tokens = 12, .ignore_end = true}, raw);
  ASSERT_EQ(answer.scores.size(), answer.tokens.size());
  // Raw text after raw text: the teacher's session holds the same tokens up to the answer.
  teacher.ask({.question = kDocument}, {.max_tokens = 1, .ignore_end = true}, raw);
  ASSERT_EQ(teacher.tokens().back(), answer.tokens.front());
  const std::string rest = model().detokenize(std::span(answer.tokens).subspan(1));
  const Scores scores = teacher.score(rest, {.top = 3, .special = SpecialTokens::kParsed});
  ASSERT_EQ(scores.tokens.size(), answer.tokens.size() - 1) << "the text is those tokens";
  for (std::size_t i = 0; i < scores.tokens.size(); ++i) {
    const TokenScore &sampled = answer.scores[i + 1], &forced = scores.tokens[i];
    EXPECT_EQ(sampled.token, answer.tokens[i + 1]);
    EXPECT_EQ(forced.token, sampled.token);
    EXPECT_NEAR(forced.logprob, sampled.logprob, 0.05) << i;
    ASSERT_EQ(sampled.top.size(), 3u);
    ASSERT_EQ(forced.top.size(), 3u);
    EXPECT_EQ(sampled.top[0].token, sampled.token) << "greedy: the likeliest";
    EXPECT_FLOAT_EQ(sampled.top[0].logprob, sampled.logprob);
    EXPECT_NEAR(forced.top[1].logprob, sampled.top[1].logprob, 0.05);
  }
}

TEST_F(SessionScore, LogitsAreWhatLogprobsComeFrom) {
  Session session(model());
  session.ask({.document = kDocument, .question = kAboutHarbour});
  const auto before = session.tokens();
  const Scores scores = session.score(" The rain fell upon the town.", {.top = 2, .logits = true});
  const std::size_t vocab = model().info().vocabulary;
  ASSERT_GE(scores.tokens.size(), 5u);
  ASSERT_EQ(scores.logits.size(), scores.tokens.size() * vocab);
  for (std::size_t i = 0; i < scores.tokens.size(); ++i) {
    const std::span<const float> row = std::span(scores.logits).subspan(i * vocab, vocab);
    const double total = log_sum_exp(row);
    const TokenScore& token = scores.tokens[i];
    EXPECT_NEAR(token.logprob, row[token.token] - total, 1e-4);
    for (const TokenLogprob& t : token.top) EXPECT_NEAR(t.logprob, row[t.token] - total, 1e-4);
    EXPECT_GE(token.top[0].logprob, token.logprob);
  }
  // The first row is what follows the session as it stands.
  const std::vector<float> next = session.logits();
  ASSERT_EQ(next.size(), vocab);
  double worst = 0;
  for (std::size_t v = 0; v < vocab; ++v) worst = std::max(worst, std::abs(double{next[v] - scores.logits[v]}));
  EXPECT_LT(worst, 0.5);
  EXPECT_EQ(session.tokens(), before);
  EXPECT_EQ(session.ask({.question = kAboutLantern}).text, "70935") << "scoring changes nothing";
}

TEST_F(SessionScore, LogitsOfASessionForetellItsNextToken) {
  Session session(model());
  session.read({.document = kDocument});
  Session other = session.fork();
  const std::vector<float> logits = session.logits();
  const Answer answer = other.ask({.question = "x"}, {.max_tokens = 1, .ignore_end = true}, {.top_logprobs = 0});
  EXPECT_EQ(answer.scores.size(), 1u);
  EXPECT_TRUE(answer.scores[0].top.empty());
  EXPECT_EQ(logits.size(), static_cast<std::size_t>(model().info().vocabulary));
  EXPECT_TRUE(std::all_of(logits.begin(), logits.end(), [](float v) { return std::isfinite(v); }));
}

TEST_F(SessionScore, AFreshSessionScoresFromTheBeginning) {
  const Session session(model());
  const Scores scores = session.score(kDocument);
  const auto tokens = model().tokenize(kDocument);
  ASSERT_GE(scores.tokens.size() + 1, tokens.size());
  for (std::size_t i = 0; i < scores.tokens.size(); ++i) {
    EXPECT_EQ(scores.tokens[scores.tokens.size() - 1 - i].token, tokens[tokens.size() - 1 - i]);
    EXPECT_LE(scores.tokens[i].logprob, 0);
    EXPECT_TRUE(scores.tokens[i].top.empty());
  }
  EXPECT_TRUE(scores.logits.empty());
  EXPECT_TRUE(session.tokens().empty());
}

// The model, of a tokenizer that adds BOS.
std::string model_with_bos() {
  std::ifstream in(kModel, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const std::string key = "tokenizer.ggml.add_bos_token";
  const std::size_t value = bytes.find(key) + key.size() + 4;  // behind the type, which is bool
  EXPECT_EQ(bytes[value], 0);
  bytes[value] = 1;
  return bytes;
}

TEST(SessionScoreWithBos, OnlyTextFromTheBeginningHasIt) {
  const TempFolder folder(TempFolder::memory());
  const auto path = folder.path() / "bos.gguf";
  std::ofstream(path, std::ios::binary) << model_with_bos();
  const LanguageModel model(path, {.context = 512, .threads = kTestThreads, .pin_threads = false});
  Session session(model);
  EXPECT_EQ(session.score(" word").tokens.size(), 1u) << "after BOS, which nothing foretells";
  session.ask({.question = "x"}, {.max_tokens = 1});
  const Scores scores = session.score(" word");
  ASSERT_EQ(scores.tokens.size(), 1u);
  EXPECT_EQ(model.detokenize(std::span(&scores.tokens[0].token, 1)), " word");
}

TEST_F(SessionScore, AbsentUnlessAskedFor) {
  Session session(model());
  EXPECT_TRUE(session.ask({.document = kDocument, .question = kAboutHarbour}).scores.empty());
}

TEST_F(SessionScore, WhatCannotBeScoredIsRefused) {
  Session session(model());
  EXPECT_EQ(kind_of([&] { session.logits(); }), ErrorKind::kRequest);
  EXPECT_EQ(kind_of([&] { session.score("a", {.top = -1}); }), ErrorKind::kOption);
  EXPECT_EQ(kind_of([&] { session.score("a", {.top = 100000}); }), ErrorKind::kOption);
  EXPECT_EQ(kind_of([&] { session.ask({.question = "x"}, {}, {.top_logprobs = -1}); }), ErrorKind::kOption);
  session.ask({.question = "x"}, {.max_tokens = 1});
  EXPECT_EQ(kind_of([&] { session.score(""); }), ErrorKind::kRequest);
  std::string vast;
  for (int i = 0; i < 3000; ++i) vast += "word ";
  EXPECT_EQ(kind_of([&] { session.score(vast); }), ErrorKind::kRequest);
  EXPECT_EQ(session.score(" word").tokens.size(), 1u);
}

using SessionMethod = SharedModelTest;

TEST_F(SessionMethod, EachTurnMayHaveItsOwn) {
  Session book(model());
  book.read({.document = kDocument});
  const auto under = [&](const char* text) {
    Session session = book.fork();
    return session.ask({.question = kAboutHarbour}, {}, {.kv = parse_recipe(text)});
  };
  const Answer full = under("full");
  EXPECT_EQ(full.text, "48213");
  const Answer quest = under("quest:budget=96,sink=16,recent=32,dense=none,unit=page:16");
  EXPECT_EQ(quest.stats.method.layers.size(), 8u);
  for (const auto& layer : quest.stats.method.layers) {
    EXPECT_FALSE(layer.dense);
    EXPECT_LE(layer.achieved_budget, 96);
    EXPECT_GT(layer.achieved_budget, 32);
  }
  EXPECT_GT(quest.stats.method.selections.made, 0);
  const Answer window = under("window:budget=24,sink=4");
  EXPECT_NE(window.text, "48213") << "24 tokens do not hold the number";

  Session session = book.fork();
  session.ask({.question = kAboutHarbour}, {}, {.kv = parse_recipe("window:budget=24,sink=4")});
  EXPECT_EQ(session.ask({.question = kAboutLantern}).text, "70935") << "the next turn attends as the session does";
}

TEST_F(SessionMethod, ASessionMayHaveItsOwn) {
  Session session(model(), make_recipe("quest", {.budget = 96, .sink = 16, .recent = 32, .dense_layers = {{0}}}));
  const Answer answer = session.ask({.document = kDocument, .question = kAboutHarbour});
  ASSERT_EQ(answer.stats.method.layers.size(), 8u);
  EXPECT_TRUE(answer.stats.method.layers[0].dense);
  EXPECT_FALSE(answer.stats.method.layers[1].dense);
  Session fork = session.fork();
  EXPECT_GT(fork.ask({.question = kAboutLantern}).stats.method.selections.made, 0) << "a fork attends as its parent";
}

TEST_F(SessionMethod, AnswersAreThoseOfAModelStartedWithIt) {
  const Recipe recipe = parse_recipe("freekv:budget=96,sink=16,recent=32,dense=none,unit=page:16");
  EngineOptions options{.context = 1024, .max_batched_tokens = 64, .threads = kTestThreads, .pin_threads = false};
  options.kv.recipe = recipe;
  const LanguageModel own(kModel, options);
  const Turn turn{.document = kDocument, .question = kAboutHarbour};
  const GenerationOptions twenty{.max_tokens = 20, .ignore_end = true};
  Session of_model(own), of_session(model(), recipe), of_turn(model());
  const Answer expected = of_model.ask(turn, twenty);
  EXPECT_GT(expected.stats.method.selections.reused, 0);
  EXPECT_EQ(of_session.ask(turn, twenty).tokens, expected.tokens);
  EXPECT_EQ(of_turn.ask(turn, twenty, {.kv = recipe}).tokens, expected.tokens);
}

TEST_F(SessionMethod, OptionsChangeTheBlocksOfARecipe) {
  KvMethodOptions options{.budget = 512, .dense_layers = {{0, 1}}, .overrides = "index=cuboid"};
  options.recipe = parse_recipe("quest:unit=page:32,sink=64");
  EXPECT_EQ(recipe_of({.method = "auto"}).name, "full");
  EXPECT_EQ(auto_method(true, true), "mneme");
  EXPECT_EQ(auto_method(true, false), "full");
  EXPECT_EQ(auto_method(false, true), "full");
  EXPECT_EQ(recipe_of(options), parse_recipe("quest:unit=page:32,sink=64,budget=512,dense=0+1,index=cuboid"));
}

TEST_F(SessionMethod, WhatBindsASessionCanNeitherFollowNorPrecedeAnother) {
  const Recipe binding = parse_recipe("streaming_llm:budget=64,sink=4");
  Session exact(model());
  exact.ask({.document = kDocument, .question = kAboutHarbour});
  const auto before = exact.tokens();
  EXPECT_EQ(kind_of([&] { exact.ask({.question = "x"}, {}, {.kv = binding}); }), ErrorKind::kRequest);
  EXPECT_EQ(exact.tokens(), before);
  EXPECT_EQ(exact.ask({.question = kAboutLantern}).text, "70935");

  Session bound(model(), binding);
  bound.ask({.document = kDocument, .question = kAboutHarbour});
  EXPECT_EQ(kind_of([&] { bound.ask({.question = "x"}, {}, {.kv = make_recipe("full")}); }), ErrorKind::kRequest);
  EXPECT_FALSE(bound.score(" word").tokens.empty()) << "scored under the session's own";
}

TEST_F(SessionMethod, ARecipeThatDoesNotCombineIsRefused) {
  Recipe recipe = make_recipe("quest");
  recipe.decode->units = TokenUnit{};
  EXPECT_EQ(kind_of([&] { Session session(model(), recipe); }), ErrorKind::kOption);
  Session session(model());
  EXPECT_EQ(kind_of([&] { session.ask({.question = "x"}, {}, {.kv = recipe}); }), ErrorKind::kOption);
  recipe = make_recipe("quest");
  recipe.dense_layers = {99};
  EXPECT_EQ(kind_of([&] { session.ask({.question = "x"}, {}, {.kv = recipe}); }), ErrorKind::kOption);
  EXPECT_TRUE(session.tokens().empty());
}

}  // namespace
}  // namespace mneme
