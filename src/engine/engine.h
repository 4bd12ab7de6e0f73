// Requests in, tokens out: the loop over scheduler, forward pass and sampler. Knows tokens, not text.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "mneme/options.h"
#include "src/base/progress.h"
#include "src/engine/scheduler.h"
#include "src/model/model.h"
#include "src/sampler/sampler.h"

namespace mneme {

enum class FinishReason : std::uint8_t { kEnd, kLength, kStop, kCancelled };
std::string_view finish_reason_name(FinishReason r);  // "end", "length", "stop", "cancelled"

// What a step brought to one request.
struct RequestEvent {
  RequestId id;
  std::optional<Sampler::Choice> token;   // a new token of the answer
  std::int32_t prompt_done = 0;           // prompt tokens computed so far
  std::optional<FinishReason> finished;   // no further events follow
};

struct RequestStats {
  std::int32_t prompt_tokens = 0;      // computed for this request (a fork does not count what it shares)
  std::int32_t shared_tokens = 0;      // taken over from the sequence it was forked from
  std::int32_t answer_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;
};

struct RequestInput {
  std::vector<std::int32_t> prompt;       // at least one token
  SamplingOptions sampling;
  std::int32_t max_tokens = 256;
  std::vector<std::int32_t> end_tokens;   // any of these ends the answer (and is not part of it)
  std::int32_t priority = 0;
  // Prompt tokens at the end that are fed one a step, through the decode path (`--question decode`). 0: all by prefill.
  std::int32_t decode_prompt_tail = 0;
  // Keep keys and values after the end, for keep_going() and fork().
  bool keep_sequence = false;
};

class Engine {
 public:
  // Errors  kOption (values), kResource (no room for one sequence of the context asked for; the numbers are named).
  Engine(std::unique_ptr<Model> model, const EngineOptions& options, std::unique_ptr<ThreadPool> pool);
  ~Engine();

  // Errors  kRequest: empty prompt, token out of range, prompt plus answer longer than the context, more memory than there is in all.
  RequestId submit(RequestInput input);
  // A new request that starts from all tokens of `from`, which must be kept or running: its pages are shared, `input.prompt` follows them.
  RequestId fork(RequestId from, RequestInput input);
  // Goes on with a kept sequence: the next turn. Its tokens stay, `input.prompt` follows them.
  void keep_going(RequestId id, RequestInput input);
  // Ends a running request before the next step; gives up a kept one. Unknown ids are ignored.
  void cancel(RequestId id);
  // Gives up a kept sequence's memory.
  void release(RequestId id) { cancel(id); }

  // One forward pass. Returns what it brought, cancelled requests included; empty when there is nothing to do.
  std::vector<RequestEvent> step();
  bool idle() const;

  // Every token of a running or kept sequence, prompt and answer.
  std::span<const std::int32_t> tokens(RequestId id) const;
  RequestStats stats(RequestId id) const;

  const Model& model() const;
  const EngineOptions& options() const;
  const PagePool& pool() const;
  ThreadPool& threads() const;
  std::size_t kv_bytes(RequestId id) const;  // of its pages, shared ones included

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme
