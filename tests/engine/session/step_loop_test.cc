// Threads that share an engine: one batch for all, and the engine between two steps for whoever wants it.
#include "src/engine/session/step_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <thread>

#include "mneme/error.h"
#include "src/base/size32.h"
#include "tests/engine/hash_model.h"

namespace mneme {
namespace {

class Collector final : public StepLoop::Listener {
 public:
  void on_event(Engine&, const RequestEvent& event) override {
    if (fail_at == size32(tokens)) throw Error(ErrorKind::kRequest, "enough");
    if (event.token) tokens.push_back(event.token->token);
    if (event.finished) finished = true;
  }
  void publish() override { ended = finished; }
  int fail_at = -1;
  std::vector<std::int32_t> tokens;
  bool finished = false;
  std::atomic<bool> ended = false;
};

RequestInput endless(std::uint64_t seed, std::int32_t n) {
  RequestInput input = request(random_prompt(20, seed), n);
  input.end_tokens.clear();
  return input;
}

TEST(StepLoop, AnswersAskedForAtOnceAreOneBatch) {
  constexpr int kThreads = 4, kTokens = 200;
  TestEngine engine;
  StepLoop loop(*engine);
  std::latch submitted(kThreads);
  std::vector<std::vector<std::int32_t>> answers(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      Collector mine;
      loop.exclusive([&](Engine& e) { loop.listen(e.start({}, endless(t, kTokens)), &mine); });
      submitted.arrive_and_wait();
      while (!mine.ended) loop.advance(mine);
      answers[t] = mine.tokens;
    });
  for (std::thread& t : threads) t.join();
  for (int t = 0; t < kThreads; ++t) {
    const RequestInput input = endless(t, kTokens);
    EXPECT_EQ(answers[t], answer_alone(input.prompt, input).tokens);
  }
  // Every request was there before the first step: all their tokens come in steps of four rows.
  const auto& steps = engine.log->steps;
  const auto batched =
      std::count_if(steps.begin(), steps.end(), [](const auto& rows) { return rows.size() == kThreads; });
  EXPECT_GE(batched, kTokens - 1);
  EXPECT_LE(steps.size(), static_cast<std::size_t>(kTokens + 1));
}

TEST(StepLoop, TheEngineIsFreeBetweenSteps) {
  TestEngine engine;
  StepLoop loop(*engine);
  Collector first;
  loop.exclusive([&](Engine& e) { loop.listen(e.start({}, endless(1, 3000)), &first); });
  std::thread stepper([&] {
    while (!first.ended) loop.advance(first);
  });
  // Whoever steps without a pause would keep the engine for all 3,000 tokens.
  std::size_t when = 0;
  while (when == 0) loop.exclusive([&](Engine&) { when = first.tokens.size(); });
  EXPECT_LT(when, 2000u);
  stepper.join();
}

TEST(StepLoop, AStepThatFailsIsTriedAgainByTheOthers) {
  TestEngine engine;
  StepLoop loop(*engine);
  Collector a, b;
  loop.exclusive([&](Engine& e) {
    loop.listen(e.start({}, endless(1, 10)), &a);
    loop.listen(e.start({}, endless(2, 10)), &b);
  });
  engine.log->fail_in = 3;
  EXPECT_THROW(
      {
        while (!a.ended) loop.advance(a);
      },
      Error);
  engine.log->fail_in = -1;
  while (!b.ended) loop.advance(b);
  const RequestInput input = endless(2, 10);
  EXPECT_EQ(b.tokens, answer_alone(input.prompt, input).tokens);
}

TEST(StepLoop, WhatAListenerThrowsReachesItsOwnerAlone) {
  TestEngine engine;
  StepLoop loop(*engine);
  Collector a, b;
  a.fail_at = 2;
  loop.exclusive([&](Engine& e) {
    loop.listen(e.start({}, endless(1, 10)), &a);
    loop.listen(e.start({}, endless(2, 10)), &b);
  });
  while (!b.ended) loop.advance(b);
  EXPECT_EQ(b.tokens.size(), 10u);
  EXPECT_THROW(loop.advance(a), Error);
}

// Its listener might be destroyed as soon as its owner sees the end: the step must have let go of it by then.
TEST(StepLoop, NothingIsPublishedBeforeTheStepIsDoneWithAllListeners) {
  struct Watcher final : StepLoop::Listener {
    void on_event(Engine&, const RequestEvent& event) override {
      finished = finished || event.finished.has_value();
      for (const Watcher* w : watched) early = early || (w->finished && w->published);
    }
    void publish() override { published = finished; }
    std::vector<Watcher*> watched;
    bool finished = false, published = false, early = false;
  };
  TestEngine engine;
  StepLoop loop(*engine);
  Watcher a, b;
  a.watched = b.watched = {&a, &b};
  loop.exclusive([&](Engine& e) {
    loop.listen(e.start({}, endless(1, 10)), &a);
    loop.listen(e.start({}, endless(2, 10)), &b);
  });
  while (!a.published || !b.published) loop.advance(a);
  EXPECT_FALSE(a.early || b.early);
}

TEST(StepLoop, WhatATaskThrowsLeavesTheEngineFree) {
  TestEngine engine;
  StepLoop loop(*engine);
  EXPECT_THROW(loop.exclusive([](Engine& e) { e.start(Origin::fork(RequestId(99)), {}); }), Error);
  bool ran = false;
  loop.exclusive([&](Engine&) { ran = true; });
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace mneme
