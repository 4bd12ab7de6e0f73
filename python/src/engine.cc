#include "python/src/engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "src/engine/kv_method.h"
#include "src/engine/loop/kv_room.h"
#include "src/engine/session/side_request.h"
#include "src/sampler/sampler.h"

namespace mneme::python {
namespace {

constexpr std::int64_t kMaxInFlight = std::int64_t{1} << 40;  // callers wait in their own process

RunningModel start(const PyEngine::Start& s) {
  auto checkpoint = Checkpoint::open(s.model);
  EngineOptions engine = s.engine;
  if (engine.kv_memory_bytes == 0) engine.kv_memory_bytes = default_kv_bytes(*checkpoint, engine);
  auto text = std::make_unique<TextSide>(*checkpoint);
  if (!s.chat_template.empty()) text->set_chat_template(s.chat_template);
  return start_model(std::move(checkpoint), std::move(text), engine, {});
}

}  // namespace

PyEngine::PyEngine(Start settings) : kv_(settings.engine.kv) {
  const Released released;
  KeeperOptions keeper{.prefix_cache = settings.prefix_cache, .host_bytes = settings.host_bytes, .disk = settings.disk};
  if (settings.kv_events)
    keeper.on_page = [this](const PageEvent& e) {
      // Routers read hashes as signed numbers.
      const auto id = [](std::uint64_t hash) { return static_cast<std::int64_t>(hash >> 1); };
      const std::lock_guard lock(news_mutex_);
      page_news_.push_back({.stored = e.stored,
                            .hash = id(e.hash),
                            .parent = e.parent ? std::optional(id(*e.parent)) : std::nullopt,
                            .tokens = {e.tokens.begin(), e.tokens.end()}});
    };
  const auto deliver = [](std::vector<Delivery> news) {
    for (Delivery& d : news) d.sink->on_event(std::move(d.event));
  };
  EngineLoop::Options options{
      .max_in_flight = kMaxInFlight, .stream_seconds = settings.stream_seconds, .keeper = std::move(keeper)};
  loop_ = std::make_shared<EngineLoop>([&] { return start(settings); }, std::move(options), metrics_, deliver);
  kv_blocks_ = loop_->model().engine->pool().n_blocks();
}

PyEngine::~PyEngine() {
  close();
}

void PyEngine::close() {
  if (process_.is_child()) {
    // Its threads are the parent's: there is nothing to join, and its locks may be held.
    static_cast<void>(new std::shared_ptr<EngineLoop>(std::move(loop_)));
    return;
  }
  const Released released;
  std::shared_ptr<EngineLoop> ending;
  std::vector<std::weak_ptr<Request>> requests;
  {
    const std::lock_guard lock(mutex_);
    ending = std::move(loop_);
    requests = std::exchange(requests_, {});
  }
  ending.reset();
  for (const std::weak_ptr<Request>& weak : requests)
    if (const std::shared_ptr<Request> request = weak.lock())
      request->fail({.kind = FailureKind::kShutdown,
                     .error = ErrorKind::kRequest,
                     .message = "the model was closed before the answer was complete"});
}

std::vector<PyEngine::PageNews> PyEngine::take_kv_events() {
  const std::lock_guard lock(news_mutex_);
  return std::exchange(page_news_, {});
}

bool PyEngine::closed() {
  const std::lock_guard lock(mutex_);
  return loop_ == nullptr;
}

std::shared_ptr<EngineLoop> PyEngine::loop() {
  process_.expect_same();
  const std::lock_guard lock(mutex_);
  if (!loop_) fail(ErrorKind::kRequest, "this model was closed");
  return loop_;
}

const RunningModel& PyEngine::model() {
  return loop()->model();
}

std::shared_ptr<const Plan> PyEngine::plan_for(const std::optional<std::string>& kv, KvMethodOptions& options) {
  const std::shared_ptr<EngineLoop> running = loop();
  options = kv_;
  if (!kv) return running->model().method;
  options.recipe = parse_recipe(*kv);
  options.method = options.recipe->name;
  return running->model().plans->plan_for(*options.recipe);
}

std::shared_ptr<Request> PyEngine::submit(Order order) {
  const std::shared_ptr<EngineLoop> running = loop();
  static_cast<void>(Sampler(order.input.sampling));  // says what is out of range
  auto request = std::make_shared<Request>(order.input.n, std::move(order.mailbox), next_++);
  request->loop = running;
  request->id = running->submit(std::move(order.input), request);
  const std::lock_guard lock(mutex_);
  std::erase_if(requests_, [](const std::weak_ptr<Request>& r) { return r.expired(); });
  requests_.push_back(request);
  return request;
}

std::vector<float> PyEngine::logits(std::vector<std::int32_t> prompt, std::int32_t begin, std::int32_t end) {
  const std::shared_ptr<EngineLoop> running = loop();
  SignalCheck signals;
  std::vector<float> rows;
  {
    const Released released;
    SharedModel& shared = LanguageModelAccess::shared(running->language_model());
    const auto vocabulary = static_cast<std::size_t>(shared.text->info.vocabulary);
    rows.resize(static_cast<std::size_t>(end - begin) * vocabulary);
    RequestInput input;
    input.prompt = std::move(prompt);
    input.max_tokens = 1;
    input.score_prompt = 0;
    if (shared.method && shared.method->binds_sequence()) input.method = shared.method;
    input.on_logits = [&](std::int32_t position, std::span<const float> row) {
      const std::int32_t after = position - 1;  // the token that the row follows
      if (after < begin || after >= end) return;
      std::ranges::copy(row, &rows[static_cast<std::size_t>(after - begin) * vocabulary]);
    };
    SideRequest request(*shared.loop);
    shared.loop->exclusive([&](Engine& engine) { request.begin(engine, {}, std::move(input)); });
    if (!request.run([&] { return signals.pending(); })) rows.clear();
  }
  signals.rethrow();
  return rows;
}

}  // namespace mneme::python
