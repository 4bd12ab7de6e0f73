#include "src/engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "mneme/error.h"
#include "src/base/size32.h"
#include "tests/engine/hash_model.h"

namespace mneme {
namespace {

template <typename F>
void expect_error(ErrorKind kind, const std::string& words, const F& act) {
  try {
    act();
    ADD_FAILURE() << words;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind);
    EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
  }
}

// The whole suite rests on this: one byte of one page changes what the model says.
TEST(HashModel, EveryByteOfThePagesCounts) {
  HashModelLog log;
  HashModel model(&log);
  PagePool pool(model.kv_shape(DType::kBF16), 100);
  SequenceCache cache(pool);
  const auto prompt = random_prompt(70, 1);
  cache.extend(70);
  SequenceRows rows{.cache = &cache, .n_rows = 70, .want_logits = true};
  ConstTensorView logits = model.run({.tokens = prompt, .sequences = {&rows, 1}});
  const auto expected = hash_logits(prompt);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), logits.row_as<float>(0)));

  cache.token(1, 0, 13)[31] ^= std::byte{1};
  const std::vector<std::int32_t> next{5};
  cache.extend(1);
  rows.n_rows = 1;
  logits = model.run({.tokens = next, .sequences = {&rows, 1}});
  const auto undisturbed = hash_logits(joined(prompt, next));
  EXPECT_FALSE(std::equal(undisturbed.begin(), undisturbed.end(), logits.row_as<float>(0)));
}

TEST(Engine, AnswersAsTheModelSays) {
  for (std::size_t n : {1u, 2u, 31u, 32u, 33u, 64u, 100u}) {
    TestEngine engine;
    RequestInput input = request(random_prompt(n, n), 40);
    const HashAnswer expected = answer_alone(input.prompt, input);
    const RequestId id = engine->start({}, input);
    EXPECT_EQ(drain(*engine).of(id), expected);
    EXPECT_EQ(engine->stats(id).prompt_tokens, static_cast<std::int32_t>(n));
    EXPECT_EQ(engine->stats(id).answer_tokens, size32(expected.tokens));
    const auto all = joined(input.prompt, expected.tokens);
    EXPECT_TRUE(std::ranges::equal(engine->tokens(id), all));
    EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
    EXPECT_TRUE(engine->step().empty());
    EXPECT_THROW(engine->tokens(id), Error);  // what is not kept is forgotten with the next step
  }
}

TEST(Engine, EventsTellProgressTokensAndEnd) {
  TestEngine engine(chunked(32));
  RequestInput input = request(random_prompt(70, 4), 3);
  input.end_tokens = {};
  const RequestId id = engine->start({}, input);
  std::vector<std::int32_t> done, tokens;
  std::vector<bool> finished;
  while (!engine->idle()) {
    const auto events = engine->step();
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].id, id);
    EXPECT_EQ(events[0].prompt_total, 70);
    done.push_back(events[0].prompt_done);
    tokens.push_back(events[0].token ? events[0].token->token : -1);
    finished.push_back(events[0].finished.has_value());
  }
  const auto answer = answer_alone(input.prompt, input).tokens;
  EXPECT_EQ(done, (std::vector<std::int32_t>{32, 64, 70, 70, 70}));
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{-1, -1, answer[0], answer[1], answer[2]}));
  EXPECT_EQ(finished, (std::vector<bool>{false, false, false, false, true}));
  const RequestStats stats = engine->stats(id);
  EXPECT_GT(stats.prefill_seconds, 0);
  EXPECT_GT(stats.decode_seconds, 0);
}

TEST(Engine, ChunksOfAnySizeGiveTheSame) {
  RequestInput input = request(random_prompt(150, 8), 30);
  const HashAnswer expected = answer_alone(input.prompt, input);
  for (int size : {1, 31, 32, 33, 149, 150, 151, 1024}) {
    TestEngine engine(chunked(size));
    const RequestId id = engine->start({}, input);
    EXPECT_EQ(drain(*engine).of(id), expected) << size;
    EXPECT_EQ(engine.log->steps.front().front(), std::min(size, 150));
  }
}

TEST(Engine, ABatchGivesWhatEachGivesAlone) {
  for (int n_threads : {1, 3}) {
    EngineOptions options = chunked(64);
    options.kv_memory_bytes = 4 << 20;
    TestEngine engine(options, n_threads);
    std::vector<HashAnswer> expected, got(12);
    const auto step = [&] {
      for (const RequestEvent& e : engine->step()) {
        HashAnswer& answer = got[e.id.value];
        if (e.token) answer.tokens.push_back(e.token->token);
        if (e.finished) answer.reason = *e.finished;
      }
      engine->check_invariants();
    };
    for (std::uint64_t i = 0; i < 12; ++i) {
      RequestInput input = request(random_prompt(1 + 17 * i, i), 10 + static_cast<std::int32_t>(i) * 5);
      if (i % 2 == 1) input.sampling = {.temperature = 0.8f, .top_k = 10, .repetition_penalty = 1.1f, .seed = i};
      expected.push_back(answer_alone(input.prompt, input));
      EXPECT_EQ(engine->start({}, input), RequestId(static_cast<std::int64_t>(i)));
      step();  // they come while others run
    }
    while (!engine->idle()) step();
    EXPECT_EQ(got, expected);
    const auto widest = std::ranges::max(engine.log->steps, {}, [](const auto& s) { return s.size(); });
    EXPECT_GE(widest.size(), 4u) << "nothing ran together";
    EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
  }
}

TEST(Engine, DecodePromptTailFeedsOneTokenAStep) {
  for (std::int32_t tail : {0, 1, 7, 49, 50, 99}) {
    TestEngine engine;
    RequestInput input = request(random_prompt(50, 3), 10);
    input.decode_prompt_tail = tail;
    const RequestId id = engine->start({}, input);
    EXPECT_EQ(drain(*engine).of(id), answer_alone(input.prompt, input));
    const std::int32_t singles = std::min(tail, 50);
    std::size_t step = 0;
    if (singles < 50) {
      EXPECT_EQ(engine.log->steps[step++], std::vector<std::int32_t>{50 - singles});
    }
    for (std::int32_t i = 0; i < singles; ++i) EXPECT_EQ(engine.log->steps[step++], std::vector<std::int32_t>{1});
    EXPECT_EQ(engine->stats(id).prompt_tokens, 50);
  }
}

TEST(Engine, APromptWithoutAnswerIsComputedForForks) {
  TestEngine engine;
  RequestInput document = request(random_prompt(90, 5), 0);
  document.keep_sequence = true;
  const RequestId doc = engine->start({}, document);
  EXPECT_EQ(drain(*engine).of(doc), (HashAnswer{{}, StopReason::kLength}));
  EXPECT_EQ(engine->kv_bytes(doc), 3u * 4 * 1024);
  for (std::uint64_t q = 0; q < 3; ++q) {
    RequestInput question = request(random_prompt(10, 50 + q));
    const RequestId id = engine->start(Origin::fork(doc), question);
    EXPECT_EQ(drain(*engine).of(id), answer_alone(joined(document.prompt, question.prompt), question));
    EXPECT_EQ(engine->stats(id).prompt_tokens, 10);
    EXPECT_EQ(engine->stats(id).shared_tokens, 90);
  }
  engine->cancel(doc);
  EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
  EXPECT_THROW(engine->tokens(doc), Error);
}

TEST(Engine, TurnsGoOnFromAllTokens) {
  TestEngine engine;
  RequestInput input = request(random_prompt(40, 7), 12);
  input.keep_sequence = true;
  const RequestId id = engine->start({}, input);
  auto all = input.prompt;
  for (std::uint64_t turn = 0; turn < 8; ++turn) {
    const HashAnswer expected = answer_alone(all, input);
    ASSERT_EQ(drain(*engine).of(id), expected) << "turn " << turn;
    all = joined(all, expected.tokens);
    ASSERT_TRUE(std::ranges::equal(engine->tokens(id), all));
    // An answer that reached its length leaves its last token uncomputed; an empty prompt after an end token leaves
    // nothing new.
    input = request(random_prompt(turn % 3 == 2 ? 0 : turn * 5, 70 + turn), 12);
    if (turn % 2 == 0) input.end_tokens = {};
    input.sampling = {.temperature = 0.9f, .presence_penalty = 0.5f, .seed = turn};
    input.keep_sequence = true;
    all = joined(all, input.prompt);
    const auto computed = engine->kv_bytes(id);
    engine->start(Origin::next_turn(id), input);
    EXPECT_EQ(engine->kv_bytes(id), computed);
    engine->check_invariants();
  }
  drain(*engine);
  engine->cancel(id);
  EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
}

