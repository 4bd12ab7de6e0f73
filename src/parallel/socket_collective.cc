#include "src/parallel/socket_collective.h"

#include "src/base/error.h"

#ifdef MNEME_HAVE_ZMQ
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "src/base/check.h"
#endif

namespace mneme {

#ifdef MNEME_HAVE_ZMQ
namespace {

constexpr std::uint32_t kWireMagic = 0x6d6e6d02;
constexpr double kStartSeconds = 600;  // until all ranks are there
constexpr int kHeartbeatMs = 2000, kHeartbeatLostMs = 10000;

enum class Kind : std::uint32_t { kHello = 1, kReduce, kGather, kBroadcast, kBarrier, kAbort, kBye };

struct Header {
  std::uint32_t magic = kWireMagic;
  Kind kind = Kind::kBarrier;
  std::uint32_t rank = 0, size = 0;
  std::uint64_t bytes = 0;  // of the call: the same on all ranks
};

struct Message {
  Header header;
  std::vector<std::byte> payload;
};

struct Close {
  void operator()(void* socket) const { zmq_close(socket); }
};
using Socket = std::unique_ptr<void, Close>;
struct Term {
  void operator()(void* context) const { zmq_ctx_term(context); }
};

struct HostPort {
  std::string host, port;
};

HostPort split(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  const std::string port = colon == address.npos ? "" : address.substr(colon + 1);
  const bool number = !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == port.npos;
  if (!number || colon == 0 || std::stoi(port) < 1 || std::stoi(port) > 65535)
    fail(ErrorKind::kOption, "--dist-init-addr: expected HOST:PORT, found \"{}\"", address);
  return {.host = address.substr(0, colon), .port = port};
}

// ZeroMQ binds to addresses, not to names.
std::string numeric(const HostPort& at) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::array<char, NI_MAXHOST> text{};
  if (getaddrinfo(at.host.c_str(), nullptr, &hints, &found) != 0 || found == nullptr ||
      getnameinfo(found->ai_addr, found->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    fail(ErrorKind::kOption, "--dist-init-addr: there is no host \"{}\"", at.host);
  freeaddrinfo(found);
  return text.data();
}

class SocketCollective final : public Collective {
 public:
  SocketCollective(const std::string& address, int rank, int size, double seconds);
  ~SocketCollective() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce(std::span<float> values) override;
  void all_gather(std::span<const std::byte> part, std::span<std::byte> out) override;
  using Collective::barrier;
  using Collective::broadcast;
  void broadcast(std::span<std::byte> bytes, int root, Patience patience) override;
  void barrier(Patience patience) override { exchange(Kind::kBarrier, 0, {}, {}, patience); }
  void abort(std::string_view why) noexcept override;
  std::string failure() override;

 private:
  using Combine = std::function<std::vector<std::byte>(std::vector<Message>&)>;  // rank 0's: all parts to one answer
  std::vector<std::byte> exchange(Kind kind, std::size_t bytes, std::span<const std::byte> mine, const Combine& combine,
                                  Patience patience);
  Message take(int from, double seconds);
  void send(int to, Kind kind, std::size_t bytes, std::span<const std::byte> payload);
  void pump();
  void see_disconnections();
  void note_failure(std::string why);
  [[noreturn]] void fail_now();

  int rank_, size_;
  double seconds_;
  std::string address_;
  std::unique_ptr<void, Term> context_;
  std::mutex mutex_;  // of all below: abort() and failure() come from other threads
  Socket socket_, monitor_;
  std::vector<std::deque<Message>> arrived_;  // by rank
  int n_gone_ = 0;
  std::string why_;
};

SocketCollective::SocketCollective(const std::string& address, int rank, int size, double seconds)
    : rank_(rank), size_(size), seconds_(seconds), address_(address), context_(zmq_ctx_new()), arrived_(size) {
  const HostPort at = split(address);
  socket_.reset(zmq_socket(context_.get(), rank == 0 ? ZMQ_ROUTER : ZMQ_DEALER));
  MNEME_CHECK(socket_ != nullptr, "zmq_socket: {}", zmq_strerror(zmq_errno()));
  const auto set = [this](int option, int value) { zmq_setsockopt(socket_.get(), option, &value, sizeof value); };
  set(ZMQ_LINGER, 500);
  set(ZMQ_SNDHWM, 0);
  set(ZMQ_RCVHWM, 0);
  set(ZMQ_HEARTBEAT_IVL, kHeartbeatMs);
  set(ZMQ_HEARTBEAT_TIMEOUT, kHeartbeatLostMs);
  if (rank == 0) set(ZMQ_ROUTER_MANDATORY, 1);
  const std::string watch = fmt::format("inproc://ranks-{}", static_cast<const void*>(this));
  zmq_socket_monitor(socket_.get(), watch.c_str(), ZMQ_EVENT_DISCONNECTED);
  monitor_.reset(zmq_socket(context_.get(), ZMQ_PAIR));
  zmq_connect(monitor_.get(), watch.c_str());
  if (rank == 0) {
    const std::string endpoint = fmt::format("tcp://{}:{}", numeric(at), at.port);
    if (zmq_bind(socket_.get(), endpoint.c_str()) != 0)
      fail(ErrorKind::kOption, "--dist-init-addr: cannot listen at {}: {}", address, zmq_strerror(zmq_errno()));
    for (int r = 1; r < size; ++r) take(r, kStartSeconds);
    for (int r = 1; r < size; ++r) send(r, Kind::kHello, 0, {});
    return;
  }
  const std::string name = std::to_string(rank);
  zmq_setsockopt(socket_.get(), ZMQ_ROUTING_ID, name.data(), name.size());
  const std::string endpoint = fmt::format("tcp://{}:{}", at.host, at.port);
  if (zmq_connect(socket_.get(), endpoint.c_str()) != 0)
    fail(ErrorKind::kOption, "--dist-init-addr: cannot connect to {}: {}", address, zmq_strerror(zmq_errno()));
  send(0, Kind::kHello, 0, {});
  take(0, kStartSeconds);
}

SocketCollective::~SocketCollective() {
  const std::lock_guard lock(mutex_);
  for (int r = 0; r < size_; ++r)
    if (r != rank_ && (rank_ == 0 || r == 0)) send(r, Kind::kBye, 0, {});
  zmq_socket_monitor(socket_.get(), nullptr, 0);
}

// Requires  the mutex, once the object is made. A rank that ended is detected by the one that waits for it.
void SocketCollective::send(int to, Kind kind, std::size_t bytes, std::span<const std::byte> payload) {
  const Header header{.kind = kind,
                      .rank = static_cast<std::uint32_t>(rank_),
                      .size = static_cast<std::uint32_t>(size_),
                      .bytes = bytes};
  const std::string name = std::to_string(to);
  if (rank_ == 0 && zmq_send(socket_.get(), name.data(), name.size(), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) return;
  zmq_send(socket_.get(), &header, sizeof header, ZMQ_SNDMORE | ZMQ_DONTWAIT);
  zmq_send(socket_.get(), payload.data(), payload.size(), ZMQ_DONTWAIT);
}

void SocketCollective::note_failure(std::string why) {
  if (!why_.empty()) return;
  why_ = std::move(why);
  for (int r = 1; rank_ == 0 && r < size_; ++r) send(r, Kind::kAbort, 0, std::as_bytes(std::span(why_)));
  if (rank_ != 0) send(0, Kind::kAbort, 0, std::as_bytes(std::span(why_)));
}

// Takes what has arrived. Whatever is no message of a rank is ignored: anybody may connect.
void SocketCollective::pump() {
  while (true) {
    std::vector<std::vector<std::byte>> parts;
    int more = 1;
    while (more != 0) {
      zmq_msg_t part;
      zmq_msg_init(&part);
      if (zmq_msg_recv(&part, socket_.get(), ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&part);
        return see_disconnections();
      }
      const auto* data = static_cast<const std::byte*>(zmq_msg_data(&part));
      parts.emplace_back(data, data + zmq_msg_size(&part));
      more = zmq_msg_more(&part);
      zmq_msg_close(&part);
    }
    const std::size_t head = rank_ == 0 ? 1 : 0;
    Message m;
    if (parts.size() != head + 2 || parts[head].size() != sizeof m.header) continue;
    std::memcpy(&m.header, parts[head].data(), sizeof m.header);
    m.payload = std::move(parts[head + 1]);
    const bool has_values = rank_ == 0 && (m.header.kind == Kind::kReduce || m.header.kind == Kind::kGather);
    if (m.header.magic != kWireMagic || m.header.rank >= static_cast<std::uint32_t>(size_) ||
        (has_values && m.payload.size() != m.header.bytes))
      continue;
    if (m.header.size != static_cast<std::uint32_t>(size_)) {
      note_failure(fmt::format("a rank of {} came to one of {}", m.header.size, size_));
    } else if (m.header.kind == Kind::kAbort) {
      note_failure(std::string(reinterpret_cast<const char*>(m.payload.data()), m.payload.size()));
    } else if (m.header.kind == Kind::kBye) {
      ++n_gone_;
      note_failure(fmt::format("rank {} ended", m.header.rank));
    } else {
      arrived_[m.header.rank].push_back(std::move(m));
    }
  }
}

void SocketCollective::see_disconnections() {
  zmq_msg_t part;
  zmq_msg_init(&part);
  bool lost = false;
  while (zmq_msg_recv(&part, monitor_.get(), ZMQ_DONTWAIT) >= 0) lost = true;
  zmq_msg_close(&part);
  if (lost && n_gone_ == 0) note_failure("a rank ended, or its connection was lost");
}

void SocketCollective::fail_now() {
  throw RanksStopped(why_);
}

Message SocketCollective::take(int from, double seconds) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  while (true) {
    int descriptor = -1;
    {
      const std::lock_guard lock(mutex_);
      pump();
      if (!arrived_[from].empty()) {
        Message m = std::move(arrived_[from].front());
        arrived_[from].pop_front();
        return m;
      }
      if (!why_.empty()) fail_now();
      if (std::chrono::duration<double>(Clock::now() - begin).count() > seconds) {
        note_failure(fmt::format("rank {} did not answer within {} s", from, seconds));
        fail_now();
      }
      std::size_t size = sizeof descriptor;
      zmq_getsockopt(socket_.get(), ZMQ_FD, &descriptor, &size);
    }
    pollfd news{.fd = descriptor, .events = POLLIN, .revents = 0};
    poll(&news, 1, 1);  // 1 ms: the descriptor signals changes alone, and a change may have happened before
  }
}

std::vector<std::byte> SocketCollective::exchange(Kind kind, std::size_t bytes, std::span<const std::byte> mine,
                                                  const Combine& combine, Patience patience) {
  const double seconds = patience == Patience::kDeadline ? seconds_ : 1e12;
  const auto expect_same = [&](const Message& m) {
    if (m.header.kind == kind && m.header.bytes == bytes) return;
    const std::lock_guard lock(mutex_);
    note_failure(fmt::format("ranks {} and {} do not make the same calls", rank_, m.header.rank));
    fail_now();
  };
  {
    const std::lock_guard lock(mutex_);
    pump();
    if (!why_.empty()) fail_now();
    if (rank_ != 0) send(0, kind, bytes, mine);
  }
  if (rank_ != 0) {
    Message answer = take(0, seconds);
    expect_same(answer);
    return std::move(answer.payload);
  }
  std::vector<Message> parts(size_);
  parts[0].payload.assign(mine.begin(), mine.end());
  for (int r = 1; r < size_; ++r) {
    parts[r] = take(r, seconds);
    expect_same(parts[r]);
  }
  std::vector<std::byte> answer = combine ? combine(parts) : std::vector<std::byte>{};
  const std::lock_guard lock(mutex_);
  for (int r = 1; r < size_; ++r) send(r, kind, bytes, answer);
  return answer;
}

void SocketCollective::all_reduce(std::span<float> values) {
  const auto add = [&](std::vector<Message>& parts) {
    std::vector<std::byte> sum = std::move(parts[0].payload);
    auto* to = reinterpret_cast<float*>(sum.data());
    for (int r = 1; r < size_; ++r) {
      const auto* from = reinterpret_cast<const float*>(parts[r].payload.data());
      for (std::size_t i = 0; i < values.size(); ++i) to[i] += from[i];
    }
    return sum;
  };
  const std::vector<std::byte> sum =
      exchange(Kind::kReduce, values.size_bytes(), std::as_bytes(values), add, Patience::kDeadline);
  MNEME_CHECK(sum.size() == values.size_bytes(), "{} bytes of {}", sum.size(), values.size_bytes());
  if (!sum.empty()) std::memcpy(values.data(), sum.data(), sum.size());
}

void SocketCollective::all_gather(std::span<const std::byte> part, std::span<std::byte> out) {
  MNEME_CHECK(out.size() == part.size() * size_, "{} bytes from {} ranks of {}", out.size(), size_, part.size());
  const auto join = [](std::vector<Message>& parts) {
    std::vector<std::byte> all;
    for (const Message& m : parts) all.insert(all.end(), m.payload.begin(), m.payload.end());
    return all;
  };
  const std::vector<std::byte> all = exchange(Kind::kGather, part.size(), part, join, Patience::kDeadline);
  MNEME_CHECK(all.size() == out.size(), "{} bytes of {}", all.size(), out.size());
  if (!all.empty()) std::memcpy(out.data(), all.data(), all.size());
}

void SocketCollective::broadcast(std::span<std::byte> bytes, int root, Patience patience) {
  MNEME_CHECK(root >= 0 && root < size_, "rank {} of {}", root, size_);
  const auto pick = [root](std::vector<Message>& parts) { return std::move(parts[root].payload); };
  const std::span<const std::byte> mine =
      rank_ == root ? std::span<const std::byte>(bytes) : std::span<const std::byte>();
  const std::vector<std::byte> all = exchange(Kind::kBroadcast, bytes.size(), mine, pick, patience);
  MNEME_CHECK(all.size() == bytes.size(), "{} bytes of {}", all.size(), bytes.size());
  if (!all.empty()) std::memcpy(bytes.data(), all.data(), all.size());
}

void SocketCollective::abort(std::string_view why) noexcept {
  const std::lock_guard lock(mutex_);
  note_failure(std::string(why));
}

std::string SocketCollective::failure() {
  const std::lock_guard lock(mutex_);
  pump();
  return why_;
}

}  // namespace

std::unique_ptr<Collective> socket_collective(const std::string& address, int rank, int size, double seconds) {
  return std::make_unique<SocketCollective>(address, rank, size, seconds);
}
#else
std::unique_ptr<Collective> socket_collective(const std::string&, int, int, double) {
  fail(ErrorKind::kUnsupported, "ranks on several hosts talk by ZeroMQ, which this build has not (libzmq3-dev)");
}
#endif

}  // namespace mneme
