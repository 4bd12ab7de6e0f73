#include "src/server/events/kv_event_publisher.h"

#include <algorithm>
#include <string_view>

#include "src/base/error.h"
#include "src/server/events/kv_event_wire.h"

#ifdef MNEME_HAVE_ZMQ
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/check.h"
#endif

namespace mneme::server {

std::string kv_event_endpoint(const std::string& text, std::string_view option) {
  if (text.starts_with("tcp://") && text.find(':', 6) != std::string::npos) return text;
  const bool digits = !text.empty() && text.size() <= 5 && text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || std::stoi(text) > 65535)
    fail(ErrorKind::kOption, "{}: expected a port, or tcp://HOST:PORT, found \"{}\"", option, text);
  return "tcp://127.0.0.1:" + (std::stoi(text) == 0 ? "*" : text);
}

#ifdef MNEME_HAVE_ZMQ
namespace {

using Bytes = std::vector<std::uint8_t>;

struct ZmqClose {
  void operator()(void* socket) const { zmq_close(socket); }
};
using Socket = std::unique_ptr<void, ZmqClose>;
struct ZmqTerm {
  void operator()(void* context) const { zmq_ctx_term(context); }
};
using Context = std::unique_ptr<void, ZmqTerm>;

Socket bound(void* context, int type, const std::string& endpoint, std::string_view option) {
  Socket socket(zmq_socket(context, type));
  MNEME_CHECK(socket != nullptr, "zmq_socket: {}", zmq_strerror(zmq_errno()));
  // A lost subscriber delays neither the thread nor the end of the process.
  constexpr int kLingerMs = 100;
  zmq_setsockopt(socket.get(), ZMQ_LINGER, &kLingerMs, sizeof kLingerMs);
  if (zmq_bind(socket.get(), endpoint.c_str()) != 0)
    fail(ErrorKind::kOption, "{}: cannot publish at {}: {}", option, endpoint, zmq_strerror(zmq_errno()));
  return socket;
}

std::string endpoint_of(void* socket) {
  std::array<char, 256> text{};
  std::size_t size = text.size();
  zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, text.data(), &size);
  return text.data();
}

// All parts of a message, or as many as the other side's queue takes: what is lost is asked for again by its number.
template <typename... Parts>
void send(void* socket, const Parts&... parts) {
  std::size_t left = sizeof...(parts);
  bool sent = true;
  const auto one = [&](const auto& part) {
    sent = sent && zmq_send(socket, part.data(), part.size(), (--left > 0 ? ZMQ_SNDMORE : 0) | ZMQ_DONTWAIT) >= 0;
  };
  (one(parts), ...);
}

// The parts of the next message; empty: there is none.
std::vector<Bytes> receive(void* socket) {
  std::vector<Bytes> parts;
  for (int more = 1; more != 0;) {
    zmq_msg_t part;
    zmq_msg_init(&part);
    if (zmq_msg_recv(&part, socket, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&part);
      return {};
    }
    const auto* data = static_cast<const std::uint8_t*>(zmq_msg_data(&part));
    parts.emplace_back(data, data + zmq_msg_size(&part));
    more = zmq_msg_more(&part);
    zmq_msg_close(&part);
  }
  return parts;
}

}  // namespace

struct KvEventPublisher::Impl {
  explicit Impl(const KvEventOptions& o)
      : options(o),
        context(zmq_ctx_new()),
        publish(bound(context.get(), ZMQ_PUB, o.publish, "--kv-events")),
        replay(o.replay.empty() ? Socket() : bound(context.get(), ZMQ_ROUTER, o.replay, "--kv-events-replay")),
        endpoint(endpoint_of(publish.get())),
        replay_endpoint(replay ? endpoint_of(replay.get()) : ""),
        wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        pending{KvEvent{}},
        thread([this] { run(); }) {}
  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      ends = true;
    }
    signal();
    thread.join();
    close(wake);
  }

  void signal() const {
    const std::uint64_t one = 1;
    // It fails only where the counter is at its end, and then the thread is awake.
    [[maybe_unused]] const auto written = write(wake, &one, sizeof one);
  }

  void run() {
    for (;;) {
      std::vector<KvEvent> events;
      bool last = false;
      {
        const std::lock_guard lock(mutex);
        events.swap(pending);
        last = ends;
      }
      if (!events.empty()) publish_batch(events);
      if (last) return;
      std::array<zmq_pollitem_t, 2> items{};
      items[0] = {.socket = nullptr, .fd = wake, .events = ZMQ_POLLIN, .revents = 0};
      items[1] = {.socket = replay.get(), .fd = -1, .events = ZMQ_POLLIN, .revents = 0};
      if (zmq_poll(items.data(), replay ? 2 : 1, -1) < 0 && zmq_errno() != EINTR) return;
      std::uint64_t count = 0;
      [[maybe_unused]] const auto was = read(wake, &count, sizeof count);
      while (replay && answer_replay()) {
      }
    }
  }

  void publish_batch(std::span<const KvEvent> events) {
    const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    Bytes batch = encode_batch(now, events);
    send(publish.get(), options.topic, encode_sequence(next), batch);
    if (replay) kept.emplace_back(next, std::move(batch));
    if (kept.size() > options.kept) kept.pop_front();
    ++next;
  }

  // False: no replay is requested.
  bool answer_replay() {
    const std::vector<Bytes> parts = receive(replay.get());
    if (parts.empty()) return false;
    const auto first = decode_sequence(parts.back());
    if (parts.size() != 3 || !first) return true;
    const Bytes &who = parts[0], nothing;
    for (const auto& [number, batch] : kept)
      if (number >= *first) send(replay.get(), who, nothing, options.topic, encode_sequence(number), batch);
    send(replay.get(), who, nothing, options.topic, encode_sequence(-1), nothing);
    return true;
  }

  KvEventOptions options;
  Context context;
  Socket publish, replay;
  std::string endpoint, replay_endpoint;
  int wake;
  std::int64_t next = 0;
  std::deque<std::pair<std::int64_t, Bytes>> kept;  // by number
  std::mutex mutex;
  std::vector<KvEvent> pending;
  bool ends = false;
  std::thread thread;
};

KvEventPublisher::KvEventPublisher(const KvEventOptions& options) : impl_(std::make_unique<Impl>(options)) {}

void KvEventPublisher::push(const PageEvent& page) {
  {
    const std::lock_guard lock(impl_->mutex);
    append_event(impl_->pending, page);
  }
  impl_->signal();
}

const std::string& KvEventPublisher::endpoint() const {
  return impl_->endpoint;
}
const std::string& KvEventPublisher::replay_endpoint() const {
  return impl_->replay_endpoint;
}

#else

struct KvEventPublisher::Impl {
  std::string endpoint;
};

KvEventPublisher::KvEventPublisher(const KvEventOptions&) {
  fail(ErrorKind::kOption, "--kv-events: this build has no libzmq (libzmq3-dev)");
}
void KvEventPublisher::push(const PageEvent&) {}
const std::string& KvEventPublisher::endpoint() const {
  return impl_->endpoint;
}
const std::string& KvEventPublisher::replay_endpoint() const {
  return impl_->endpoint;
}

#endif

KvEventPublisher::~KvEventPublisher() = default;

}  // namespace mneme::server
