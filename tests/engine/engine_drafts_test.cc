// Drafts change what steps compute, and nothing that a request is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/engine/speculation/speculation.h"
#include "src/recipes/recipes.h"
#include "tests/engine/hash_model.h"
#include "tests/engine/test_drafter.h"
#include "tests/error_message.h"

namespace mneme {
namespace {

using Tokens = std::vector<std::int32_t>;

// The answer's tokens, and the one that ends it.
Tokens told_and_end(const Tokens& before, const RequestInput& input) {
  HashAnswer answer = answer_alone(before, input);
  if (answer.reason == StopReason::kEnd) answer.tokens.push_back(kHashEnd);
  return answer.tokens;
}

std::shared_ptr<TestDrafter> give_drafter(RequestInput& input, TestDrafter::Options options) {
  auto drafter = std::make_shared<TestDrafter>(input.prompt.size(), told_and_end(input.prompt, input), options);
  input.drafter = drafter;
  return drafter;
}

RequestInput sampled(std::uint64_t seed, std::int32_t max_tokens = 60) {
  RequestInput input = request(random_prompt(20, seed), max_tokens);
  input.sampling = {.temperature = 0.9f,
                    .top_p = 0.95f,
                    .repetition_penalty = 1.1f,
                    .presence_penalty = 0.2f,
                    .frequency_penalty = 0.3f,
                    .seed = seed};
  return input;
}

// Forward passes behind the one of the prompt.
std::size_t decode_steps(const TestEngine& engine) {
  return engine.log->steps.size() - 1;
}

TEST(EngineDrafts, RightOnesTakeOneStepForAllOfThem) {
  for (std::int32_t max_tokens : {1, 2, 7, 8, 9, 31, 64, 65}) {
    TestEngine engine;
    RequestInput input = request(random_prompt(40, 3), max_tokens);
    input.end_tokens = {};
    const auto drafter = give_drafter(input, {.k = 7});
    const HashAnswer expected = answer_alone(input.prompt, input);
    const RequestId id = engine->start({}, input);
    EXPECT_EQ(drain(*engine).of(id), expected) << max_tokens;
    EXPECT_EQ(decode_steps(engine), static_cast<std::size_t>((max_tokens - 1 + 7) / 8)) << max_tokens;
    EXPECT_EQ(drafter->counts.accepted, drafter->counts.drafted);
    EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
  }
}

TEST(EngineDrafts, WrongOnesChangeNothing) {
  TestEngine engine;
  RequestInput input = sampled(4);
  input.end_tokens = {};
  const auto drafter = give_drafter(input, {.k = 5, .truth = 0});
  const RequestId id = engine->start({}, input);
  EXPECT_EQ(drain(*engine).of(id), answer_alone(input.prompt, input));
  EXPECT_EQ(decode_steps(engine), 59u);
  EXPECT_EQ(drafter->counts.accepted, 0);
  EXPECT_GT(drafter->counts.drafted, 200);
}

TEST(EngineDrafts, RightUpToEachPosition) {
  for (std::int32_t right = 0; right <= 9; ++right) {
    TestEngine engine;
    RequestInput input = sampled(10 + right);
    input.end_tokens = {};
    give_drafter(input, {.k = 9, .right_up_to = right});
    const RequestId id = engine->start({}, input);
    EXPECT_EQ(drain(*engine).of(id), answer_alone(input.prompt, input)) << right;
    EXPECT_EQ(decode_steps(engine), static_cast<std::size_t>((59 + right) / (right + 1))) << right;
  }
}

// Greedy and sampled answers of any length that end by themselves, drafts of any quality, chunks of any size, others
// beside them.
TEST(EngineDrafts, AnswersAreTheSameForEverySeed) {
  int n_ends = 0, n_accepted = 0, n_drafted = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Rng rng(seed);
    TestEngine engine(chunked(1 + static_cast<int>(rng.below(30))));
    std::vector<std::pair<RequestId, HashAnswer>> expected;
    std::vector<std::shared_ptr<TestDrafter>> drafters;
    for (std::uint64_t i = 0; i < 3; ++i) {
      RequestInput input = sampled(3 * seed + i, 1 + static_cast<std::int32_t>(rng.below(80)));
      if (rng.below(3) == 0) input.sampling = {};
      if (rng.below(2) == 0) input.end_tokens = {};
      const double truths[] = {0, 0.5, 0.9, 1};
      if (i < 2)
        drafters.push_back(give_drafter(
            input, {.k = 1 + static_cast<std::int32_t>(rng.below(20)), .truth = truths[rng.below(4)], .outside = 0.1}));
      const HashAnswer answer = answer_alone(input.prompt, input);
      n_ends += answer.reason == StopReason::kEnd ? 1 : 0;
      expected.emplace_back(engine->start({}, input), answer);
    }
    const Drained drained = drain(*engine);
    for (const auto& [id, answer] : expected) ASSERT_EQ(drained.of(id), answer) << seed;
    for (const auto& d : drafters) n_accepted += d->counts.accepted, n_drafted += d->counts.drafted;
    ASSERT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
  }
  EXPECT_GT(n_ends, 100);
  EXPECT_GT(n_accepted, 4000);
  EXPECT_GT(n_drafted, n_accepted + 4000);
}

// Log-probabilities, likeliest tokens, and logits in order of position.
TEST(EngineDrafts, WhatIsToldOfLogitsIsTheSame) {
  struct Told {
    std::vector<std::pair<std::int32_t, std::vector<float>>> rows;
    std::vector<float> logprobs;
    std::vector<std::int32_t> top;
    bool operator==(const Told&) const = default;
  };
  const auto run = [](double truth, bool drafts) {
    Told told;
    TestEngine engine;
    RequestInput input = sampled(8);
    input.top_logprobs = 3;
    input.on_logits = [&](std::int32_t position, std::span<const float> logits) {
      told.rows.emplace_back(position, std::vector<float>(logits.begin(), logits.end()));
    };
    if (drafts) give_drafter(input, {.k = 6, .truth = truth});
    engine->start({}, input);
    while (!engine->idle())
      for (const RequestEvent& e : engine->step()) {
        if (e.token) told.logprobs.push_back(e.token->logprob);
        for (const TokenLogprob& t : e.top) told.top.push_back(t.token);
      }
    return told;
  };
  const Told plain = run(0, false);
  EXPECT_GT(plain.rows.size(), 3u);
  for (const double truth : {0.0, 0.6, 1.0}) EXPECT_EQ(run(truth, true), plain) << truth;
}

// After each token only two thirds of the vocabulary may come next.
class ThirdsForbidden final : public TokenConstraint {
 public:
  explicit ThirdsForbidden(std::int32_t state) : state_(state) {}
  void allowed(std::span<std::uint64_t> mask) const override {
    std::fill(mask.begin(), mask.end(), 0);
    for (std::int32_t t = 0; t < kHashVocab; ++t)
      if ((t + state_) % 3 != 0) mask[t / 64] |= std::uint64_t{1} << t % 64;
  }
  std::shared_ptr<const TokenConstraint> after(std::int32_t token) const override {
    EXPECT_NE((token + state_) % 3, 0) << "a forbidden token";
    return std::make_shared<ThirdsForbidden>(state_ + token);
  }

