#include "src/server/socket/connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "src/base/ascii.h"
#include "src/server/socket/exchange.h"

namespace mneme::server {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Clock = std::chrono::steady_clock;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::size_t kJoined = 64 << 10;  // one packet for small answers, no copy of large ones

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

std::string_view reason_of(int status) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  return {reason.data(), reason.size()};
}

}  // namespace

Connection::Connection(tcp::socket socket, ConnectionHost& server)
    : stream_(std::move(socket)), clock_(stream_.get_executor()), server_(server) {
  ++server_.connections;
  server_.open.insert(this);
  server_.metrics.count_connection(1);
}

Connection::~Connection() {
  --server_.connections;
  server_.open.erase(this);
  server_.metrics.count_connection(-1);
  if (exchange_.open) --server_.exchanges;
}

void Connection::read() {
  parser_.emplace();
  parser_->header_limit(server_.options.limits.max_header_bytes);
  parser_->body_limit(static_cast<std::uint64_t>(server_.options.limits.max_body_bytes));
  stream_.expires_after(
      milliseconds(first_ ? server_.options.timeouts.read_seconds : server_.options.timeouts.idle_seconds));
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](error_code error, std::size_t) { self->on_header(error); });
}

void Connection::respond(std::uint64_t number, HttpResponse response) {
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

void Connection::begin_stream(std::uint64_t number, const HttpResponse& head, StreamWords words) {
  if (number != exchange_.number || !exchange_.open) return;
  exchange_.chunked = request_.http11;
  if (!exchange_.chunked) request_.keep_alive = false;
  exchange_.streams = true;
  exchange_.tells_events = head.content_type == "text/event-stream";
  send(head_of(head) + (exchange_.chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n"));
  exchange_.words = std::move(words);
}

void Connection::write(std::uint64_t number, const std::string& piece) {
  if (number != exchange_.number || !exchange_.open || exchange_.ended || piece.empty()) return;
  send(exchange_.chunked ? fmt::format("{:x}\r\n{}\r\n", piece.size(), piece) : piece);
}

void Connection::end(std::uint64_t number) {
  if (number != exchange_.number || !exchange_.open) return;
  exchange_.ended = true;
  send(exchange_.chunked ? "0\r\n\r\n" : "");
}

void Connection::abandon(std::uint64_t number, const ApiError& error) {
  if (number != exchange_.number || !exchange_.open || exchange_.ended) return;
  if (!exchange_.streams) return respond(number, {.status = error.status, .body = error.body()});
  if (!exchange_.tells_events) return close();
  std::string event = exchange_.words.failure ? exchange_.words.failure(error.what(), error.status) : "";
  if (event.empty()) event = fmt::format("data: {}\n\ndata: [DONE]\n\n", error.body());
  exchange_.ended = true;  // before it is sent: the last words have room
  send(exchange_.chunked ? fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", event.size(), event) : event);
}

void Connection::abandon(const ApiError& error) {
  abandon(exchange_.number, error);
}

void Connection::on_close(std::uint64_t number, std::function<void()> closed) {
  if (number != exchange_.number || !exchange_.open) return closed();
  exchange_.on_close = std::move(closed);
}

void Connection::on_header(error_code error) {
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

void Connection::read_origin() {
  const auto origin = parser_->get()[http::field::origin];
  request_.origin = allowed_origin(server_.options.listen, {origin.data(), origin.size()});
}

void Connection::read_body() {
  http::async_read(stream_, buffer_, *parser_, [self = shared_from_this()](error_code error, std::size_t) {
    error ? self->refuse(error) : self->handle();
  });
}

void Connection::handle() {
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

void Connection::begin_exchange() {
  ++exchange_.number;
  exchange_.open = true;
  exchange_.ended = exchange_.chunked = exchange_.streams = exchange_.tells_events = false;
  exchange_.words = {};
  output_.sent_at = Clock::now();
  ++server_.exchanges;
  look_around();
}

void Connection::watch_for_close() {
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

void Connection::watch_for_reset() {
  stream_.socket().async_wait(tcp::socket::wait_error,
                              [self = shared_from_this(), at = exchange_.number](error_code error) {
                                if (!error && at == self->exchange_.number && self->exchange_.open) self->close();
                              });
}

void Connection::refuse(error_code error) {
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

void Connection::refuse(int status, const std::string& message) {
  server_.metrics.count_request("", status);
  begin_exchange();
  request_.keep_alive = false;
  stream_.expires_never();
  respond(exchange_.number, {.status = status, .body = ApiError(status, message).body()});
}

std::string Connection::head_of(const HttpResponse& response) const {
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

void Connection::send(std::string bytes) {
  output_.unsent += bytes.size();
  const bool reads = output_.unsent - bytes.size() <= server_.options.limits.max_unsent_bytes;
  if (!reads && !exchange_.ended) return drop_unread();
  output_.queue.push_back(std::move(bytes));
  if (!output_.writing) flush();
}

void Connection::drop_unread() {
  const auto closed = std::exchange(exchange_.on_close, nullptr);
  output_.queue.clear();
  output_.unsent = output_.sending.size();
  abandon(ApiError(503, fmt::format("the answer was dropped: the client left more than {} bytes of it unread",
                                    server_.options.limits.max_unsent_bytes)));
  if (closed) closed();
}

void Connection::flush() {
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

void Connection::finish() {
  if (!exchange_.open) return;
  exchange_.open = false;
  exchange_.on_close = nullptr;
  clock_.cancel();
  --server_.exchanges;
  stream_.socket().cancel();  // the watch
  if (request_.keep_alive && !server_.stopping) return read();
  // Closing with something unread would reset the connection before the client has read the answer.
  error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  stream_.expires_after(std::chrono::seconds(2));
  discard();
}

void Connection::discard() {
  buffer_.clear();
  stream_.async_read_some(buffer_.prepare(64 << 10), [self = shared_from_this()](error_code error, std::size_t) {
    error ? self->close() : self->discard();
  });
}

void Connection::look_around() {
  const ServerOptions& o = server_.options;
  clock_.expires_after(milliseconds(std::max(std::min(o.heartbeat_seconds, o.timeouts.write_seconds) / 4, 0.001)));
  clock_.async_wait([weak = weak_from_this(), at = exchange_.number](error_code error) {
    const auto self = weak.lock();
    if (error || !self || at != self->exchange_.number || !self->exchange_.open) return;
    const std::chrono::duration<double> silent = Clock::now() - self->output_.sent_at;
    if (self->output_.writing && silent.count() > self->server_.options.timeouts.write_seconds) return self->close();
    if (self->exchange_.words.heartbeat && !self->output_.writing &&
        silent.count() >= self->server_.options.heartbeat_seconds)
      self->write(at, self->exchange_.words.heartbeat());
    self->look_around();
  });
}

void Connection::close() {
  clock_.cancel();
  error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
  stream_.close();
  if (std::exchange(exchange_.open, false)) --server_.exchanges;
  if (const auto closed = std::exchange(exchange_.on_close, nullptr)) closed();
}

}  // namespace mneme::server
