// One request and the sequence it extends. The rules of who runs when are the scheduler's, those of events the
// engine's; here is what follows from the fields alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "src/base/size32.h"
#include "src/engine/engine.h"
#include "src/engine/schedule/scheduler.h"
#include "src/kv/sequence_cache.h"
#include "src/sampler/sampler.h"

namespace mneme {

// Errors  kRequest: the plan needs tokens that the sequence has dropped.
void check_dropped(const SequenceCache& cache, const Plan* plan);

// What a request reports of its logits: RequestInput's fields of these names, and the prompt's scores so far.
struct RequestScores {
  bool score_tail = false;
  std::optional<std::int32_t> score_prompt;
  std::int32_t top_logprobs = 0;
  std::function<void(std::int32_t, std::span<const float>)> on_logits;
  std::vector<PromptScore> prompt;
};

struct Request {
  enum class State : std::uint8_t { kWaiting, kRunning, kKept, kEnded };

  explicit Request(PagePool& pool) : cache(pool), sampler(SamplingOptions{.seed = 0}) {}

  RequestId id;
  State state = State::kWaiting;
  // All tokens of the sequence: earlier turns, prompt, answer. Those from cache.length() on are still to be computed;
  // the last token of an answer is one of them for as long as nothing follows it.
  std::vector<std::int32_t> tokens;
  SequenceCache cache;
  Sampler sampler;

  std::int32_t prompt_end = 0;  // where the answer begins
  std::int32_t tail = 0;        // prompt tokens that go one a step
  std::int32_t max_tokens = 0;
  std::vector<std::int32_t> end_tokens;
  std::int32_t priority = 0;
  std::int32_t group = 0, group_limit = 0;
  // Tokens before this one that a preemption took are computed again as a prompt is; 0: as they were the first time.
  std::int32_t refill_end = 0;
  bool begun = false;  // has had rows
  bool keep = false;
  bool held = false;                      // gets no rows until Engine::unhold()
  std::set<std::int32_t> keep_states_at;  // of keep_state_at()
  RequestScores scores;
  std::unique_ptr<MethodState> method;  // null: full attention
  // What a preempted request had computed, the lost pages of which a lower tier has.
  struct Parked {
    std::int32_t length = 0;
    std::unique_ptr<MethodState> method;  // as it was then
  };
  std::optional<Parked> parked;
  RequestStats stats;
  std::int64_t last_used = 0;  // of the engine's count of turns: which kept sequence was used last

  // A held request that has not begun is nothing that the scheduler knows of.
  bool scheduled() const { return !held || state == State::kRunning; }
  bool active() const { return state == State::kWaiting || state == State::kRunning; }
  bool holds_sequence() const { return state != State::kEnded; }
  std::int32_t length() const { return size32(tokens); }
  // Tokens in the cache when the last one is sampled: that one is not computed.
  std::int32_t final_length() const { return prompt_end + (max_tokens > 0 ? max_tokens - 1 : 0); }
  std::int64_t blocks_to_end() const { return blocks_to(final_length()); }
  // Blocks that it takes until it has so many tokens.
  std::int64_t blocks_to(std::int32_t n_tokens) const;
  bool wants_token() const { return cache.length() == length() && max_tokens > 0; }
  bool is_end(std::int32_t token) const;
  // Tokens from here on go one a step, through the method.
  std::int32_t decode_from() const { return std::max(prompt_end - tail, refill_end); }
  // Rows of the prompt, or of the answer, that have been reported are not computed twice.
  bool preemptible() const { return !scores.score_tail && !scores.score_prompt && !scores.on_logits; }
  // Of sequences with states: the last length of the prompt at which the state is kept; the next one, 0: none, where a
  // step ends; whether it is now.
  std::int32_t last_state_of_prompt() const;
  std::int32_t next_state_kept() const;
  bool keeps_state() const;
  // As Engine::keep_state_at().
  bool keep_state_at(std::int32_t n);
  // The row of the last computed token is scored against the token that follows it.
  bool wants_score() const { return scores.score_tail && cache.length() > decode_from() && cache.length() < length(); }
  // The rows of a chunk that ends at cache.length() are wanted, all of them.
  bool wants_prompt_scores() const { return scores.score_prompt.has_value() && cache.length() <= prompt_end; }
  // A method dropped tokens, counted attention, or remembers queries: nothing of it can be had back from the middle.
  bool loses_all() const;
  // Forgets computed tokens from `length` on, or all of them where it can only lose all; they are computed again when
  // they are needed.
  void truncate(std::int32_t length);
  // Forgets so many tokens that no page is open, which another owner shares.
  void close_pages();
  // The last n computed tokens are computed once more.
  void step_back(std::int32_t n);
  // Forgets the last n computed tokens, of a step that failed.
  void undo(std::int32_t n);
  // Learns what a device dropped, before anything but the next decode step.
  void settle() {
    if (method) method->settle(cache);
  }
  // Attends by `plan` from now on. Under the same plan as before the method's state stays.
  //
  // Errors  kRequest: tokens were dropped, and the plan cannot do without them.
  void set_method(std::shared_ptr<const Plan> plan);
  // scored_rows: prompt tokens that may be scored in one step; blocks_to_end: that it is to count on.
  RequestView view(std::int32_t scored_rows, std::int64_t blocks_to_end) const;

  // Begins a turn: `input.prompt` follows the tokens that are there. What is pending afterwards is at least one token.
  void begin_turn(RequestInput input);
};

// Errors  kRequest: `sequence` has tokens that were computed under another method, and one of the two binds it.
void check_method(const Request& sequence, const std::shared_ptr<const Plan>& plan);

}  // namespace mneme
