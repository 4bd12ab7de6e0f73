// One engine for the loop's callers and for sessions: the same answers as alone, whoever steps, and whoever ends first.
#include "src/engine/loop/engine_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "tests/short_document.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

// Waits on the test's thread for what the loop's thread tells.
class Waiter final : public GenerationSink {
 public:
  void on_event(GenerationEvent event) override {
    const std::lock_guard lock(mutex_);
    for (const TokenScore& token : event.piece.tokens) tokens_.push_back(token.token);
    text_ += event.piece.text;
    if (event.piece.end) reason_ = event.piece.end->reason;
    ended_ = ended_ || event.piece.end || event.failure;
    changed_.notify_all();
  }
  std::vector<TokenId> tokens() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_; });
    return tokens_;
  }
  // Of an answer that has ended.
  std::string text() const { return text_; }
  std::optional<StopReason> reason() const { return reason_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TokenId> tokens_;
  std::string text_;
  std::optional<StopReason> reason_;
  bool ended_ = false;
};

RunningModel start() {
  return start_model(Checkpoint::open(MNEME_MODEL_FILE), nullptr,
                     {.context = 1024,
                      .kv_memory_bytes = 256 << 20,
                      .max_batched_tokens = 64,
                      .threads = kTestThreads,
                      .pin_threads = false,
                      .deterministic = true},
                     {});
}

std::unique_ptr<EngineLoop> make_loop(NoLoopMetrics& metrics) {
  return std::make_unique<EngineLoop>(start, EngineLoop::Options{.max_in_flight = 64, .keeper = {.prefix_cache = true}},
                                      metrics, [](std::vector<Delivery> news) {
                                        for (Delivery& d : news) d.sink->on_event(std::move(d.event));
                                      });
}

GenerationInput input_of(const EngineLoop& loop, std::int32_t max_tokens) {
  GenerationInput input;
  input.prompt = loop.model().text->prompt_of({.document = kDocument, .question = kAboutHarbour}, {}, true).tokens;
  input.max_tokens = max_tokens;
  input.stop.ignore_end = true;
  return input;
}

std::shared_ptr<Waiter> ask(EngineLoop& loop, std::int32_t max_tokens) {
  auto waiter = std::make_shared<Waiter>();
  EXPECT_TRUE(loop.submit(input_of(loop, max_tokens), waiter));
  return waiter;
}

TEST(EngineLoop, SessionsAndCallersShareAnEngineAndAnswerAsAlone) {
  NoLoopMetrics metrics;
  const auto loop = make_loop(metrics);
  constexpr int kTokens = 12;
  const std::vector<TokenId> alone = ask(*loop, kTokens)->tokens();
  ASSERT_EQ(alone.size(), static_cast<std::size_t>(kTokens));
  std::vector<std::vector<std::int32_t>> answers(2);
  std::vector<std::thread> threads;
  for (std::vector<std::int32_t>& answer : answers)
    threads.emplace_back([&] {
      Session session(loop->language_model());
      session.read({.document = kDocument});
      answer = session.ask({.question = kAboutHarbour}, {.max_tokens = kTokens, .ignore_end = true}).tokens;
    });
  std::vector<std::shared_ptr<Waiter>> waiters;
  for (int i = 0; i < 4; ++i) waiters.push_back(ask(*loop, kTokens));
  for (const auto& waiter : waiters) EXPECT_EQ(waiter->tokens(), alone);
  for (std::thread& thread : threads) thread.join();
  for (const auto& answer : answers) EXPECT_EQ(answer, alone);
}

TEST(EngineLoop, ASessionOutlivesTheLoopAndWhatRanInIt) {
  NoLoopMetrics metrics;
  auto loop = make_loop(metrics);
  Session session(loop->language_model());
  session.read({.document = kDocument});
  ask(*loop, 512);
  loop.reset();
  const Answer answer = session.ask({.question = kAboutHarbour}, {.max_tokens = 8, .ignore_end = true});
  EXPECT_EQ(answer.tokens.size(), 8u);
}

