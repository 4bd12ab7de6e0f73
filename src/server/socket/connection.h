// One connection of a client: reads requests, writes their answers, watches for a client that goes away.
//
// Threads  all on the I/O thread.
#pragma once

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "src/server/api/api_error.h"
#include "src/server/http/http.h"
#include "src/server/metrics.h"
#include "src/server/server_options.h"

namespace mneme::server {

class Connection;

// What connections share with the server; it outlives them.
struct ConnectionHost {
  ConnectionHost(const ServerOptions& o, Metrics& m) : options(o), metrics(m) {}

  const ServerOptions& options;
  Metrics& metrics;
  std::int64_t connections = 0, exchanges = 0;
  bool stopping = false;
  std::shared_ptr<const bool> alive = std::make_shared<const bool>(true);  // while anything may be posted
  RequestHandler handler;
  std::unordered_set<Connection*> open;
  boost::asio::io_context io{1};  // last: what waits in it holds connections, which take themselves out of `open`
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::ip::tcp::socket socket, ConnectionHost& server);
  ~Connection();

  void read();

  // ---- the answer; `number` is the exchange's
  void respond(std::uint64_t number, HttpResponse response);
  void begin_stream(std::uint64_t number, const HttpResponse& head, StreamWords words);
  void write(std::uint64_t number, const std::string& piece);
  void end(std::uint64_t number);
  // The answer will not be completed: a client that waits for it gets the reason. A stream of events ends with one that
  // is an error, because clients take a connection that just ends for the end of the answer.
  void abandon(std::uint64_t number, const ApiError& error);
  void abandon(const ApiError& error);
  void on_close(std::uint64_t number, std::function<void()> closed);

 private:
  void on_header(boost::system::error_code error);
  void read_origin();
  void read_body();
  void handle();
  void begin_exchange();
  // While an answer is made nothing is read; a client that goes away makes the socket readable, with nothing to read.
  void watch_for_close();
  // The wait is also what keeps the connection while nothing is read or written.
  void watch_for_reset();
  void refuse(boost::system::error_code error);
  void refuse(int status, const std::string& message);
  std::string head_of(const HttpResponse& response) const;
  void send(std::string bytes);
  // What the socket has not taken makes room for an event that says so, for a client that goes on reading.
  void drop_unread();
  void flush();
  void finish();
  void discard();
  // Every now and then while a request is answered: has the client stopped reading, is a heartbeat due?
  void look_around();
  void close();

  boost::beast::tcp_stream stream_;
  boost::asio::steady_timer clock_;
  ConnectionHost& server_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
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
    StreamWords words;
    std::function<void()> on_close;
  };
  // Bytes for the client that the socket has not taken: those of the write in flight, and those after it.
  struct Output {
    std::deque<std::string> queue;
    std::string sending;
    std::size_t unsent = 0;  // of both
    std::chrono::steady_clock::time_point sent_at;
    bool writing = false;
  };
  bool first_ = true;  // no header was read so far
  RequestHead request_;
  ExchangeState exchange_;
  Output output_;
};

}  // namespace mneme::server
