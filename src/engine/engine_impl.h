// What an engine is inside: the requests, and the parts of a step.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "src/engine/engine.h"
#include "src/engine/forward_pass.h"
#include "src/engine/lower_tier.h"
#include "src/engine/ranks/rank_link.h"
#include "src/engine/request.h"
#include "src/engine/schedule/answer_forecast.h"
#include "src/engine/schedule/prefill_chunk.h"

namespace mneme {

// Members are declared so that whatever uses another goes first: requests give their pages back to the pool, the
// forward pass computes on the threads.
struct Engine::Impl {
  Impl(std::unique_ptr<ForwardPass> forward_pass, const EngineOptions& o, std::unique_ptr<ThreadPool> thread_pool);

  // ---- requests
  Request& add(RequestId id);
  const Request& find(RequestId id) const;
  Request& find_sequence(RequestId id);
  // Before somebody looks at what a request stores.
  void settle(RequestId id);
  void check_input(const RequestInput& input, std::span<const std::int32_t> before) const;
  // Errors  kRequest: `sequence` has tokens that were computed under another method, and one of the two binds it.
  static void check_method(const Request& sequence, const std::shared_ptr<const Plan>& plan);
  void start(Request& request, RequestInput input, Sampler sampler);
  RequestEvent end(Request& request, StopReason reason);
  void forget(RequestId id) { requests.erase(id); }
  std::int64_t reserved_blocks() const;
  bool has_unpromised(std::int64_t n_blocks) const;
  // Running requests may have to copy pages that this one shares: it shares none that anybody writes into.
  void close_pages_without_room(Request& request);

  // ---- several ranks (src/engine/ranks)
  bool follows() const { return ranks != nullptr && !ranks->leads(); }
  // Followers repeat a call of the leader's; call it when nothing can refuse the call any more.
  void tell(RankCall call, FunctionRef<void(ByteWriter&)> arguments);
  void tell(RankCall call, RequestId id);
  void tell_input(RankCall call, RequestId from, std::int32_t n_shared, const RequestInput& input);
  bool room_may_differ() const;
  // Whether it is so on every rank.
  bool agreed(bool mine) const { return ranks == nullptr ? mine : ranks->all(mine); }

  // ---- a step
  struct Batch {
    std::vector<Request*> requests;
    std::vector<SequenceRows> rows;
    std::vector<std::int32_t> tokens;
    // Of every row of logits: whose it is, and the position of the token that it foretells.
    struct Row {
      Request* request;
      std::int32_t predicted;
      bool known(const Request& r) const { return predicted < r.length(); }
    };
    std::vector<Row> wanted;
  };
  bool forecasts() const { return options.kv_admission == KvAdmission::kForecast; }
  // Blocks that admission counts on for a request.
  std::int64_t expected_blocks(const Request& r) const;
  RequestView view(const Request& r) const { return r.view(scored_rows(), expected_blocks(r)); }
  std::vector<RequestView> views() const;
  std::vector<ScheduledRows> plan();
  std::vector<ScheduledRows> plan_with_room();
  bool fits(const std::vector<ScheduledRows>& plan) const;
  bool preempt();
  void make_room();
  bool take_pages(const Request* except, FunctionRef<bool()> enough);
  void drop_last_page(Request& r);
  // A preempted request's pages in a lower tier.
  bool can_park(const Request& r) const;
  void park(Request& r);
  void unpark(Request& r);
  bool bring_back(Request& r);
  bool bring_back(const std::vector<ScheduledRows>& plan);
  void leave_parked_out(std::vector<ScheduledRows>& plan) const;
  Batch gather(const std::vector<ScheduledRows>& plan);
  void settle_others(const Batch& batch);
  void undo(const Batch& batch);
  void commit(const Batch& batch);  // what methods decided to drop
  struct Sample {
    Sampler::SampledToken sampled;
    std::vector<TokenLogprob> top;
  };
  std::vector<Sample> compute(const Batch& batch);
  std::vector<Sample> compute_here(const Batch& batch, const ForwardInput& input);
  void share_tokens(const Batch& batch, std::vector<Sample>& samples);
  std::vector<Sample> sample(const Batch& batch, const ConstTensorView& logits);
  void apply(const Batch& batch, std::vector<Sample> samples, double seconds);
  void observe(const Batch& batch, double seconds);
  void take_sample(Request& request, Sample sample, RequestEvent& event);
  std::int32_t scored_rows() const;
  std::vector<RequestEvent> take_events();

  EngineOptions options;
  std::unique_ptr<ThreadPool> threads;
  std::unique_ptr<ForwardPass> forward;
  RankLink* ranks;  // null: this engine has the whole model
  RankRequests rank_requests;
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
