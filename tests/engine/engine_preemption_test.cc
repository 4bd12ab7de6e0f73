// Admission by forecast: more requests run than memory holds to their ends, and who is least urgent gives pages up.
#include <gtest/gtest.h>

#include <map>

#include "src/engine/engine.h"
#include "src/engine/schedule/answer_forecast.h"
#include "tests/engine/hash_model.h"

namespace mneme {
namespace {

EngineOptions forecasting(std::int64_t n_pages, int max_sequences = 8) {
  EngineOptions o;
  o.kv_memory_bytes = n_pages * 4096;
  o.max_sequences = max_sequences;
  o.max_batched_tokens = 64;
  o.kv_admission = KvAdmission::kForecast;
  return o;
}

RequestInput of_length(std::size_t prompt, std::uint64_t seed, std::int32_t answer) {
  RequestInput input = request(random_prompt(prompt, seed), answer);
  input.end_tokens = {};
  return input;
}

// Answers of 8 tokens, so that the next ones are forecast to be as short.
void teach_short_answers(Engine& engine) {
  for (std::int64_t i = 0; i < AnswerForecast::kEnough; ++i) engine.start({}, of_length(10, 1000 + i, 8));
  drain(engine);
}

// Runs to the end, checking the books; how many ran at most in one step.
std::size_t run(Engine& engine, std::map<RequestId, std::vector<std::int32_t>>& answers,
                std::map<RequestId, int>& preemptions) {
  std::size_t widest = 0;
  for (int i = 0; i < 20000 && !engine.idle(); ++i) {
    const auto events = engine.step();
    engine.check_invariants();
    widest = std::max(widest, events.size());
    for (const RequestEvent& e : events) {
      if (e.token) answers[e.id].push_back(e.token->token);
      EXPECT_GE(e.prompt_done, 0);
      if (e.finished) preemptions[e.id] = engine.stats(e.id).preemptions;
    }
  }
  EXPECT_TRUE(engine.idle());
  return widest;
}

// Four answers of 200 tokens, 8 pages each, in 12 pages: reserved, one runs at a time; forecast, all begin.
TEST(EnginePreemption, MoreRunAndEachAnswersWhatItAnswersAlone) {
  for (const bool deterministic : {false, true}) {
    EngineOptions options = forecasting(12);
    options.deterministic = deterministic;
    TestEngine engine(options);
    teach_short_answers(*engine);
    std::vector<RequestInput> inputs;
    std::vector<RequestId> ids;
    for (std::uint64_t i = 0; i < 4; ++i) {
      inputs.push_back(of_length(40, i, 200));
      ids.push_back(engine->start({}, inputs.back()));
    }
    std::map<RequestId, std::vector<std::int32_t>> answers;
    std::map<RequestId, int> preemptions;
    EXPECT_EQ(run(*engine, answers, preemptions), 4u);
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_EQ(answers[ids[i]], answer_alone(inputs[i].prompt, inputs[i]).tokens) << i;
    EXPECT_EQ(preemptions[ids[0]], 0) << "the oldest of equals goes on";
    EXPECT_GT(engine->counts().preemptions, 0);
    EXPECT_GT(engine->counts().preempted_tokens, 0);
    EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
  }
}

TEST(EnginePreemption, TheLeastUrgentGivesWay) {
  TestEngine engine(forecasting(10));
  teach_short_answers(*engine);
  std::map<RequestId, std::vector<std::int32_t>> answers;
  std::map<RequestId, int> preemptions;
  std::vector<RequestId> ids;
  for (std::int32_t i = 0; i < 3; ++i) {
    RequestInput input = of_length(40, i, 150);
    input.priority = i;
    ids.push_back(engine->start({}, input));
  }
  run(*engine, answers, preemptions);
  EXPECT_GT(preemptions[ids[0]], 0);
  EXPECT_EQ(preemptions[ids[2]], 0);
}

// Nothing has ended yet, so nothing is forecast.
TEST(EnginePreemption, ReservesUntilItKnowsHowLongAnswersAre) {
  TestEngine engine(forecasting(12));
  std::vector<RequestId> ids;
  for (std::uint64_t i = 0; i < 4; ++i) ids.push_back(engine->start({}, of_length(40, i, 200)));
  std::map<RequestId, std::vector<std::int32_t>> answers;
  std::map<RequestId, int> preemptions;
  EXPECT_EQ(run(*engine, answers, preemptions), 1u);
  EXPECT_EQ(engine->counts().preemptions, 0);
}

// Two turns wait with four pages each; a more urgent request needs two pages more than are free.
TEST(EnginePreemption, OfThoseThatWaitTheLatestLosesPagesFirst) {
  TestEngine engine(forecasting(14));
  const auto kept = [&](std::uint64_t seed) {
    RequestInput input = of_length(125, seed, 4);
    input.keep_sequence = true;
    const RequestId id = engine->start({}, input);
    drain(*engine);
    return id;
  };
  const RequestId first = kept(1), second = kept(2);
  engine->start(Origin::next_turn(first), of_length(5, 3, 4));
  engine->start(Origin::next_turn(second), of_length(5, 4, 4));
  ASSERT_EQ(engine->cache(second).length(), 128);
  RequestInput urgent = of_length(250, 5, 4);
  urgent.priority = 1;
  engine->start({}, urgent);
  engine->step();
  EXPECT_EQ(engine->cache(first).length(), 128);
  EXPECT_EQ(engine->cache(second).length(), 64);
}

// What somebody was told of is not computed twice: such requests reserve all that they may need.
TEST(EnginePreemption, WhoWatchesLogitsIsNotInterrupted) {
  TestEngine engine(forecasting(12));
  teach_short_answers(*engine);
  std::vector<RequestId> ids;
  std::vector<RequestInput> inputs;
  std::map<RequestId, int> rows, preemptions;
  for (std::uint64_t i = 0; i < 4; ++i) {
    inputs.push_back(of_length(40, i, 150));
    if (i > 1) inputs.back().on_logits = [&rows, i](std::int32_t, std::span<const float>) { ++rows[RequestId(i)]; };
    ids.push_back(engine->start({}, inputs.back()));
  }
  std::map<RequestId, std::vector<std::int32_t>> answers;
  run(*engine, answers, preemptions);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(answers[ids[i]].size(), 150u);
  EXPECT_EQ(preemptions[ids[2]] + preemptions[ids[3]], 0);
  EXPECT_EQ(rows[RequestId(2)], 150);
}

// It waits with its answer begun, and ends as any other.
TEST(EnginePreemption, AnInterruptedRequestCanBeStoppedForkedAndKept) {
  TestEngine engine(forecasting(12));
  teach_short_answers(*engine);
  std::vector<RequestId> ids;
  std::vector<RequestInput> inputs;
  for (std::uint64_t i = 0; i < 4; ++i) {
    inputs.push_back(of_length(40, i, 200));
    inputs.back().keep_sequence = true;
    ids.push_back(engine->start({}, inputs.back()));
  }
  while (engine->counts().preemptions == 0) engine->step();
  RequestId waits;
  for (const RequestId id : ids)
    if (engine->view(id).phase == RequestPhase::kWaiting) waits = id;
  ASSERT_TRUE(waits.valid());
  const auto before = joined(engine->tokens(waits), {});
  const RequestInput more = of_length(7, 99, 20);
  const RequestId fork = engine->start(Origin::fork(waits), more);
  engine->stop(waits);
  engine->check_invariants();
  std::map<RequestId, std::vector<std::int32_t>> answers;
  std::map<RequestId, int> preemptions;
  run(*engine, answers, preemptions);
  EXPECT_EQ(answers[fork], answer_alone(joined(before, more.prompt), more).tokens);
  engine->start(Origin::next_turn(waits), more);
  answers.clear();
  run(*engine, answers, preemptions);
  EXPECT_EQ(answers[waits], answer_alone(joined(before, more.prompt), more).tokens);
}

}  // namespace
}  // namespace mneme
