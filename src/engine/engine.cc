#include "src/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/engine/engine_impl.h"
#include "src/engine/kv_plan.h"
#include "src/engine/memory_limit.h"
#include "src/kv/cache_invariants.h"
#include "src/model/shapes.h"

namespace mneme {

Engine::Impl::Impl(std::unique_ptr<ForwardPass> forward_pass, const EngineOptions& o,
                   std::unique_ptr<ThreadPool> thread_pool)
    : options(o),
      threads(std::move(thread_pool)),
      forward(std::move(forward_pass)),
      chunk(std::max(o.inter_token_ms, 0.0) / 1000, std::max(o.max_batched_tokens, 1)) {
  MNEME_CHECK(forward != nullptr && threads != nullptr, "an engine needs a model and threads");
}

void Engine::Impl::make_pool() {
  const KvShape shape = forward->kv_shape(kv_dtype_of(options));
  KvWindows windows = options.kv_spill.bytes == 0 ? forward->kv_windows() : KvWindows{};
  windows.step_tokens = std::max(options.max_batched_tokens, 1);
  KvPlan kv = plan_kv(shape, options, forward->max_context(), forward->kv_room_bytes(memory_limit_bytes()), windows);
  kv.n_blocks = least_blocks(kv.n_blocks);
  options.context = kv.context;
  pool = kv.resident_bytes > 0 ? std::make_unique<PagePool>(shape, kv.n_blocks,
                                                            SpillOptions{.folder = options.kv_spill.folder,
                                                                         .resident_bytes = kv.resident_bytes})
                               : forward->make_pool(shape, kv.n_blocks);
  pool->set_windows(windows);
}

Request& Engine::Impl::add(RequestId id) {
  auto& place = requests[id];
  place = std::make_unique<Request>(*pool);
  place->id = id;
  return *place;
}

const Request& Engine::Impl::find(RequestId id) const {
  const auto it = requests.find(id);
  if (it == requests.end()) fail(ErrorKind::kRequest, "there is no request {}", id.value);
  return *it->second;
}

void Engine::Impl::settle(RequestId id) {
  const auto it = requests.find(id);
  if (it != requests.end() && it->second->holds_sequence()) it->second->settle();
}

Request& Engine::Impl::find_sequence(RequestId id) {
  const auto it = requests.find(id);
  if (it == requests.end() || it->second->state == Request::State::kEnded) {
    fail(ErrorKind::kRequest, "request {} has no sequence to go on with: it is neither kept nor running", id.value);
  }
  return *it->second;
}

// Returns its last event, not told yet.
RequestEvent Engine::Impl::end(Request& request, StopReason reason) {
  std::erase(active, &request);
  unpark(request, lower);
  request.last_used = ++use_clock;
  const bool kept = request.keep && reason != StopReason::kCancelled;
  request.state = kept ? Request::State::kKept : Request::State::kEnded;
  if (reason != StopReason::kCancelled) {
    request.settle();  // for its statistics too
    if (request.max_tokens > 0) forecast.add(request.stats.answer_tokens);
  }
  if (kept) request.forget_untold();
  if (!kept) request.cache.clear();
  RequestEvent event = event_of(request);
  event.finished = reason;
  return event;
}

RequestEvent Engine::Impl::event_of(const Request& request) {
  return {.id = request.id,
          .token = {},
          .top = {},
          .prompt_done = request.stats.prompt_tokens,
          .prompt_total = request.prompt_end - request.stats.shared_tokens,
          .finished = {}};
}

// Blocks that the running ones may still take.
std::int64_t Engine::Impl::reserved_blocks() const {
  std::int64_t n = 0;
  for (const Request* r : active) n += r->state == Request::State::kRunning ? expected_blocks(*r) : 0;
  return n;
}

std::int64_t Engine::Impl::expected_blocks(const Request& r) const {
  if (!forecasts() || !r.preemptible() || r.max_tokens == 0) return r.blocks_to_end();
  return r.blocks_to(r.prompt_end + forecast.tokens(r.max_tokens, r.length() - r.prompt_end) - 1);
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->make_pool();
}

Engine::Engine(std::unique_ptr<ForwardPass> forward, const EngineOptions& options, std::unique_ptr<ThreadPool> pool)
    : Engine(std::make_unique<Impl>(std::move(forward), options, std::move(pool))) {
  MNEME_CHECK(ranks() == nullptr, "a part of a model: a RankEngine runs it");
}

Engine::~Engine() = default;

void Engine::hold(RequestId id) {
  Request& request = impl_->find_sequence(id);
  MNEME_CHECK(request.active() && request.cache.length() < request.decode_from(),
              "request {} has computed its prompt: it cannot be held", id.value);
  request.held = true;
}

void Engine::unhold(RequestId id) {
  const auto it = impl_->requests.find(id);
  if (it != impl_->requests.end()) it->second->held = false;
}

void Engine::cancel(RequestId id) {
  const auto it = impl_->requests.find(id);
  if (it == impl_->requests.end()) return;
  Request& request = *it->second;
  if (request.active()) {
    impl_->events.push_back(impl_->end(request, StopReason::kCancelled));
  } else if (request.state == Request::State::kKept) {
    impl_->forget(id);
  }
}

void Engine::stop(RequestId id) {
  const auto it = impl_->requests.find(id);
  if (it == impl_->requests.end() || !it->second->active()) return;
  impl_->events.push_back(impl_->end(*it->second, StopReason::kStopString));
}

std::vector<RequestEvent> Engine::step() {
  for (RequestId id : std::exchange(impl_->reported, {})) impl_->forget(id);
  if (impl_->all_held() || impl_->tell_accepted()) return impl_->take_events();
  std::vector<ScheduledTokens> plan = impl_->plan_with_room();
  impl_->add_drafts(plan);
  MNEME_CHECK(!plan.empty(), "{} requests, and none can run", impl_->active.size());

  const auto start = std::chrono::steady_clock::now();
  const StepBatch batch = impl_->gather(plan);
  std::vector<Sample> samples;
  try {
    samples = impl_->compute(batch);
  } catch (...) {
    impl_->undo(batch);
    throw;
  }
  batch.commit(samples);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  impl_->apply(batch, std::move(samples), seconds.count());
  return impl_->take_events();
}

bool Engine::idle() const {
  return impl_->active.empty() && impl_->events.empty();
}

std::span<const std::int32_t> Engine::tokens(RequestId id) const {
  return impl_->find(id).tokens;
}
RequestStats Engine::stats(RequestId id) const {
  return impl_->find(id).stats;
}

const MethodStats* Engine::method_stats(RequestId id) const {
  const Request& request = impl_->find(id);
  return request.method ? &request.method->stats() : nullptr;
}

void Engine::attach_method(RequestId id, std::shared_ptr<const Plan> plan) {
  Request& request = impl_->find_sequence(id);
  MNEME_CHECK(!request.active(), "request {} runs: its method cannot change", id.value);
  check_method(request, plan);
  request.set_method(std::move(plan));
  if (!request.method) return;
  if (impl_->pool->on_device()) return;  // whose methods keep what they need there
  const KvShape& shape = impl_->pool->shape();
  for (std::int32_t l = 0; l < shape.n_layers; ++l) request.method->see_prompt(l, request.cache.length(), true);
  const std::int64_t n = shape.blocks_per_page();  // one (layer, KV head) is one thread's work
  impl_->threads->parallel_for(n, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i)
      request.method->close_units(count32(i / shape.n_kv_heads), count32(i % shape.n_kv_heads), request.cache);
  });
}

std::size_t Engine::method_bytes(RequestId id) const {
  const Request& request = impl_->find(id);
  if (!request.method) return 0;
  return request.method->index_bytes() + request.method->copy_bytes() + request.method->state_bytes();
}

std::string Engine::no_drafts_reason(const Plan* plan) const {
  if (impl_->pool->on_device()) return "a GPU verifies no drafts yet: expected --device cpu";
  if (ranks() != nullptr) return "ranks that share a model verify no drafts yet: expected one rank";
  if (plan != nullptr)
    return fmt::format("drafts are verified by full attention: expected --kv full, found {}", plan->name());
  return std::string(impl_->forward->no_drafts_reason());
}

MethodMemory Engine::method_memory() const {
  return impl_->forward->method_memory();
}

void Engine::set_lower_tier(LowerTier* lower) {
  MNEME_CHECK(lower == nullptr || ranks() == nullptr, "a lower tier under a part of a model");
  for (Request* r : impl_->active) unpark(*r, impl_->lower);
  impl_->lower = lower;
}

void Engine::set_observer(DecodeObserver* observer) {
  impl_->forward->set_observer(observer);
}

MethodShape Engine::method_shape() const {
  return method_shape_of(model().config(), impl_->pool->shape().dtype);
}

const Model& Engine::model() const {
  MNEME_CHECK(impl_->forward->model() != nullptr, "this engine runs without a model");
  return *impl_->forward->model();
}
RankLink* Engine::ranks() const {
  return impl_->forward->ranks();
}
const EngineOptions& Engine::options() const {
  return impl_->options;
}
const PagePool& Engine::pool() const {
  return *impl_->pool;
}
ThreadPool& Engine::threads() const {
  return *impl_->threads;
}

std::size_t Engine::kv_bytes(RequestId id) const {
  return impl_->find(id).cache.n_blocks() * impl_->pool->shape().page_bytes();
}

std::span<const PromptScore> Engine::prompt_scores(RequestId id) const {
  return impl_->find(id).scores.prompt;
}

std::int64_t Engine::reserved_blocks() const {
  return impl_->reserved_blocks();
}

std::vector<RequestView> Engine::views() const {
  return impl_->views();
}

RequestView Engine::view(RequestId id) const {
  const Request& request = impl_->find(id);
  if (!request.active()) fail(ErrorKind::kRequest, "request {} has ended", id.value);
  return impl_->view(request);
}

Engine::Counts Engine::counts() const {
  return impl_->counts;
}

std::int32_t Engine::prefill_chunk() const {
  return impl_->chunk.tokens();
}

void Engine::check_invariants() const {
  std::vector<CacheSnapshot> caches;
  std::int64_t n_active = 0;
  for (const auto& [id, r] : impl_->requests) {
    caches.push_back(snapshot_of(r->cache));
    n_active += r->active() ? 1 : 0;
    const std::int32_t n_known = r->length() + (r->active() ? size32(r->drafts.untold) : 0);
    MNEME_CHECK(r->cache.length() <= n_known, "request {}: {} of {} tokens", id.value, r->cache.length(), n_known);
    MNEME_CHECK(!r->active() || r->cache.length() < n_known, "request {} has nothing left to compute", id.value);
    MNEME_CHECK(!r->parked || (r->state == Request::State::kWaiting && r->cache.length() < r->parked->length),
                "request {} has {} tokens, and {} of them are elsewhere", id.value, r->cache.length(), r->length());
    MNEME_CHECK(r->state != Request::State::kEnded || r->cache.length() == 0, "ended request {} holds pages", id.value);
  }
  const std::string violation = find_violation(snapshot_of(*impl_->pool), caches);
  MNEME_CHECK(violation.empty(), "{}", violation);
  MNEME_CHECK(n_active == std::ssize(impl_->active), "{} requests are active, {} listed", n_active,
              impl_->active.size());
  MNEME_CHECK(impl_->forecasts() || impl_->reserved_blocks() <= impl_->pool->n_free(),
              "{} blocks are promised, {} free", impl_->reserved_blocks(), impl_->pool->n_free());
}

}  // namespace mneme
