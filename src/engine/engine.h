// Requests in, tokens out: the loop over scheduler, forward pass and sampler. Knows tokens, not text.
//
// A sequence is its tokens; its pages are what of them is computed. An end token is neither part of the answer nor of
// the sequence; the last token of an answer is part of the sequence, but computed only when another turn or a fork
// follows it. So tokens(id) is always exactly what a fresh request would have to be given to stand at the same point.
//
// Memory    A request begins when the pages that it may need to its end are free beside those that the running ones
//           may still take, so a step never fails for want of memory. With KvAdmission::kForecast it begins when those
//           are free that it probably needs; where a step finds too few, sequences that do not run lose pages, then the
//           least urgent running ones, which wait for room again and get back from a lower tier what that could take,
//           or compute it again. Only when nothing runs and the first waiting request has no room do kept sequences
//           lose pages from their ends, the longest unused first, then forks that wait: their tokens stay and are
//           computed again.
// Threads   one at a time.
// Order     requests of equal priority begin in the order in which they came; a turn of a kept sequence comes when it
// is asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "mneme/options.h"
#include "mneme/stats.h"
#include "src/base/function_ref.h"
#include "src/base/progress.h"
#include "src/engine/schedule/scheduler.h"
#include "src/methods/stats/method_stats.h"
#include "src/model/model.h"
#include "src/sampler/sampler.h"

namespace mneme {

// What a step produced for one request.
struct RequestEvent {
  RequestId id;
  std::optional<Sampler::SampledToken> token;  // a new token of the answer
  std::vector<TokenLogprob> top;               // RequestInput::top_logprobs: the likeliest in its place
  std::int32_t prompt_done = 0;                // tokens computed for this request before its first answer token, so far
  std::int32_t prompt_total = 0;               // of so many (stats: prompt_tokens)
  std::optional<StopReason> finished;          // no further events follow
};

// Of one turn.
struct RequestStats {
  std::int32_t prompt_tokens = 0;  // computed for this request (a fork does not count what it shares)
  std::int32_t shared_tokens = 0;  // taken over from the sequence it was forked from, or from earlier turns
  std::int32_t answer_tokens = 0;  // the end token apart
  std::int32_t preemptions = 0;    // how often its pages went to others, to be computed again
  // Wall time of the steps that computed something for it: up to the first token of its answer, and from then on.
  double prefill_seconds = 0, decode_seconds = 0;
  double tail_log_likelihood = 0;  // RequestInput::score_tail: sum over the scored tokens, natural logarithm
  std::int32_t tail_scored = 0;
};

// A token of the prompt under the logits of those before it.
struct PromptScore {
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;  // the likeliest in its place
};

struct RequestInput {
  std::vector<std::int32_t> prompt;  // at least one token; may be empty where tokens are there already
  SamplingOptions sampling;
  std::shared_ptr<const TokenConstraint> constraint;  // on the answer; null: none
  std::uint64_t draws_before = 0;        // of the seed, made by an earlier turn that this one's draws follow
  std::int32_t max_tokens = 256;         // 0: only computes the prompt, for forks to share
  std::vector<std::int32_t> end_tokens;  // any of these ends the answer (and is not part of it)
  std::int32_t priority = 0;
  // At most group_limit requests of a group run at once; 0: any number.
  std::int32_t group = 0, group_limit = 0;
  // Prompt tokens at the end that are fed one a step, through the decode path (`--question decode`). 0: all by prefill;
  // larger than the prompt: all of it so.
  std::int32_t decode_prompt_tail = 0;
  // Score the tail: the log-probability of each of its tokens but the first, given all before it.
  bool score_tail = false;
  // Score every token of the prompt but the first, and tell so many of the likeliest; absent: none is scored. The
  // prompt is then computed in chunks whose logits take 64 MiB at most.
  std::optional<std::int32_t> score_prompt;
  // Likeliest tokens told with every token of the answer.
  std::int32_t top_logprobs = 0;
  // Called with every row of logits that is computed for this request: f32 [vocab], of the token at `position` of the
  // sequence. Within step(), one row after the other. Null: logits may stay where they are computed.
  std::function<void(std::int32_t position, std::span<const float> logits)> on_logits;
  // Tokens [first, second) of this prompt are its question: what a method that reads prompts in windows looks for from
  // then on. Empty: none is marked; what an earlier turn marked stays. Other methods do not look at it.
  std::pair<std::int32_t, std::int32_t> question_span{0, 0};
  // Keep keys and values after the end, for what starts from them.
  bool keep_sequence = false;
  // How the rows that decode attend; null: everything. compile(recipe, method_shape()) makes one. A fork or a next turn
  // with the plan of the sequence it follows takes its state over.
  std::shared_ptr<const Plan> method;
};

// What a request begins from.
struct Origin {
  enum class Kind : std::uint8_t { kNothing, kFork, kPrefix, kNextTurn };
  Kind kind = Kind::kNothing;
  RequestId from;
  std::int32_t n_shared = 0;

  // All tokens of `from`: a new request that shares its pages. Where free memory does not suffice to let both write into
  // a shared page, the tokens of that page (31 at most) are computed again.
  static Origin fork(RequestId from) { return {.kind = Kind::kFork, .from = from}; }
  // The first n_shared tokens of `from`, those of them shared that it has computed. Of its method, if it is the
  // request's too, the index alone is taken over: selections and counts start again, so that the answer is that of a
  // request which had computed everything itself. So a sequence that dropped tokens shares nothing, and rows that the
  // request's method looks at when a prefill ends are computed again. Where the method binds its sequences (Plan), what
  // follows is read in other windows than a whole prompt would be.
  //
  // Requires  0 <= n_shared <= tokens of `from`.
  static Origin prefix(RequestId from, std::int32_t n_shared) {
    return {.kind = Kind::kPrefix, .from = from, .n_shared = n_shared};
  }
  // A kept sequence itself: the next turn. The prompt begins with whatever closes the previous answer.
  static Origin next_turn(RequestId of) { return {.kind = Kind::kNextTurn, .from = of}; }
};

class ForwardPass;
class LowerTier;
class RankLink;

// Of models with states steps of a prompt end at multiples of it, so that kernels that read prompts in chunks find whole
// ones.
inline constexpr std::int32_t kStateRows = 64;

class Engine {
 public:
  // Errors  kOption (values), kResource (no room for one sequence of the context asked for; the numbers are named).
  Engine(std::unique_ptr<Model> model, const EngineOptions& options, std::unique_ptr<ThreadPool> pool);
  Engine(std::unique_ptr<ForwardPass> forward, const EngineOptions& options, std::unique_ptr<ThreadPool> pool);
  virtual ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // A request from `origin` on; its id, which is never used again, and of Origin::next_turn() the sequence's. What it
  // starts from must be kept, running or waiting, and of next_turn() kept. `input.prompt` follows it. The sampler is its
  // own, whose repetition penalty has seen all tokens of the sequence.
  //
  // Errors  kRequest: empty prompt, token out of range, prompt plus answer longer than the context, more memory than
  // there is in all; no such sequence; it or `input.method` binds a sequence to one method (Plan), and they are not the
  // same; tokens were dropped that the method needs.
  //         kOption: sampling options out of range. Nothing has changed then.
  virtual RequestId start(const Origin& origin, RequestInput input);
  // Leaves a request whose prompt is not computed out of every step until unhold(): it does not delay those behind it,
  // and keeps its position in the queue, its pages and its reservation. cancel() and stop() end it as any other.
  //
  // Requires  `id` waits or computes its prompt.
  virtual void hold(RequestId id);
  // Ids that are not held are ignored.
  virtual void unhold(RequestId id);
  // Lets a request whose prompt is not computed go on from what `from` has computed of it: the first n_shared tokens of
  // both are the same, and their pages are shared as by Origin::prefix(), in place of what it had. Returns how
  // many of its tokens are computed then; where that would not be more than before, nothing changes. A request that
  // runs takes nothing over where its method has state on a device.
  //
  // Requires  0 <= n_shared <= computed tokens of `from`. Errors  kRequest: as start().
  virtual std::int32_t take_prefix(RequestId id, RequestId from, std::int32_t n_shared);
  // Of models with states (kv/recurrent_state.h): a copy of the state of a prompt's first n tokens, in whole kStateRows,
  // is kept when they are computed, where there is room. Returns false where they are already, or are no part of the
  // prompt.
  bool keep_state_at(RequestId id, std::int32_t n);
  // Ends a running or waiting request before the next step, which returns its event, and frees its sequence; frees
  // a kept one. Unknown ids are ignored.
  virtual void cancel(RequestId id);
  // Ends a running or waiting request as its caller wants it (a stop string): the next step returns kStopString. The
  // sequence is kept if that was asked for. Other ids are ignored.
  virtual void stop(RequestId id);
  // A kept sequence from elsewhere (a saved session): its tokens, of which the first n_computed have keys and values;
  // `fill` writes these, and may drop some. `method`: what the sequence's method remembers, if anything. Where memory
  // does not suffice, other kept sequences lose pages, as for a request.
  //
  // Errors  kRequest: as start(); kResource: what runs leaves no room. What `fill` throws. There is no such sequence
  // then.
  RequestId adopt(std::vector<std::int32_t> tokens, std::int32_t n_computed, FunctionRef<void(SequenceCache&)> fill,
                  std::unique_ptr<MethodState> method = nullptr);

