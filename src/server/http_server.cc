#include "src/server/http_server.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <deque>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "src/base/ascii.h"
#include "src/base/error.h"
#include "src/server/api/api_error.h"

namespace mneme::server {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Clock = std::chrono::steady_clock;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr int kWorkThreads = 2;
constexpr std::size_t kJoined = 64 << 10;  // one packet for small answers, no copy of large ones

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

// The origin that a browser is told it may read the answer from; empty: none.
std::string allowed_origin(const ListenOptions& options, std::string_view origin) {
  for (const std::string& allowed : options.cors_origins)
    if (allowed == "*" || (!origin.empty() && allowed == origin)) return allowed;
  return {};
}

std::string_view reason_of(int status) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  return {reason.data(), reason.size()};
}

}  // namespace

namespace {
class Connection;
}

// What connections share with the server; it outlives them.
struct HttpServer::Impl {
  Impl(const ServerOptions& o, Metrics& m) : options(o), metrics(m), acceptor(io), signals(io) {}

  const ServerOptions& options;
  Metrics& metrics;
  std::int64_t connections = 0, exchanges = 0;
  bool stopping = false;
  std::shared_ptr<const bool> alive = std::make_shared<const bool>(true);  // while anything may be posted
  RequestHandler handler;
  asio::io_context io{1};
  asio::thread_pool workers{kWorkThreads}, files{1};
  tcp::acceptor acceptor;
  asio::signal_set signals;
  std::function<void(int)> on_signal;
  std::unordered_set<Connection*> open;  // connections

  void accept();
  void wait_for_signal();
};

namespace {

// The answer to one request. Keeps nothing alive: a connection that is gone takes no answers.
class Exchange final : public ResponseWriter {
 public:
  Exchange(std::weak_ptr<Connection> connection, HttpServer::Impl& server, std::uint64_t number)
      : connection_(std::move(connection)), alive_(server.alive), io_(server.io), number_(number) {}
  ~Exchange() override;
  void respond(HttpResponse response) override;
  void begin_stream(HttpResponse head, std::string heartbeat) override;
  void write(std::string piece) override;
  void end() override;
  void on_close(std::function<void()> closed) override;

 private:
  std::weak_ptr<Connection> connection_;
  std::weak_ptr<const bool> alive_;
  asio::io_context& io_;
  std::uint64_t number_;
  bool complete_ = false;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, HttpServer::Impl& server)
      : stream_(std::move(socket)), clock_(stream_.get_executor()), server_(server) {
    ++server_.connections;
    server_.open.insert(this);
    server_.metrics.count_connection(1);
  }
  ~Connection() {
    --server_.connections;
    server_.open.erase(this);
    server_.metrics.count_connection(-1);
    if (exchange_.open) --server_.exchanges;
  }

