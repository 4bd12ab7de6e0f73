#include "src/server/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "src/base/error.h"
#include "src/base/seconds.h"
#include "src/engine/loop/kv_room.h"
#include "src/formats/model_name.h"
#include "src/server/api/api.h"
#include "src/server/http_server.h"
#include "src/server/metrics.h"

namespace mneme::server {
namespace {

std::string served_name_of(const ServerOptions& o) {
  if (!o.served_name.empty()) return o.served_name;
  return model_name(o.model);
}

RunningModel start(const ServerOptions& o, const ProgressFn& progress) {
  auto checkpoint = Checkpoint::open(o.model);
  EngineOptions engine = o.engine;
  if (engine.kv_memory_bytes == 0) engine.kv_memory_bytes = default_kv_bytes(*checkpoint, engine);
  auto text = std::make_unique<TextSide>(*checkpoint);
  if (!o.chat_template.empty()) text->set_chat_template(o.chat_template);
  return start_model(std::move(checkpoint), std::move(text), engine, progress);
}

}  // namespace

struct Server::Impl {
  Impl(ServerOptions o, std::function<RunningModel()> start)
      : options(std::move(o)),
        name(served_name_of(options)),
        metrics(name, options.metrics_prefix),
        http(options, metrics),
        events(options.kv_events ? std::make_unique<KvEventPublisher>(*options.kv_events) : nullptr),
        loop(std::move(start),
             {.max_in_flight = options.engine.max_sequences + options.limits.max_queue,
              .stream_seconds = options.stream_seconds,
              .keeper = keeper_options(options, events.get()),
              .on_broken =
                  [this](const Failure& why) { http.executors().io([this, why] { stop_for_error(why.message); }); }},
             metrics, deliver_to(http.executors())),
        api(options, name, loop, metrics, http.executors(), events.get()) {}
  // A file that is being written takes its content from the engine.
  ~Impl() { http.end_work(); }

  static EngineLoop::Deliver deliver_to(Executors executors) {
    return [io = std::move(executors.io)](std::vector<Delivery> news) {
      auto shared = std::make_shared<std::vector<Delivery>>(std::move(news));
      io([shared] {
        for (Delivery& d : *shared) d.sink->on_event(std::move(d.event));
      });
    };
  }

  static KeeperOptions keeper_options(const ServerOptions& o, KvEventPublisher* events) {
    KeeperOptions keeper{.prefix_cache = o.prefix_cache,
                         .n_slots = o.n_slots,
                         .host_bytes = o.host_bytes,
                         .disk = o.disk,
                         .on_page = {}};
    if (events != nullptr) keeper.on_page = [events](const PageEvent& page) { events->push(page); };
    return keeper;
  }

  void begin_stop();
  void refuse_requests(double seconds_to_end);
  void stop_for_error(const std::string& why);
  void wait_for_answers();

  ServerOptions options;
  std::string name;
  Metrics metrics;
  HttpServer http;
  std::unique_ptr<KvEventPublisher> events;  // null: no --kv-events
  EngineLoop loop;
  Api api;
  std::string failure;
  int stops = 0;
  bool refuses = false;
  std::chrono::steady_clock::time_point stop_at;
};

void Server::Impl::begin_stop() {
  if (++stops > 1) return refuse_requests(0);
  api.drain();
  const double drain = failure.empty() ? options.timeouts.drain_seconds : 0;
  if (drain == 0) return refuse_requests(options.timeouts.shutdown_seconds);
  options.log(fmt::format("draining: /health is 503, requests are taken for {} s more", drain));
  http.after(drain, [this] { refuse_requests(options.timeouts.shutdown_seconds); });
}

// Ends when all answers have, or after so many seconds. A second call can only shorten that.
void Server::Impl::refuse_requests(double seconds_to_end) {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(seconds_to_end));
  if (std::exchange(refuses, true)) {
    stop_at = std::min(stop_at, end);
    return;
  }
  stop_at = end;
  options.log(fmt::format("stopping: {} requests are being answered", http.exchanges()));
  api.refuse();
  http.drain();
  wait_for_answers();
}

void Server::Impl::stop_for_error(const std::string& why) {
  options.log(fmt::format("the device failed: {}", why));
  failure = why;
  if (stops == 0) return begin_stop();
  refuse_requests(options.timeouts.shutdown_seconds);
}

void Server::Impl::wait_for_answers() {
  constexpr double kLook = 0.01, kLastWords = 2, kSending = 4;
  constexpr const char* kStopped = "the server stopped before the answer was complete";
  if (http.exchanges() == 0 && loop.in_flight() == 0) return http.stop();
  const double late = seconds_since(stop_at);
  if (late > kSending) return http.stop();
  // The engine is within a step that takes longer.
  if (late > kLastWords) http.abandon_exchanges(kStopped);
  if (late > kLastWords && http.exchanges() == 0) return http.stop();
  if (late >= 0) loop.fail_all({.kind = FailureKind::kShutdown, .message = kStopped});
  http.after(kLook, [this] { wait_for_answers(); });
}

Server::Server(ServerOptions options, const ProgressFn& progress)
    : impl_(std::make_unique<Impl>(options, [&] { return start(options, progress); })) {}
Server::Server(ServerOptions options, std::function<RunningModel()> start)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(start))) {}
Server::~Server() = default;

const std::string& Server::failure() const {
  return impl_->failure;
}
void Server::fail(std::string why) {
  impl_->http.executors().io([this, why = std::move(why)] { impl_->stop_for_error(why); });
}
std::uint16_t Server::port() const {
  return impl_->http.port();
}
const KvEventPublisher* Server::kv_events() const {
  return impl_->events.get();
}
const std::string& Server::served_name() const {
  return impl_->name;
}
EngineOptions Server::engine_options() const {
  return impl_->loop.model().engine->options();
}
std::int64_t Server::kv_bytes() const {
  const PagePool& pool = impl_->loop.model().engine->pool();
  return pool.n_blocks() * pool.shape().page_bytes();
}

void Server::stop_on_signals() {
  impl_->http.on_signal([this](int) { impl_->begin_stop(); });
}

void Server::run() {
  impl_->http.run([this](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    impl_->api.handle(std::move(request), std::move(writer));
  });
}

void Server::stop() {
  impl_->http.executors().io([this] { impl_->begin_stop(); });
}

}  // namespace mneme::server
