// What an engine tells beside tokens: scores of prompts, likeliest tokens, biases.
#include "src/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/hash_model.h"
#include "tests/error_message.h"

namespace mneme {
namespace {

TEST(Engine, ScoresEveryTokenOfThePrompt) {
  for (int chunk : {7, 32, 1024}) {
    for (std::int32_t max_tokens : {0, 4}) {
      TestEngine engine(chunked(chunk));
      RequestInput input = request(random_prompt(45, 3), max_tokens);
      input.end_tokens = {};
      input.score_prompt = 3;
      input.keep_sequence = true;
      const RequestId id = engine->start({}, input);
      const RequestId other = engine->start({}, request(random_prompt(20, 4), 6));
      const Drained drained = drain(*engine);
      EXPECT_EQ(drained.of(other), answer_alone(random_prompt(20, 4), request(random_prompt(20, 4), 6)));
      if (max_tokens > 0) {
        EXPECT_EQ(drained.of(id), answer_alone(input.prompt, input));
      }
      const auto scores = engine->prompt_scores(id);
      ASSERT_EQ(scores.size(), input.prompt.size() - 1);
      for (std::size_t i = 0; i < scores.size(); ++i) {
        const std::vector<float> logits = hash_logits(std::span(input.prompt).first(i + 1));
        EXPECT_EQ(scores[i].logprob, log_probability(logits, input.prompt[i + 1])) << i;
        ASSERT_EQ(scores[i].top.size(), 3u);
        EXPECT_EQ(scores[i].top[0].token, std::max_element(logits.begin(), logits.end()) - logits.begin());
        EXPECT_EQ(scores[i].top[0].logprob, log_probability(logits, scores[i].top[0].token));
      }
    }
  }
}

TEST(Engine, TellsTheLikeliestTokensWithEachToken) {
  TestEngine engine;
  RequestInput input = request(random_prompt(10, 3), 5);
  input.end_tokens = {};
  input.top_logprobs = 4;
  engine->start({}, input);
  std::vector<std::int32_t> tokens = input.prompt;
  while (!engine->idle()) {
    for (const RequestEvent& event : engine->step()) {
      if (!event.token) continue;
      const std::vector<float> logits = hash_logits(tokens);
      ASSERT_EQ(event.top.size(), 4u);
      EXPECT_EQ(event.top[0].token, event.token->token);
      for (std::size_t k = 0; k < 4; ++k) {
        EXPECT_EQ(event.top[k].logprob, log_probability(logits, event.top[k].token));
        EXPECT_GE(event.top[k > 0 ? k - 1 : 0].logprob, event.top[k].logprob);
      }
      tokens.push_back(event.token->token);
    }
  }
  EXPECT_EQ(tokens.size(), 15u);
}

TEST(Engine, RefusesABiasOnNoToken) {
  TestEngine engine;
  RequestInput input = request(random_prompt(10, 3), 5);
  input.sampling.logit_bias = {{.token = static_cast<std::int32_t>(kHashVocab), .bias = 1.0f}};
  EXPECT_THAT(error_message(ErrorKind::kOption, [&] { engine->start({}, input); }), ::testing::HasSubstr("logit_bias"));
}

}  // namespace
}  // namespace mneme