  void read() {
    parser_.emplace();
    parser_->header_limit(server_.options.limits.max_header_bytes);
    parser_->body_limit(static_cast<std::uint64_t>(server_.options.limits.max_body_bytes));
    stream_.expires_after(
        milliseconds(first_ ? server_.options.timeouts.read_seconds : server_.options.timeouts.idle_seconds));
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = shared_from_this()](error_code error, std::size_t) { self->on_header(error); });
  }

  // ---- the answer; `number` is the exchange's
  void respond(std::uint64_t number, HttpResponse response) {
    if (number != exchange_.number || !exchange_.open) return;
    std::string bytes = head_of(response);
    fmt::format_to(std::back_inserter(bytes), "Content-Length: {}\r\n\r\n", response.body.size());
    exchange_.ended = true;
    if (request_.head_only || response.body.size() <= kJoined) {
      if (!request_.head_only) bytes += response.body;
      return send(std::move(bytes));
    }
    send(std::move(bytes));
    send(std::move(response.body));
  }
  void begin_stream(std::uint64_t number, const HttpResponse& head, std::string heartbeat) {
    if (number != exchange_.number || !exchange_.open) return;
    exchange_.chunked = request_.http11;
    if (!exchange_.chunked) request_.keep_alive = false;
    exchange_.streams = true;
    exchange_.tells_events = head.content_type == "text/event-stream";
    send(head_of(head) + (exchange_.chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n"));
    exchange_.heartbeat = std::move(heartbeat);
  }
  void write(std::uint64_t number, const std::string& piece) {
    if (number != exchange_.number || !exchange_.open || exchange_.ended || piece.empty()) return;
    send(exchange_.chunked ? fmt::format("{:x}\r\n{}\r\n", piece.size(), piece) : piece);
  }
  void end(std::uint64_t number) {
    if (number != exchange_.number || !exchange_.open) return;
    exchange_.ended = true;
    send(exchange_.chunked ? "0\r\n\r\n" : "");
  }
  // The answer will not be completed: a client that waits for it is told why. A stream of events ends with one that is
  // an error, because clients take a connection that just ends for the end of the answer.
  void abandon(std::uint64_t number, const ApiError& error) {
    if (number != exchange_.number || !exchange_.open || exchange_.ended) return;
    if (!exchange_.streams) return respond(number, {.status = error.status, .body = error.body()});
    if (!exchange_.tells_events) return close();
    const std::string event = fmt::format("data: {}\n\ndata: [DONE]\n\n", error.body());
    exchange_.ended = true;  // before it is sent: the last words have room
    send(exchange_.chunked ? fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", event.size(), event) : event);
  }
  void abandon(const ApiError& error) { abandon(exchange_.number, error); }
  void on_close(std::uint64_t number, std::function<void()> closed) {
    if (number != exchange_.number || !exchange_.open) return closed();
    exchange_.on_close = std::move(closed);
  }

 private:
  void on_header(error_code error) {
    if (error) return refuse(error);
    const auto& message = parser_->get();
    first_ = false;
    request_.http11 = message.version() >= 11;
    request_.keep_alive = message.keep_alive();
    request_.head_only = message.method() == http::verb::head;
    read_origin();
    if (request_.http11 && message.count(http::field::host) != 1)
      return refuse(400, "expected one Host field in a request of HTTP/1.1");
    stream_.expires_after(milliseconds(server_.options.timeouts.read_seconds));
    if (beast::iequals(message[http::field::expect], "100-continue")) {
      static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      asio::async_write(stream_, asio::buffer(kContinue), [self = shared_from_this()](error_code e, std::size_t) {
        e ? self->close() : self->read_body();
      });
      return;
    }
    read_body();
  }

  void read_origin() {
    const auto origin = parser_->get()[http::field::origin];
    request_.origin = allowed_origin(server_.options.listen, {origin.data(), origin.size()});
  }

  void read_body() {
    http::async_read(stream_, buffer_, *parser_, [self = shared_from_this()](error_code error, std::size_t) {
      error ? self->refuse(error) : self->handle();
    });
  }

  void handle() {
    auto message = parser_->release();
    HttpRequest request;
    request.method = std::string(message.method_string());
    const std::string_view target(message.target().data(), message.target().size());
    const std::size_t question = std::min(target.find('?'), target.size());
    request.path = target.substr(0, question);
    request.query = target.substr(std::min(question + 1, target.size()));
    for (const auto& field : message)
      request.headers.emplace_back(ascii_lower({field.name_string().data(), field.name_string().size()}),
                                   std::string(field.value()));
    request.body = std::move(message.body());
    stream_.expires_never();
    begin_exchange();
    watch_for_close();
    server_.handler(std::move(request), std::make_shared<Exchange>(weak_from_this(), server_, exchange_.number));
  }

  void begin_exchange() {
    ++exchange_.number;
    exchange_.open = true;
    exchange_.ended = exchange_.chunked = exchange_.streams = exchange_.tells_events = false;
    exchange_.heartbeat.clear();
    output_.sent_at = Clock::now();
    ++server_.exchanges;
    look_around();
  }

  // While an answer is made nothing is read; a client that goes away makes the socket readable, with nothing to read.
  void watch_for_close() {
    stream_.socket().async_wait(
        tcp::socket::wait_read, [self = shared_from_this(), at = exchange_.number](error_code error) {
          if (error || at != self->exchange_.number || !self->exchange_.open) return;
          char byte = 0;
          const auto n = ::recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
          if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) return self->close();
          // n > 0: the next request is there already; this one is answered first.
          self->watch_for_reset();
        });
  }
  // The wait is also what keeps the connection while nothing is read or written.
  void watch_for_reset() {
    stream_.socket().async_wait(tcp::socket::wait_error,
                                [self = shared_from_this(), at = exchange_.number](error_code error) {
                                  if (!error && at == self->exchange_.number && self->exchange_.open) self->close();
                                });
  }

  void refuse(error_code error) {
    if (error == http::error::end_of_stream || error == beast::error::timeout || !stream_.socket().is_open() ||
        (error.category() != http::make_error_code(http::error::end_of_stream).category())) {
      return close();
    }
    int status = 400;
    std::string message = "the request is not HTTP: " + error.message();
    if (error == http::error::header_limit) {
      status = 431;
      message = fmt::format("the header is longer than {} bytes", server_.options.limits.max_header_bytes);
    } else if (error == http::error::body_limit) {
      status = 413;
      message = fmt::format("the body is longer than {} bytes", server_.options.limits.max_body_bytes);
    } else if (error == http::error::partial_message) {
      return close();
    }
    read_origin();
    refuse(status, message);
  }

  void refuse(int status, const std::string& message) {
    server_.metrics.count_request("", status);
    begin_exchange();
    request_.keep_alive = false;
    stream_.expires_never();
    respond(exchange_.number, {.status = status, .body = ApiError(status, message).body()});
  }

  std::string head_of(const HttpResponse& response) const {
    std::string head = fmt::format("HTTP/1.1 {} {}\r\nServer: mneme\r\nContent-Type: {}\r\n", response.status,
                                   reason_of(response.status), response.content_type);
    if (!request_.keep_alive || server_.stopping)
      head += "Connection: close\r\n";
    else if (!request_.http11)
      head += "Connection: keep-alive\r\n";
    for (const auto& [name, value] : response.headers)
      fmt::format_to(std::back_inserter(head), "{}: {}\r\n", name, value);
    if (!request_.origin.empty()) {
      fmt::format_to(std::back_inserter(head),
                     "Access-Control-Allow-Origin: {}\r\n"
                     "Access-Control-Expose-Headers: X-Request-Id, X-Queue-Position, Retry-After\r\n",
                     request_.origin);
    }
    // Another origin has another answer: caches must know.
    if (!server_.options.listen.cors_origins.empty()) head += "Vary: Origin\r\n";
    return head;
  }

  void send(std::string bytes) {
    output_.unsent += bytes.size();
    const bool reads = output_.unsent - bytes.size() <= server_.options.limits.max_unsent_bytes;
    if (!reads && !exchange_.ended) return drop_unread();
    output_.queue.push_back(std::move(bytes));
    if (!output_.writing) flush();
  }

  // What the socket has not taken makes room for an event that says so, for a client that goes on reading.
  void drop_unread() {
    const auto closed = std::exchange(exchange_.on_close, nullptr);
    output_.queue.clear();
    output_.unsent = output_.sending.size();
    abandon(ApiError(503, fmt::format("the answer was dropped: the client left more than {} bytes of it unread",
                                      server_.options.limits.max_unsent_bytes)));
    if (closed) closed();
  }

  void flush() {
    if (output_.queue.empty()) {
      if (exchange_.ended) finish();
      return;
    }
    output_.writing = true;
    output_.sending = std::move(output_.queue.front());
    for (std::size_t i = 1; i < output_.queue.size(); ++i) output_.sending += output_.queue[i];
    output_.queue.clear();
    output_.sent_at = Clock::now();
    // Not through the stream, whose timer would be set and taken back for every token: look_around() sees what hangs.
    asio::async_write(stream_.socket(), asio::buffer(output_.sending),
                      [self = shared_from_this()](error_code error, std::size_t) {
                        self->output_.writing = false;
                        self->output_.unsent -= std::min(self->output_.unsent, self->output_.sending.size());
                        if (self->output_.sending.capacity() > kJoined) self->output_.sending = {};
                        error ? self->close() : self->flush();
                      });
  }

  void finish() {
    if (!exchange_.open) return;
    exchange_.open = false;
    exchange_.on_close = nullptr;
    clock_.cancel();
    --server_.exchanges;
    stream_.socket().cancel();  // the watch
    if (request_.keep_alive && !server_.stopping) return read();
    // To close with something unread would take the answer back from the client's hands.
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(std::chrono::seconds(2));
    discard();
  }

  void discard() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(64 << 10), [self = shared_from_this()](error_code error, std::size_t) {
      error ? self->close() : self->discard();
    });
  }

  // Every now and then while a request is answered: has the client stopped reading, is a heartbeat due?
  void look_around() {
    const ServerOptions& o = server_.options;
    clock_.expires_after(milliseconds(std::max(std::min(o.heartbeat_seconds, o.timeouts.write_seconds) / 4, 0.001)));
    clock_.async_wait([weak = weak_from_this(), at = exchange_.number](error_code error) {
      const auto self = weak.lock();
      if (error || !self || at != self->exchange_.number || !self->exchange_.open) return;
      const std::chrono::duration<double> silent = Clock::now() - self->output_.sent_at;
      if (self->output_.writing && silent.count() > self->server_.options.timeouts.write_seconds) return self->close();
      if (!self->exchange_.heartbeat.empty() && !self->output_.writing &&
          silent.count() >= self->server_.options.heartbeat_seconds)
        self->write(at, self->exchange_.heartbeat);
      self->look_around();
    });
  }

  void close() {
    clock_.cancel();
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.close();
    if (std::exchange(exchange_.open, false)) --server_.exchanges;
    if (const auto closed = std::exchange(exchange_.on_close, nullptr)) closed();
  }

  beast::tcp_stream stream_;
  asio::steady_timer clock_;
  HttpServer::Impl& server_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  // What the header of the request said.
  struct RequestHead {
    bool http11 = true, keep_alive = true, head_only = false;
    std::string origin;  // that may read the answers; empty: the server's own alone
  };
  // The open exchange, or the last one. Answers to any other `number` are ignored.
  struct ExchangeState {
    std::uint64_t number = 0;
    bool open = false, chunked = false, ended = false;
    bool streams = false, tells_events = false;  // it is a stream; one of events
    std::string heartbeat;
    std::function<void()> on_close;
  };
  // Bytes for the client that the socket has not taken: those of the write in flight, and those after it.
  struct Output {
    std::deque<std::string> queue;
    std::string sending;
    std::size_t unsent = 0;  // of both
    Clock::time_point sent_at;
    bool writing = false;
  };
  bool first_ = true;  // no header was read so far
  RequestHead request_;
  ExchangeState exchange_;
  Output output_;
};

Exchange::~Exchange() {
  const auto alive = alive_.lock();
  if (complete_ || !alive) return;
  // Wherever the last holder let go of it: the connection is the I/O thread's.
  asio::post(io_, [weak = connection_, number = number_] {
    if (const auto c = weak.lock()) c->abandon(number, ApiError(500, "the request was not answered to its end"));
  });
}
void Exchange::respond(HttpResponse response) {
  complete_ = true;
  if (const auto c = connection_.lock()) c->respond(number_, std::move(response));
}
void Exchange::begin_stream(HttpResponse head, std::string heartbeat) {
  if (const auto c = connection_.lock()) c->begin_stream(number_, head, std::move(heartbeat));
}
void Exchange::write(std::string piece) {
  if (const auto c = connection_.lock()) c->write(number_, piece);
}
void Exchange::end() {
  complete_ = true;
  if (const auto c = connection_.lock()) c->end(number_);
}
void Exchange::on_close(std::function<void()> closed) {
  const auto c = connection_.lock();
  c ? c->on_close(number_, std::move(closed)) : closed();
}

}  // namespace

void HttpServer::Impl::accept() {
  acceptor.async_accept([this](error_code error, tcp::socket socket) {
    if (!acceptor.is_open()) return;
    if (!error) {
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      if (connections < options.limits.max_connections) {
        std::make_shared<Connection>(std::move(socket), *this)->read();
      } else {
        static const std::string kFull =
            "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n";
        socket.write_some(asio::buffer(kFull), ignored);
        metrics.count_request("", 503);
      }
    } else if (error == asio::error::no_descriptors) {
      // Whoever is connected goes on; more are taken when some have gone.
      auto timer = std::make_shared<asio::steady_timer>(io, std::chrono::milliseconds(100));
      timer->async_wait([this, timer](error_code) { accept(); });
      return;
    }
    accept();
  });
}