TEST(Engine, StatisticsAreThoseOfTheTurn) {
  TestEngine engine;
  RequestInput input = request(random_prompt(40, 7), 5);
  input.end_tokens = {};
  input.keep_sequence = true;
  const RequestId id = engine->start({}, input);
  drain(*engine);
  input.prompt = random_prompt(10, 8);
  engine->start(Origin::next_turn(id), input);
  drain(*engine);
  EXPECT_EQ(engine->stats(id).shared_tokens, 44);  // of 45 the last was not computed
  EXPECT_EQ(engine->stats(id).prompt_tokens, 11);
  EXPECT_EQ(engine->stats(id).answer_tokens, 5);
}

TEST(Engine, CancelGivesEverythingUpBeforeTheNextStep) {
  TestEngine engine;
  RequestInput input = request(random_prompt(40, 9), 500);
  input.end_tokens = {};
  input.keep_sequence = true;
  const RequestId running = engine->start({}, input), other = engine->start({}, input);
  engine->step();
  engine->step();
  const RequestId waiting = engine->start({}, input);
  engine->cancel(running);
  engine->cancel(waiting);
  engine->cancel(waiting);
  engine->cancel(RequestId(12345));
  EXPECT_EQ(engine->kv_bytes(running), 0u);
  engine->check_invariants();
  const auto events = engine->step();
  int cancelled = 0;
  for (const RequestEvent& e : events) {
    EXPECT_EQ(e.finished.has_value(), e.id != other);
    cancelled += e.finished == StopReason::kCancelled ? 1 : 0;
  }
  EXPECT_EQ(cancelled, 2);
  EXPECT_EQ(events.size(), 3u);
  EXPECT_EQ(engine->tokens(running).size(), 42u);  // to be asked for until the next step
  engine->cancel(other);
  EXPECT_FALSE(engine->idle());
  EXPECT_EQ(engine->step().size(), 1u);
  EXPECT_TRUE(engine->idle());
  EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
  EXPECT_THROW(engine->start(Origin::fork(running), input), Error);
}

TEST(Engine, StopEndsTheAnswerAndKeepsTheSequence) {
  TestEngine engine;
  RequestInput input = request(random_prompt(40, 9), 500);
  input.end_tokens = {};
  input.keep_sequence = true;
  const RequestId id = engine->start({}, input);
  for (int i = 0; i < 7; ++i) engine->step();
  engine->stop(id);
  const auto events = engine->step();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finished, StopReason::kStopString);
  EXPECT_EQ(engine->tokens(id).size(), 47u);
  const auto all = joined(engine->tokens(id), {});
  RequestInput more = request(random_prompt(3, 1));
  engine->start(Origin::next_turn(id), more);
  EXPECT_EQ(drain(*engine).of(id), answer_alone(joined(all, more.prompt), more));
  EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
}

TEST(Engine, IdsAreNeverUsedAgain) {
  TestEngine engine;
  RequestId last(-1);
  for (int i = 0; i < 20; ++i) {
    const RequestId id = engine->start({}, request(random_prompt(3, 1), 2));
    EXPECT_GT(id, last);
    last = id;
    if (i % 3 == 0) engine->cancel(id);
    if (i % 2 == 0) drain(*engine);
  }
}

TEST(Engine, HigherPriorityBeginsFirst) {
  EngineOptions options = chunked(1024);
  options.max_sequences = 1;
  TestEngine engine(options);
  std::vector<RequestId> ids;
  for (std::int32_t priority : {0, 0, 3, 1, 3}) {
    RequestInput input = request(random_prompt(10, 2), 3);
    input.priority = priority;
    ids.push_back(engine->start({}, input));
  }
  std::vector<RequestId> order;
  while (!engine->idle()) {
    for (const RequestEvent& e : engine->step()) {
      if (e.finished) order.push_back(e.id);
    }
  }
  EXPECT_EQ(order, (std::vector<RequestId>{ids[2], ids[4], ids[3], ids[0], ids[1]}));
}