 private:
  std::int32_t state_;
};

TEST(EngineDrafts, GrammarsSeeOnlyWhatTheyAllow) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto answer_of = [&](std::shared_ptr<Drafter> drafter) {
      TestEngine engine;
      RequestInput input = sampled(seed, 40);
      input.constraint = std::make_shared<ThirdsForbidden>(static_cast<std::int32_t>(seed));
      input.drafter = std::move(drafter);
      const RequestId id = engine->start({}, input);
      return drain(*engine).of(id);
    };
    const HashAnswer plain = answer_of(nullptr);
    for (const double truth : {0.0, 0.5, 1.0}) {
      const auto drafter = std::make_shared<TestDrafter>(
          20, plain.tokens, TestDrafter::Options{.k = 6, .truth = truth, .outside = 0.1}, seed);
      ASSERT_EQ(answer_of(drafter), plain) << seed << ", " << truth;
      if (truth == 1) {
        EXPECT_GE(drafter->counts.accepted, size32(plain.tokens) / 2) << seed;
      }
    }
  }
}

// Between two tokens of one step a request can be stopped, forked and followed by a turn: as if each had its own step.
TEST(EngineDrafts, ARequestThatIsStoppedBetweenAcceptedTokens) {
  for (std::size_t stop_at = 1; stop_at < 20; ++stop_at) {
    TestEngine engine;
    RequestInput input = sampled(5);
    input.end_tokens = {};
    input.keep_sequence = true;
    give_drafter(input, {.k = 7});
    const HashAnswer whole = answer_alone(input.prompt, input);
    const RequestId id = engine->start({}, input);
    std::size_t n = 0;
    while (n < stop_at)
      for (const RequestEvent& e : engine->step()) n += e.token ? 1 : 0;
    const RequestInput branch = request({4, 5, 6}, 10);
    const Tokens so_far = joined(input.prompt, std::span(whole.tokens).first(stop_at));
    const RequestId fork = engine->start(Origin::fork(id), branch);
    engine->check_invariants();
    engine->stop(id);
    engine->check_invariants();
    EXPECT_THAT(Tokens(engine->tokens(id).begin(), engine->tokens(id).end()), so_far);
    EXPECT_EQ(engine->cache(id).length(), size32(so_far) - 1);
    EXPECT_EQ(engine->sampler(id).draws(), stop_at);
    EXPECT_EQ(drain(*engine).of(fork), answer_alone(joined(so_far, branch.prompt), branch)) << stop_at;
    engine->start(Origin::next_turn(id), branch);
    EXPECT_EQ(drain(*engine).of(id), answer_alone(joined(so_far, branch.prompt), branch)) << stop_at;
  }
}

