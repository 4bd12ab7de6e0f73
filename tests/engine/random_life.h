// Thousands of steps of random events: whatever happens around it, every request answers what it answers alone, the
// books agree after every event, and in the end no page is missing.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "mneme/error.h"
#include "src/base/rng.h"
#include "src/base/size32.h"
#include "src/engine/engine.h"
#include "tests/engine/hash_model.h"

namespace mneme {

class RandomLife {
 public:
  // ranks: those that follow; a model that fails is theirs no more.
  // window: tokens that one of the model's two layers sees; 0: all of them. has_state: the model has a state.
  RandomLife(const EngineOptions& options, std::uint64_t seed, Collective* ranks = nullptr, std::int32_t window = 0,
             bool has_state = false)
      : engine_(options, 1, ranks, window, has_state), rng_(seed), may_fail_(ranks == nullptr) {}

  const HashModelLog& log() const { return *engine_.log; }

  void run(int n_events) {
    for (int i = 0; i < n_events && !testing::Test::HasFailure(); ++i) {
      event();
      engine_->check_invariants();
    }
    while (!engine_->idle() && !testing::Test::HasFailure()) {
      step();
      engine_->check_invariants();
    }
    for (const auto& [id, turn] : turns_) engine_->cancel(id);
    EXPECT_EQ(engine_->pool().n_free(), engine_->pool().n_blocks());
    EXPECT_GT(n_answers_, n_events / 50);
    EXPECT_GT(widest(), 1u);
  }

 private:
  // What is known of a request that runs, waits or is kept.
  struct Turn {
    std::vector<std::int32_t> before;  // all tokens when its turn began
    RequestInput input;
    std::vector<std::int32_t> got;
    bool running = true;
    bool stopped = false;  // its last event was not told yet
  };

  std::size_t widest() const {
    std::size_t n = 0;
    for (const auto& s : engine_.log->steps) n = std::max(n, s.size());
    return n;
  }

  RequestInput random_input() {
    const std::size_t n = rng_.below(4) == 0 ? rng_.below(150) : rng_.below(12);
    RequestInput input = request(random_prompt(n, rng_.next()), static_cast<std::int32_t>(rng_.below(40)));
    input.priority = static_cast<std::int32_t>(rng_.below(3));
    input.keep_sequence = rng_.below(2) == 0;
    if (rng_.below(3) == 0) input.end_tokens.clear();
    if (rng_.below(3) == 0) input.decode_prompt_tail = static_cast<std::int32_t>(rng_.below(15));
    if (rng_.below(2) == 0) {
      input.sampling.temperature = 0.8f;
      input.sampling.seed = rng_.next();
      input.sampling.top_p = 0.9f;
      input.sampling.frequency_penalty = 0.3f;
      input.sampling.repetition_penalty = rng_.below(2) == 0 ? 1.0f : 1.2f;
    }
    return input;
  }

  RequestId any() {
    auto it = turns_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(rng_.below(turns_.size())));
    return it->first;
  }

  void began(RequestId id, std::span<const std::int32_t> before, const RequestInput& input) {
    turns_[id] = Turn{joined(before, input.prompt), input, {}, true};
    EXPECT_TRUE(std::ranges::equal(engine_->tokens(id), turns_[id].before));
  }

  void event() {
    const std::uint64_t what = rng_.below(16);
    try {
      if (turns_.empty() || what == 0) {
        const RequestInput input = random_input();
        began(engine_->start({}, input), {}, input);
      } else if (what == 1) {
        const RequestInput input = random_input();
        const RequestId from = any();
        const auto before = joined(engine_->tokens(from), {});
        began(engine_->start(Origin::fork(from), input), before, input);
      } else if (what == 2) {
        const RequestId id = any();
        if (turns_[id].running) return;
        const RequestInput input = random_input();
        const auto before = joined(engine_->tokens(id), {});
        engine_->start(Origin::next_turn(id), input);
        began(id, before, input);
      } else if (what == 3 && rng_.below(2) == 0) {
        const RequestId id = any();
        if (turns_[id].running && turns_[id].stopped) return;  // nobody asks for its tokens any more
        engine_->cancel(id);
        if (!turns_[id].running) turns_.erase(id);
      } else if (what == 4 && rng_.below(2) == 0) {
        const RequestId id = any();
        engine_->stop(id);
        turns_[id].stopped = true;
      } else if (what == 7 && engine_.log->has_state && rng_.below(2) == 0) {
        engine_->keep_state_at(any(), static_cast<std::int32_t>(rng_.below(150)));
      } else if (what == 6 && (engine_.log->window > 0 || engine_.log->has_state)) {
        const RequestInput input = random_input();
        const RequestId from = any();
        const auto all = joined(engine_->tokens(from), {});
        const auto before = std::span(all).first(rng_.below(all.size() + 1));
        began(engine_->start(Origin::prefix(from, size32(before)), input), before, input);
      } else if (what == 5 && may_fail_ && rng_.below(4) == 0) {
        engine_.log->fail_in = static_cast<int>(rng_.below(5));
      } else {
        step();
      }
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kRequest) << e.what();  // too long for the context or the pool
    }
  }

  void step() {
    std::vector<RequestEvent> events;
    try {
      events = engine_->step();
    } catch (const Error& e) {
      ASSERT_EQ(e.kind(), ErrorKind::kResource) << e.what();
      return;
    }
    for (const RequestEvent& e : events) {
      ASSERT_TRUE(turns_.contains(e.id)) << "an event after the end";
      Turn& turn = turns_[e.id];
      ASSERT_TRUE(turn.running);
      if (e.token) turn.got.push_back(e.token->token);
      ASSERT_TRUE(std::ranges::equal(engine_->tokens(e.id), joined(turn.before, turn.got)));
      if (e.finished) finished(e.id, turn, *e.finished);
    }
  }

  void finished(RequestId id, Turn& turn, StopReason reason) {
    const HashAnswer expected = answer_alone(turn.before, turn.input, engine_.log->window, engine_.log->has_state);
    if (reason == StopReason::kEnd || reason == StopReason::kLength) {
      ASSERT_EQ((HashAnswer{turn.got, reason}), expected) << "request " << id.value;
      ++n_answers_;
    } else {
      ASSERT_LE(turn.got.size(), expected.tokens.size());
      ASSERT_TRUE(std::equal(turn.got.begin(), turn.got.end(), expected.tokens.begin())) << "request " << id.value;
    }
    turn.running = false;
    if (!turn.input.keep_sequence || reason == StopReason::kCancelled) turns_.erase(id);
  }

  TestEngine engine_;
  Rng rng_;
  bool may_fail_;
  std::map<RequestId, Turn> turns_;
  int n_answers_ = 0;
};

// A page of the test's model takes 4,096 bytes.
inline EngineOptions random_life_options(std::int64_t n_pages, int max_sequences, int max_batched_tokens) {
  EngineOptions o;
  o.kv_memory_bytes = n_pages * 4096;
  o.max_sequences = max_sequences;
  o.max_batched_tokens = max_batched_tokens;
  return o;
}

}  // namespace mneme