TEST(Engine, WhatCannotRunIsRefusedWithTheNumbers) {
  EngineOptions options;
  options.context = 100;
  options.kv_memory_bytes = 6 * 4096;  // six pages of tokens
  TestEngine engine(options);
  const auto submit = [&](std::size_t n, std::int32_t max_tokens, std::int32_t tail = 0) {
    RequestInput input = request(random_prompt(n, 1), max_tokens);
    input.decode_prompt_tail = tail;
    return engine->start({}, input);
  };
  const auto refused = ErrorKind::kRequest;
  expect_error(refused, "the prompt is empty", [&] { submit(0, 1); });
  expect_error(refused, "80 tokens of prompt and up to 21 of answer are 101; the context has 100",
               [&] { submit(80, 21); });
  expect_error(refused, "are 2147483648; the context", [&] { submit(1, 2147483647); });
  expect_error(refused, "max_tokens: expected 0 or more, found -1", [&] { submit(1, -1); });
  expect_error(refused, "decode_prompt_tail: expected 0 or more, found -2", [&] { submit(1, 1, -2); });
  expect_error(refused, "token 40 at 1 is not in the vocabulary, which has 40", [&] {
    engine->start({}, request({1, 40}));
  });
  expect_error(refused, "token -1 at 0", [&] { engine->start({}, request({-1})); });
  RequestInput hot = request({1});
  hot.sampling.temperature = -1;
  expect_error(ErrorKind::kOption, "temperature", [&] { engine->start({}, hot); });
  expect_error(refused, "there is no request 77", [&] { (void)engine->stats(RequestId(77)); });
  expect_error(refused, "request 77 has no sequence",
               [&] { engine->start(Origin::fork(RequestId(77)), request({1})); });

  const RequestId id = submit(40, 60);
  engine->step();
  expect_error(refused, "has not ended yet", [&] { engine->start(Origin::next_turn(id), request({1})); });
  expect_error(refused, "the context has 100",
               [&] { engine->start(Origin::fork(id), request(random_prompt(40, 1), 20)); });
  EXPECT_TRUE(engine->views().size() == 1);
  drain(*engine);
  expect_error(refused, "has no sequence", [&] { engine->start(Origin::next_turn(id), request({1})); });

  EngineOptions vast;
  vast.context = 1000;
  vast.kv_memory_bytes = 4096;
  expect_error(ErrorKind::kResource, "room for 32 tokens", [&] { TestEngine e(vast); });
}

TEST(Engine, WhatARefusedTurnLeavesIsTheKeptSequence) {
  TestEngine engine;
  RequestInput input = request(random_prompt(10, 2), 4);
  input.keep_sequence = true;
  const RequestId id = engine->start({}, input);
  drain(*engine);
  const auto all = joined(engine->tokens(id), {});
  EXPECT_THROW(engine->start(Origin::next_turn(id), request(random_prompt(5000, 1))), Error);
  RequestInput hot = request({1});
  hot.sampling.top_p = 7;
  EXPECT_THROW(engine->start(Origin::next_turn(id), hot), Error);
  EXPECT_TRUE(std::ranges::equal(engine->tokens(id), all));
  EXPECT_TRUE(engine->idle());
}

TEST(Engine, AStepThatThrowsCountsForNothing) {
  for (int fail_in = 0; fail_in < 12; ++fail_in) {
    TestEngine engine(chunked(48));
    RequestInput input = request(random_prompt(100, 3), 8);
    input.end_tokens = {};
    input.keep_sequence = true;
    RequestInput drawn = request(random_prompt(33, 4), 8);
    drawn.sampling = {.temperature = 1, .seed = 5};
    const RequestId a = engine->start({}, input);
    engine->start({}, drawn);
    engine->cancel(engine->start({}, drawn));
    engine.log->fail_in = fail_in;
    std::vector<std::int32_t> got_a, got_b;
    int thrown = 0, cancelled = 0;
    while (!engine->idle()) {
      try {
        for (const RequestEvent& e : engine->step()) {
          if (e.token) (e.id == a ? got_a : got_b).push_back(e.token->token);
          cancelled += e.finished == StopReason::kCancelled ? 1 : 0;
        }
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::kResource);
        ++thrown;
      }
      engine->check_invariants();
    }
    EXPECT_EQ(thrown, fail_in < size32(engine.log->steps) ? 1 : 0) << fail_in;
    EXPECT_EQ(cancelled, 1);
    EXPECT_EQ(got_a, answer_alone(input.prompt, input).tokens);
    EXPECT_EQ(got_b, answer_alone(drawn.prompt, drawn).tokens);
    engine->cancel(a);
    EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
  }
}

}  // namespace
}  // namespace mneme
