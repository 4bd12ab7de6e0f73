// What an engine is inside: the requests, and the parts of a step.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "src/engine/engine.h"
#include "src/engine/forward_pass.h"
#include "src/engine/parked_pages.h"
#include "src/engine/request.h"
#include "src/engine/schedule/answer_forecast.h"
#include "src/engine/schedule/prefill_chunk.h"
#include "src/engine/step_batch.h"

namespace mneme {

// Members are declared so that whatever uses another goes first: requests give their pages back to the pool, the
// forward pass computes on the threads.
struct Engine::Impl {
  Impl(std::unique_ptr<ForwardPass> forward_pass, const EngineOptions& o, std::unique_ptr<ThreadPool> thread_pool);
  virtual ~Impl() = default;
  void make_pool();

  // ---- what the engines of one model decide together, each of which has a part (src/engine/ranks)
  virtual std::int64_t least_blocks(std::int64_t mine) const { return mine; }
  virtual bool agreed(bool mine) const { return mine; }
  virtual void agree_on_step(std::vector<RequestView>& /*views*/, std::int64_t& /*free_blocks*/,
                             std::int32_t& /*prompt_tokens*/) const {}
  // A forward pass and its tokens.
  virtual std::vector<Sample> compute(const StepBatch& batch);

  // ---- requests
  Request& add(RequestId id);
  const Request& find(RequestId id) const;
  Request& find_sequence(RequestId id);
  // Call before reading what a request stores.
  void settle(RequestId id);
  void check_input(const RequestInput& input, std::span<const std::int32_t> before) const;
  // The sequence that a request begins from; null: none. Errors  as Engine::start().
  Request* origin_of(const Origin& origin, const RequestInput& input);
  // Whether the request would have to compute less after it. Errors  as Engine::take_prefix().
  bool can_take_prefix(RequestId id, RequestId from, std::int32_t n_shared);
  // What `request` takes over of `from`, and its tokens.
  void share(const Request& from, const Origin& origin, const RequestInput& input, Request& request);
  void begin(Request& request, RequestInput input);
  RequestEvent end(Request& request, StopReason reason);
  void forget(RequestId id) { requests.erase(id); }
  std::int64_t reserved_blocks() const;
  bool has_unpromised(std::int64_t n_blocks) const;
  // Running requests may have to copy pages that this one shares: it shares none that anybody writes into.
  void close_pages_without_room(Request& request);

  // ---- a step
  bool forecasts() const { return options.kv_admission == KvAdmission::kForecast; }
  // Blocks that admission counts on for a request.
  std::int64_t expected_blocks(const Request& r) const;
  RequestView view(const Request& r) const { return r.view(scored_rows(), expected_blocks(r)); }
  std::vector<RequestView> views() const;
  std::vector<ScheduledTokens> plan();
  std::vector<ScheduledTokens> plan_with_room();
  bool fits(const std::vector<ScheduledTokens>& plan) const;
  bool forget_copies();
  bool preempt();
  void interrupt(Request& r);
  void undo(const StepBatch& batch);
  void make_room();
  bool take_pages(const Request* except, FunctionRef<bool()> enough);
  void drop_last_page(Request& r);
  bool bring_back(const std::vector<ScheduledTokens>& plan);
  void leave_parked_out(std::vector<ScheduledTokens>& plan) const;
  bool all_held() const;
  StepBatch gather(const std::vector<ScheduledTokens>& plan);
  void settle_others(const StepBatch& batch);
  void apply(const StepBatch& batch, std::vector<Sample> samples, double seconds);
  std::int32_t scored_rows() const;
  std::vector<RequestEvent> take_events();

  EngineOptions options;
  std::unique_ptr<ThreadPool> threads;
  std::unique_ptr<ForwardPass> forward;
  std::unique_ptr<PagePool> pool;
  std::unordered_map<RequestId, std::unique_ptr<Request>> requests;
  std::vector<Request*> active;      // waiting and running, in order of arrival
  std::vector<RequestEvent> events;  // not yet returned by step()
  std::vector<RequestId> reported;   // whose end step() has returned and whose sequence is gone
  LowerTier* lower = nullptr;
  PrefillChunk chunk;
  AnswerForecast forecast;
  Counts counts;
  std::int64_t next_id = 0;
  std::int64_t use_clock = 0;
};

}  // namespace mneme