  // A kept sequence whose keys and values come piece by piece: its tokens, of which it shares the first n_shared with
  // `from` (with an invalid id: none).
  //
  // Requires  n_shared computed tokens of `from`, the same. Errors  kRequest: as start().
  virtual RequestId adopt_prefix(std::vector<std::int32_t> tokens, RequestId from, std::int32_t n_shared);
  // Adds the next n_tokens of a kept sequence, whose keys and values `fill` writes, which must not throw. False: what
  // runs leaves no room for them, even where other kept sequences lose pages; nothing is added then. With several
  // ranks every rank calls it, within one of the leader's calls.
  bool fill_kept(RequestId id, std::int32_t n_tokens, FunctionRef<void(SequenceCache&)> fill);

  // Receives the pages that sequences lose while they do not run; null: they are dropped. Only for an engine that has
  // the whole model.
  //
  // Requires  `lower` outlives its use.
  void set_lower_tier(LowerTier* lower);

  // One forward pass. Returns its events, cancelled requests included; empty when there is nothing to do.
  //
  // Errors  what the forward pass throws (kResource, kDevice): nothing of the step counts then, all requests are where
  // they were, and
  //         the next step tries again.
  virtual std::vector<RequestEvent> step();
  // Nothing to compute and nothing to tell.
  bool idle() const;

  // Every token of a sequence, prompt and answer; until something else is called. Of an ended request that was not
  // kept, this and stats() can be asked for until the step after the one that returned its end.
  //
  // Errors  kRequest: no such request.
  std::span<const std::int32_t> tokens(RequestId id) const;
  RequestStats stats(RequestId id) const;

  // RequestInput::score_prompt: of the tokens at 1, 2, ... of the prompt; as stats().
  std::span<const PromptScore> prompt_scores(RequestId id) const;

  // The sequence's keys and values, and the sampler of its last turn; until something else is called.
  //
  // Errors  kRequest: no such request.
  const SequenceCache& cache(RequestId id) const;
  const Sampler& sampler(RequestId id) const;

  // What the request's method did since it began, earlier turns included; null without a method. As tokens(), it can be
  // asked for until the step after the one that returned the end.
  const MethodStats* method_stats(RequestId id) const;
  MethodMemory method_memory() const;
  // Sets a kept sequence's method and builds its index now, so that forks with this plan share it.
  //
  // Errors  kRequest: as start().
  virtual void attach_method(RequestId id, std::shared_ptr<const Plan> plan);
  // What the request's method remembers, for saved sessions; null without a method.
  const MethodState* method(RequestId id) const;
  // Bytes of the request's index and of what else its method remembers.
  std::size_t method_bytes(RequestId id) const;
  // What a recipe is compiled for.
  MethodShape method_shape() const;
  // Sees every row that decodes from now on (src/methods/decode_observer.h); null: no observer. Outlives its use.
  void set_observer(DecodeObserver* observer);

  const Model& model() const;
  // `context` is the one in force, never 0.
  const EngineOptions& options() const;
  const PagePool& pool() const;
  ThreadPool& threads() const;
  std::size_t kv_bytes(RequestId id) const;  // of its pages, shared ones included
  // Pool blocks that the running requests may still take, or will by forecast.
  std::int64_t reserved_blocks() const;
  // Of all steps.
  struct Counts {
    std::int64_t preemptions = 0;
    std::int64_t preempted_tokens = 0;  // computed tokens that these lost
    std::int64_t returned_tokens = 0;   // of these, tokens that came back from a lower tier
  };
  Counts counts() const;
  // Prompt tokens that the next step computes at most beside answers (EngineOptions::inter_token_ms).
  std::int32_t prefill_chunk() const;
  // What the scheduler sees, in order of arrival: active requests, but for those that are held before they begin.
  std::vector<RequestView> views() const;
  // Of one active request. Errors  kRequest: there is none.
  RequestView view(RequestId id) const;
  // Of a part of a model (ranks/rank_engine.h): the link to the others. Null: this engine has the whole model.
  RankLink* ranks() const;

  // Aborts where pages, tables and reservations contradict each other. Walks all of them: for tests.
  void check_invariants() const;

 protected:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme
