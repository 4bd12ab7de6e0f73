#include "src/engine/engine.h"

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
      ranks(forward == nullptr ? nullptr : forward->ranks()),
      chunk(std::max(o.inter_token_ms, 0.0) / 1000, std::max(o.max_batched_tokens, 1)) {
  MNEME_CHECK(forward != nullptr && threads != nullptr, "an engine needs a model and threads");
  const KvShape shape = forward->kv_shape(kv_dtype_of(options));
  KvWindows windows = ranks == nullptr && options.kv_spill.bytes == 0 ? forward->kv_windows() : KvWindows{};
  windows.step_tokens = std::max(options.max_batched_tokens, 1);
  KvPlan kv = plan_kv(shape, options, forward->max_context(), forward->kv_room_bytes(memory_limit_bytes()), windows);
  if (ranks != nullptr) kv.n_blocks = ranks->least(kv.n_blocks / shape.blocks_per_page()) * shape.blocks_per_page();
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

void Engine::Impl::check_input(const RequestInput& input, std::span<const std::int32_t> before) const {
  if (input.method != nullptr) forward->expect_method(*input.method);
  const auto vocab = forward->vocab();
  for (std::size_t i = 0; i < input.prompt.size(); ++i) {
    if (input.prompt[i] < 0 || input.prompt[i] >= vocab) {
      fail(ErrorKind::kRequest, "prompt: token {} at {} is not in the vocabulary, which has {}", input.prompt[i], i,
           vocab);
    }
  }
  for (const TokenBias& b : input.sampling.logit_bias) {
    if (b.token >= vocab) {
      fail(ErrorKind::kOption, "logit_bias: token {} is not in the vocabulary, which has {}", b.token, vocab);
    }
    const Model* const model = forward->model();
    if (model != nullptr && std::ranges::binary_search(model->absent_tokens(), b.token))
      fail(ErrorKind::kOption, "logit_bias: the id {} has no token and is never sampled; leave it out", b.token);
  }
  if (input.max_tokens < 0) fail(ErrorKind::kRequest, "max_tokens: expected 0 or more, found {}", input.max_tokens);
  if (input.decode_prompt_tail < 0) {
    fail(ErrorKind::kRequest, "decode_prompt_tail: expected 0 or more, found {}", input.decode_prompt_tail);
  }
  const auto [question_begin, question_end] = input.question_span;
  if (question_begin < 0 || question_begin > question_end || question_end > std::ssize(input.prompt)) {
    fail(ErrorKind::kRequest, "question_span: expected tokens of the prompt, which has {}, found {} to {}",
         input.prompt.size(), question_begin, question_end);
  }
  const std::int64_t n_prompt = before.size() + input.prompt.size();
  if (n_prompt == 0) fail(ErrorKind::kRequest, "the prompt is empty: expected at least one token");
  const std::int64_t n_all = n_prompt + input.max_tokens;
  if (n_all > options.context) {
    fail(ErrorKind::kRequest, "{} tokens of prompt and up to {} of answer are {}; the context has {}", n_prompt,
         input.max_tokens, n_all, options.context);
  }
  const std::int64_t blocks = blocks_of(pool->shape(), pool->windows(), n_all);
  if (blocks > pool->n_blocks()) {
    const std::int64_t bytes = pool->shape().page_bytes();
    fail(ErrorKind::kRequest, "{} tokens take {} bytes of keys and values; there are {} in all", n_all, blocks * bytes,
         pool->n_blocks() * bytes);
  }
}

void Engine::Impl::check_method(const Request& sequence, const std::shared_ptr<const Plan>& plan) {
  const std::shared_ptr<const Plan> before = sequence.method ? sequence.method->shared_plan() : nullptr;
  if (sequence.cache.length() == 0 || plan == before) return;
  for (const auto& p : {before, plan}) {
    if (p == nullptr || !p->binds_sequence()) continue;
    fail(ErrorKind::kRequest,
         "request {} was computed under {}; '{}' decides how a prompt is read, so a sequence has it from its first "
         "token "
         "on, or not at all",
         sequence.id.value, before == nullptr ? "full attention" : "'" + before->recipe.name + "'", p->recipe.name);
  }
}

void Engine::Impl::start(Request& request, RequestInput input, Sampler sampler) {
  const std::uint64_t draws_before = input.draws_before;
  sampler.constrain(input.constraint);
  request.begin_turn(std::move(input));
  request.sampler = std::move(sampler);
  if (draws_before > 0) request.sampler.restore(request.sampler.seed(), draws_before);
  request.sampler.see_prompt(request.tokens);
  request.last_used = ++use_clock;
  active.push_back(&request);
}

// Returns its last event, not told yet.
RequestEvent Engine::Impl::end(Request& request, FinishReason reason) {
  std::erase(active, &request);
  unpark(request);
  request.last_used = ++use_clock;
  const bool kept = request.keep && reason != FinishReason::kCancelled;
  request.state = kept ? Request::State::kKept : Request::State::kEnded;
  if (reason != FinishReason::kCancelled) {
    request.settle();  // for its statistics too
    if (request.max_tokens > 0) forecast.add(request.stats.answer_tokens);
  }
  if (!kept) request.cache.clear();
  return {.id = request.id,
          .token = {},
          .top = {},
          .prompt_done = request.stats.prompt_tokens,
          .prompt_total = request.prompt_end - request.stats.shared_tokens,
          .finished = reason};
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

Engine::Engine(std::unique_ptr<ForwardPass> forward, const EngineOptions& options, std::unique_ptr<ThreadPool> pool)
    : impl_(std::make_unique<Impl>(std::move(forward), options, std::move(pool))) {}

Engine::~Engine() {
  if (impl_ == nullptr || impl_->ranks == nullptr || impl_->follows()) return;
  try {
    impl_->tell(RankCall::kEnd, [](ByteWriter&) {});
  } catch (const Error&) {  // the ranks stopped before
  }
}

RequestId Engine::submit(RequestInput input) {
  impl_->check_input(input, {});
  Sampler sampler(input.sampling);
  impl_->tell_input(RankCall::kSubmit, {}, 0, input);
  Request& request = impl_->add(RequestId(impl_->next_id++));
  impl_->start(request, std::move(input), std::move(sampler));
  return request.id;
}

RequestId Engine::fork(RequestId from, RequestInput input) {
  Request& parent = impl_->find_sequence(from);
  parent.settle();
  impl_->check_input(input, parent.tokens);
  Impl::check_method(parent, input.method);
  check_dropped(parent.cache, input.method.get());
  Sampler sampler(input.sampling);
  impl_->tell_input(RankCall::kFork, from, 0, input);
  Request& request = impl_->add(RequestId(impl_->next_id++));
  request.tokens = parent.tokens;
  request.cache = parent.cache.fork();
  if (parent.method) request.method = std::make_unique<MethodState>(*parent.method);
  // A running parent must now copy the page that it writes into, which admission did not count.
  impl_->close_pages_without_room(request);
  impl_->start(request, std::move(input), std::move(sampler));
  return request.id;
}

namespace {

// Of the parent's first n_shared tokens those that a request under `plan`, whose prefill ends at n_prefill, need not
// compute itself.
std::int32_t usable_prefix(const Request& parent, std::int32_t n_shared, const std::shared_ptr<const Plan>& plan,
                           std::int32_t n_prefill) {
  if (parent.cache.dropped()) return 0;
  const std::int32_t n_rows = std::min(n_prefill, plan != nullptr ? plan->observed_rows : 0);
  const std::int32_t n = std::max(0, std::min({n_shared, parent.cache.length(), n_prefill - n_rows}));
  const bool same_method = parent.method && parent.method->shared_plan() == plan;
  if (same_method && n < parent.cache.length() && !parent.method->can_truncate(n)) return 0;
  return parent.cache.can_truncate(n) ? n : 0;
}

// The pages of these tokens, and the parent's index where the plan is the same.
void share_prefix(const Request& parent, std::int32_t n_shared, const std::shared_ptr<const Plan>& plan,
                  std::int32_t n_prefill, Request& request) {
  const std::int32_t shared = usable_prefix(parent, n_shared, plan, n_prefill);
  request.cache = parent.cache.fork();
  request.cache.truncate(shared);
  if (parent.method && parent.method->shared_plan() == plan)
    request.method = std::make_unique<MethodState>(parent.method->index_of_prefix(shared));
}

}  // namespace

RequestId Engine::fork_prefix(RequestId from, std::int32_t n_shared, RequestInput input) {
  Request& parent = impl_->find_sequence(from);
  parent.settle();
  MNEME_CHECK(n_shared >= 0 && n_shared <= parent.length(), "{} of {} tokens", n_shared, parent.length());
  const auto before = std::span(parent.tokens).first(n_shared);
  impl_->check_input(input, before);
  Impl::check_method(parent, input.method);
  Sampler sampler(input.sampling);
  impl_->tell_input(RankCall::kForkPrefix, from, n_shared, input);
  Request& request = impl_->add(RequestId(impl_->next_id++));
  request.tokens.assign(before.begin(), before.end());
  const auto n_prompt = size32(input.prompt);
  share_prefix(parent, n_shared, input.method, n_shared + n_prompt - std::min(n_prompt, input.decode_prompt_tail),
               request);
  impl_->close_pages_without_room(request);
  impl_->start(request, std::move(input), std::move(sampler));
  return request.id;
}

void Engine::hold(RequestId id) {
  Request& request = impl_->find_sequence(id);
  MNEME_CHECK(request.active() && request.cache.length() < request.decode_from(),
              "request {} has computed its prompt: it cannot be held", id.value);
  if (!request.held) impl_->tell(RankCall::kHold, id);
  request.held = true;
}

void Engine::unhold(RequestId id) {
  const auto it = impl_->requests.find(id);
  if (it == impl_->requests.end()) return;
  if (it->second->held) impl_->tell(RankCall::kUnhold, id);
  it->second->held = false;
}

std::int32_t Engine::take_prefix(RequestId id, RequestId from, std::int32_t n_shared) {
  Request& request = impl_->find_sequence(id);
  Request& parent = impl_->find_sequence(from);
  const std::int32_t before = request.cache.length();
  MNEME_CHECK(request.active() && before < request.decode_from() && n_shared < request.length(),
              "request {} has computed {} of {} tokens: it can take over no {}", id.value, before, request.length(),
              n_shared);
  const std::shared_ptr<const Plan> plan = request.method ? request.method->shared_plan() : nullptr;
  const bool runs = request.state == Request::State::kRunning;
  if (runs && (request.wants_prompt_scores() || (plan != nullptr && impl_->pool->on_device()))) return before;
  // What it was promised counts on the pages of a window that it owns.
  if (runs && impl_->pool->windows().n_layers() > 0) return before;
  if (request.parked && request.parked->length >= n_shared) return before;
  parent.settle();
  MNEME_CHECK(n_shared <= parent.cache.length() &&
                  std::equal(parent.tokens.begin(), parent.tokens.begin() + n_shared, request.tokens.begin()),
              "request {} does not begin with {} tokens of request {}", id.value, n_shared, from.value);
  Impl::check_method(parent, plan);
  if (usable_prefix(parent, n_shared, plan, request.decode_from()) <= before) return before;
  impl_->tell(RankCall::kTakePrefix, [&](ByteWriter& out) {
    out.put(id.value);
    out.put(from.value);
    out.put(n_shared);
  });
  const auto question = request.method ? request.method->question_span() : std::pair(0, 0);
  impl_->unpark(request);
  request.method.reset();
  share_prefix(parent, n_shared, plan, request.decode_from(), request);
  impl_->close_pages_without_room(request);
  request.set_method(plan);
  if (question.first < question.second) request.method->set_question_span(question.first, question.second);
  if (runs) request.stats.shared_tokens += request.cache.length() - before;
  return request.cache.length();
}

void Engine::keep_going(RequestId id, RequestInput input) {
  Request& request = impl_->find_sequence(id);
  if (request.active()) fail(ErrorKind::kRequest, "request {} has not ended yet: it cannot go on", id.value);
  impl_->check_input(input, request.tokens);
  Impl::check_method(request, input.method);
  check_dropped(request.cache, input.method.get());
  Sampler sampler(input.sampling);
  impl_->tell_input(RankCall::kKeepGoing, id, 0, input);
  std::erase_if(impl_->events, [&](const RequestEvent& e) { return e.id == id; });
  impl_->start(request, std::move(input), std::move(sampler));
}

void Engine::cancel(RequestId id) {
  const auto it = impl_->requests.find(id);
  if (it == impl_->requests.end()) return;
  Request& request = *it->second;
  if (request.holds_sequence()) impl_->tell(RankCall::kCancel, id);
  if (request.active()) {
    impl_->events.push_back(impl_->end(request, FinishReason::kCancelled));
  } else if (request.state == Request::State::kKept) {
    impl_->forget(id);
  }
}

void Engine::stop(RequestId id) {
  const auto it = impl_->requests.find(id);
  if (it == impl_->requests.end() || !it->second->active()) return;
  impl_->tell(RankCall::kStop, id);
  impl_->events.push_back(impl_->end(*it->second, FinishReason::kStop));
}

std::vector<RequestEvent> Engine::step() {
  for (RequestId id : std::exchange(impl_->reported, {})) impl_->forget(id);
  const auto held = [](const Request* r) { return r->held; };
  if (std::all_of(impl_->active.begin(), impl_->active.end(), held)) return impl_->take_events();
  const std::int32_t prompt_limit = impl_->chunk.tokens();
  impl_->tell(RankCall::kStep, [&](ByteWriter& out) { out.put(prompt_limit); });
  const std::vector<ScheduledRows> plan = impl_->plan_with_room();
  MNEME_CHECK(!plan.empty(), "{} requests, and none can run", impl_->active.size());

  const auto start = std::chrono::steady_clock::now();
  const Impl::Batch batch = impl_->gather(plan);
  std::vector<Impl::Sample> samples;
  try {
    samples = impl_->compute(batch);
  } catch (const std::exception& e) {
    // The others' step may have succeeded: ranks are not the same any more.
    if (impl_->ranks != nullptr) impl_->ranks->ranks().abort(e.what());
    impl_->undo(batch);
    throw;
  }
  impl_->commit(batch);
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
  Impl::check_method(request, plan);
  impl_->tell(RankCall::kAttach, [&](ByteWriter& out) {
    out.put(id.value);
    impl_->rank_requests.write_plan(plan, out);
  });
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

MethodMemory Engine::method_memory() const {
  return impl_->forward->method_memory();
}

void Engine::set_lower_tier(LowerTier* lower) {
  MNEME_CHECK(lower == nullptr || impl_->ranks == nullptr, "a lower tier under a part of a model");
  for (Request* r : impl_->active) impl_->unpark(*r);
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
    MNEME_CHECK(r->cache.length() <= r->length(), "request {}: {} of {} tokens", id.value, r->cache.length(),
                r->length());
    MNEME_CHECK(!r->active() || r->cache.length() < r->length(), "request {} has nothing left to compute", id.value);
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