TEST(EngineLoop, TellsWhatStartingTheModelThrows) {
  NoLoopMetrics metrics;
  const auto fails = []() -> RunningModel { throw Error(ErrorKind::kFile, "no such model"); };
  EXPECT_THROW(EngineLoop(fails, {}, metrics, [](std::vector<Delivery>) {}), Error);
}

// The answer's end shows that the longer string, which begins earlier, does not come: the shorter one is the reason.
TEST(EngineLoop, AStopStringThatTheEndDecidesIsTheReason) {
  NoLoopMetrics metrics;
  const auto loop = make_loop(metrics);
  const auto ended = [&](std::vector<std::string> stop) {
    GenerationInput input = input_of(*loop, 12);
    input.stop.strings = std::move(stop);
    const auto waiter = std::make_shared<Waiter>();
    EXPECT_TRUE(loop->submit(std::move(input), waiter));
    waiter->tokens();
    return std::pair(waiter->text(), waiter->reason().value());
  };
  const auto [text, reason] = ended({});
  EXPECT_EQ(reason, StopReason::kLength);
  // The shortest end of the answer that is nowhere else in it.
  std::size_t n = 1;
  while (text.find(text.substr(text.size() - n)) + n != text.size()) ++n;
  ASSERT_LT(n, text.size());
  const std::string last = text.substr(text.size() - n), longer = text.substr(text.size() - n - 1) + "~~";
  EXPECT_EQ(ended({longer, last}), std::pair(text.substr(0, text.size() - n), StopReason::kStopString));
}

// Counts tokens of prompts that others had computed; tells when the first step is over, on the engine's thread.
class PrefixMetrics final : public LoopMetrics {
 public:
  void set(const Gauges&) override {}
  void count_step(std::int64_t, double) override {
    if (n_steps_++ == 0) after_first_step();
  }
  void count_prefix(std::int64_t queried, std::int64_t hit) override { queried_ += queried, hit_ += hit; }
  void count_answer(const Answer&) override {}
  void count_method(std::string_view, const KvMethodStats&) override {}

  std::int64_t queried() const { return queried_; }
  std::int64_t hit() const { return hit_; }
  std::function<void()> after_first_step = [] {};

 private:
  std::int64_t n_steps_ = 0;
  std::atomic<std::int64_t> queried_ = 0, hit_ = 0;
};

// The second prompt is more urgent: it takes the 64 tokens that the first one has by then, and computes the rest of the
// 256 that both begin with, which the first one takes over while it runs. Those are hits too.
TEST(EngineLoop, TokensThatARunningRequestTakesOverAreHits) {
  PrefixMetrics metrics;
  EngineLoop loop(start, {.max_in_flight = 64, .keeper = {.prefix_cache = true}}, metrics,
                  [](std::vector<Delivery> news) {
                    for (Delivery& d : news) d.sink->on_event(std::move(d.event));
                  });
  const auto input = [](TokenId last, std::int32_t priority) {
    GenerationInput in;
    for (TokenId t = 0; t < 256; ++t) in.prompt.push_back(100 + t);
    in.prompt.insert(in.prompt.end(), 20, last);
    in.max_tokens = 2;
    in.priority = priority;
    in.stop.ignore_end = true;
    return in;
  };
  const auto first = std::make_shared<Waiter>(), second = std::make_shared<Waiter>();
  metrics.after_first_step = [&] { EXPECT_TRUE(loop.submit(input(500, 5), second)); };
  ASSERT_TRUE(loop.submit(input(600, 0), first));
  EXPECT_EQ(first->tokens().size(), 2u);
  EXPECT_EQ(second->tokens().size(), 2u);
  EXPECT_EQ(metrics.queried(), 2 * 276);
  EXPECT_EQ(metrics.hit(), 256);
}

}  // namespace
}  // namespace mneme