TEST(EngineDrafts, AForkOfARequestThatGoesOn) {
  for (std::size_t at = 1; at < 12; ++at) {
    TestEngine engine;
    RequestInput input = sampled(6);
    input.end_tokens = {};
    give_drafter(input, {.k = 7});
    const HashAnswer whole = answer_alone(input.prompt, input);
    const RequestId id = engine->start({}, input);
    Tokens got;
    const auto step = [&] {
      for (const RequestEvent& e : engine->step())
        if (e.id == id && e.token) got.push_back(e.token->token);
    };
    while (got.size() < at) step();
    const RequestInput branch = request({4, 5, 6}, 10);
    const Tokens before = joined(joined(input.prompt, got), branch.prompt);
    const RequestId fork = engine->start(Origin::fork(id), branch);
    const Drained drained = drain(*engine);
    EXPECT_EQ(drained.of(fork), answer_alone(before, branch)) << at;
    EXPECT_EQ(joined(got, drained.of(id).tokens), whole.tokens) << at;
  }
}

TEST(EngineDrafts, AStepThatFailsIsTriedAgain) {
  for (int fail_in = 0; fail_in < 8; ++fail_in) {
    TestEngine engine;
    RequestInput input = sampled(7);
    give_drafter(input, {.k = 5, .truth = 0.7});
    const RequestId id = engine->start({}, input);
    engine.log->fail_in = fail_in;
    Tokens got;
    while (!engine->idle()) {
      try {
        for (const RequestEvent& e : engine->step())
          if (e.token) got.push_back(e.token->token);
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::kResource);
      }
      engine->check_invariants();
    }
    EXPECT_EQ(got, answer_alone(input.prompt, input).tokens) << fail_in << id.value;
  }
}

TEST(EngineDrafts, StatisticsCountThem) {
  TestEngine engine;
  RequestInput input = request(random_prompt(40, 3), 33);
  input.end_tokens = {};
  give_drafter(input, {.k = 7});
  const RequestId id = engine->start({}, input);
  RequestStats stats;
  while (!engine->idle()) {
    engine->step();
    stats = engine->stats(id);
  }
  EXPECT_EQ(stats.verify_steps, 4);
  EXPECT_EQ(stats.drafted_tokens, 28);
  EXPECT_EQ(stats.accepted_tokens, 28);
  EXPECT_EQ(stats.answer_tokens, 33);
}

// Rows of drafts are rows of the step: they take what others leave.
TEST(EngineDrafts, TakeWhatOthersLeaveOfAStep) {
  TestEngine engine(chunked(6));
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    RequestInput input = sampled(seed, 30);
    give_drafter(input, {.k = 7, .truth = 0.8});
    engine->start({}, input);
  }
  drain(*engine);
  int wide = 0;
  for (const auto& rows : engine.log->steps) {
    std::int32_t n = 0;
    for (const std::int32_t r : rows) n += r;
    EXPECT_LE(n, 6);
    wide += n == 6 && rows.size() > 1 ? 1 : 0;
  }
  EXPECT_GT(wide, 3);
}

TEST(Speculation, RequestsThatAskForWhatCannotBeAreRefused) {
  EngineOptions options = chunked(64);
  options.speculation = {.method = SpeculationOptions::Method::kNgram};
  TestEngine engine(options);
  const auto plan = compile(make_recipe("quest", {.budget = 64}),
                            MethodShape{.n_layers = 4, .n_heads = 2, .n_kv_heads = 1, .head_dim = 8});
  EXPECT_NE(drafter_of(*engine, std::nullopt, nullptr), nullptr);
  EXPECT_EQ(drafter_of(*engine, std::nullopt, plan.get()), nullptr) << "the default breaks no request";
  EXPECT_EQ(drafter_of(*engine, SpeculationOptions{}, nullptr), nullptr) << "off";
  EXPECT_THAT(error_message(ErrorKind::kOption, [&] { drafter_of(*engine, options.speculation, plan.get()); }),
              testing::HasSubstr("speculative ngram:k=7,min=4: drafts are verified by full attention: expected "
                                 "--kv full, found quest"));
  EXPECT_THAT(error_message(ErrorKind::kOption, [&] { check_speculation(*engine, plan.get()); }),
              testing::HasSubstr("found quest"));
  EXPECT_NO_THROW(check_speculation(*engine, nullptr));
}

// A recurrent layer, for one, whose state takes no token back.
TEST(Speculation, AModelThatVerifiesNoDraftsSaysWhy) {
  EngineOptions options = chunked(64);
  options.speculation = {.method = SpeculationOptions::Method::kNgram};
  TestEngine engine(options);
  engine.log->no_drafts_reason = "layer 3 is recurrent: its state takes no token back";
  EXPECT_EQ(drafter_of(*engine, std::nullopt, nullptr), nullptr) << "the default breaks no request";
  EXPECT_THAT(error_message(ErrorKind::kOption, [&] { drafter_of(*engine, options.speculation, nullptr); }),
              testing::HasSubstr("speculative ngram:k=7,min=4: layer 3 is recurrent: its state takes no token back; or "
                                 "leave it out"));
  EXPECT_THAT(error_message(ErrorKind::kOption, [&] { check_speculation(*engine, nullptr); }),
              testing::HasSubstr("layer 3 is recurrent"));
}

}  // namespace
}  // namespace mneme
