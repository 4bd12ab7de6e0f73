// An engine behind a keeper and waits, with a few lines for what GenerationTable does: no server, no model.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/base/size32.h"
#include "src/engine/loop/prefix_waits.h"
#include "src/engine/loop/sequence_keeper.h"
#include "tests/engine/hash_model.h"

namespace mneme {

inline constexpr std::int64_t kPageBytes = kHashBlocksPerPage * kPageTokens * 2 * 8 * 2;  // K and V of 8 bf16 values

class Sharing {
 public:
  explicit Sharing(const KeeperOptions& options, std::int64_t pages = 1000, int max_batched_tokens = 32,
                   int max_sequences = 16, KvAdmission admission = KvAdmission::kReserve, Collective* ranks = nullptr)
      : Sharing(options, Sharing::options(pages, max_batched_tokens, max_sequences, admission), ranks) {}
  Sharing(const KeeperOptions& options, const EngineOptions& engine_options, Collective* ranks = nullptr) {
    TestEngine test(engine_options, 1, ranks);
    log_ = std::move(test.log);
    link_ = std::move(test.link);
    model_.engine = std::move(test.engine);
    keeper_.emplace(model_, options);
    waits_.emplace(model_, *keeper_);
  }
  // Another model's engine: log() and prefilled() are not there.
  Sharing(const KeeperOptions& options, std::unique_ptr<Engine> engine) {
    model_.engine = std::move(engine);
    keeper_.emplace(model_, options);
    waits_.emplace(model_, *keeper_);
  }
  static EngineOptions options(std::int64_t pages, int max_batched_tokens, int max_sequences, KvAdmission admission) {
    EngineOptions o;
    o.max_sequences = max_sequences;
    o.kv_admission = admission;
    o.context = std::min<std::int64_t>(pages * kPageTokens, 4096);
    o.kv_memory_bytes = pages * kPageBytes;
    o.max_batched_tokens = max_batched_tokens;
    return o;
  }
  RunningModel& model() { return model_; }
  Engine& engine() { return *model_.engine; }
  SequenceKeeper& keeper() { return *keeper_; }
  PrefixWaits& waits() { return *waits_; }

  RequestId submit(const GenerationInput& input, std::int32_t max_tokens = 4) {
    RequestInput r = request(input.prompt, max_tokens);
    r.end_tokens = {};
    r.keep_sequence = keeps(input);
    r.priority = input.priority;
    r.method = input.method;
    r.group = input.group;
    r.group_limit = input.group_limit;
    const RequestId id = model_.engine->start({}, std::move(r));
    waits_->add(id, input);
    inputs_.emplace(id, &input);
    return id;
  }
  // One step, as GenerationTable::run_step() makes it.
  void step() {
    if (keeper_->has_work()) keeper_->work(engine().views().empty());
    taken_over += waits_->plan();
    keeper_->make_room();
    engine().check_invariants();
    for (const RequestEvent& event : engine().step()) {
      const auto input = inputs_.find(event.id);
      if (input == inputs_.end()) continue;
      if (event.token) {
        answers[event.id].push_back(event.token->token);
        waits_->forget(event.id);
        shared[event.id] = engine().stats(event.id).shared_tokens;
        if (answers[event.id].size() == 1 && keeps(*input->second))
          keeper_->prompt_done(of(event.id, *input->second, input->second->method == nullptr));
      }
      if (event.finished) {
        end(event.id);
        ended_.push_back(event.id);
      }
    }
    engine().check_invariants();
  }
  // Rows of all steps, answers' included.
  std::int64_t prefilled() const {
    std::int64_t n = 0;
    for (const auto& rows : log_->steps)
      for (const std::int32_t r : rows) n += r;
    return n;
  }
  // What goes to the disk and comes from it. Each call waits for a transfer, so some thousands are enough.
  void work_to_the_end() {
    for (int i = 0; i < 10000 && keeper_->has_work(); ++i) keeper_->work(true);
    EXPECT_FALSE(keeper_->has_work());
  }
  // Requests that ended since the last call.
  std::vector<RequestId> take_ended() { return std::exchange(ended_, {}); }
  // All kept sequences. The keeper is of no use afterwards.
  void give_all_up() {
    work_to_the_end();
    for (std::int64_t id = 0; id < 10000; ++id) engine().cancel(RequestId(id));
  }
  // Steps to the end of all of them.
  void finish() {
    for (int i = 0; i < 10000 && !engine().idle(); ++i) step();
    EXPECT_TRUE(engine().idle());
  }
  // Its client goes away.
  void cancel(RequestId id) {
    engine().stop(id);
    end(id);
  }
  std::map<RequestId, std::vector<std::int32_t>> answers;
  std::map<RequestId, std::int32_t> shared;  // tokens
  std::int64_t taken_over = 0;

  // What they answer is what each answers alone.
  void expect_own_answers(const std::vector<RequestId>& ids, const std::vector<GenerationInput>& inputs) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      RequestInput alone = request(inputs[i].prompt, 4);
      alone.end_tokens = {};
      EXPECT_EQ(answers[ids[i]], answer_alone(inputs[i].prompt, alone).tokens) << i;
    }
  }
  SequenceKeeper::Request of(RequestId id, const GenerationInput& input, bool full_attention = true) {
    return {.id = id,
            .prompt_tokens = size32(input.prompt),
            .salt = input.cache_salt,
            .slot = input.slot,
            .full_attention = full_attention};
  }
  // Computes it to its end, and gives it to the keeper.
  RequestId run(const GenerationInput& input, std::int32_t max_tokens, bool full_attention = true) {
    const RequestId id = submit(input, max_tokens);
    inputs_.erase(id);
    waits_->plan();
    drain(engine());
    keeper_->ended(of(id, input, full_attention));
    waits_->forget(id);
    return id;
  }
  HashModelLog& log() { return *log_; }

 private:
  void end(RequestId id) {
    waits_->forget(id);
    const GenerationInput& input = *inputs_.at(id);
    if (keeps(input)) keeper_->ended(of(id, input, input.method == nullptr));
    inputs_.erase(id);
  }

  static bool keeps(const GenerationInput& input) { return !input.method || !input.method->binds_sequence(); }

  std::map<RequestId, const GenerationInput*> inputs_;
  std::vector<RequestId> ended_;
  std::unique_ptr<HashModelLog> log_;
  std::unique_ptr<RankLink> link_;
  RunningModel model_;
  std::optional<SequenceKeeper> keeper_;
  std::optional<PrefixWaits> waits_;
};

inline GenerationInput input_of(std::vector<TokenId> prompt, std::int32_t priority = 0, std::string salt = "") {
  GenerationInput input;
  input.prompt = std::move(prompt);
  input.priority = priority;
  input.cache_salt = std::move(salt);
  return input;
}

inline std::vector<TokenId> question(std::span<const TokenId> document, std::uint64_t seed) {
  return joined(document, random_prompt(20, seed));
}

// `n` questions of 20 tokens each about one document.
inline std::vector<GenerationInput> questions(std::span<const TokenId> document, std::size_t n,
                                              std::int32_t priority = 0) {
  std::vector<GenerationInput> inputs;
  for (std::size_t i = 0; i < n; ++i) inputs.push_back(input_of(question(document, 10 + i), priority));
  return inputs;
}

inline std::vector<RequestId> submit_all(Sharing& s, const std::vector<GenerationInput>& inputs) {
  std::vector<RequestId> ids;
  for (const GenerationInput& input : inputs) ids.push_back(s.submit(input));
  return ids;
}

// Rows of a question of 20 tokens and an answer of 4, whose last token is not computed.
inline constexpr std::int64_t kOwnRows = 20 + 3;

}  // namespace mneme