void HttpServer::Impl::wait_for_signal() {
  signals.async_wait([this](error_code error, int signal) {
    if (error) return;
    if (on_signal) on_signal(signal);
    wait_for_signal();
  });
}

HttpServer::HttpServer(const ServerOptions& options, Metrics& metrics)
    : impl_(std::make_unique<Impl>(options, metrics)) {
  error_code error;
  tcp::resolver resolver(impl_->io);
  const auto addresses = resolver.resolve(options.listen.host, std::to_string(options.listen.port),
                                          tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || addresses.empty()) fail(ErrorKind::kOption, "--host {}: {}", options.listen.host, error.message());
  const tcp::endpoint endpoint = addresses.begin()->endpoint();
  tcp::acceptor& acceptor = impl_->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error)
    fail(ErrorKind::kOption, "cannot listen on {} port {}: {}", options.listen.host, options.listen.port,
         error.message());
}

HttpServer::~HttpServer() {
  end_work();
  impl_->alive.reset();
}

void HttpServer::end_work() {
  for (asio::thread_pool* pool : {&impl_->workers, &impl_->files}) {
    pool->stop();
    pool->join();
  }
}

std::uint16_t HttpServer::port() const {
  return impl_->acceptor.local_endpoint().port();
}

Executors HttpServer::executors() {
  return {.io = [this](std::function<void()> f) { asio::post(impl_->io, std::move(f)); },
          .work = [this](std::function<void()> f) { asio::post(impl_->workers, std::move(f)); },
          .files = [this](std::function<void()> f) { asio::post(impl_->files, std::move(f)); }};
}

void HttpServer::run(RequestHandler handler) {
  impl_->handler = std::move(handler);
  impl_->accept();
  const auto work = asio::make_work_guard(impl_->io);
  impl_->io.run();
}

void HttpServer::drain() {
  impl_->stopping = true;
}

std::int64_t HttpServer::exchanges() const {
  return impl_->exchanges;
}

void HttpServer::abandon_exchanges(const std::string& why) {
  const std::vector<Connection*> open(impl_->open.begin(), impl_->open.end());
  for (Connection* c : open)
    if (impl_->open.contains(c)) c->abandon(ApiError(503, why));
}

void HttpServer::after(double seconds, std::function<void()> task) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->io, milliseconds(seconds));
  timer->async_wait([timer, task = std::move(task)](error_code error) {
    if (!error) task();
  });
}

void HttpServer::on_signal(std::function<void(int)> task) {
  impl_->on_signal = std::move(task);
  impl_->signals.add(SIGTERM);
  impl_->signals.add(SIGINT);
  impl_->wait_for_signal();
}

void HttpServer::stop() {
  impl_->io.stop();
}

}  // namespace mneme::server
