// HTTP/1.1 over sockets: accepts, reads whole requests within limits of size and time, and writes answers, streamed or
// whole. All I/O is one thread's, whoever calls run().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "src/server/http/http.h"
#include "src/server/metrics.h"
#include "src/server/server_options.h"

namespace mneme::server {

class HttpServer {
 public:
  // Binds and listens.
  //
  // Errors  kOption: the host is no address of this machine, the port is taken.
  HttpServer(const ServerOptions& options, Metrics& metrics);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;
  Executors executors();
  // Serves until stop(). Requests that arrived before are answered then.
  void run(RequestHandler handler);

  // ---- on the I/O thread
  // Every answer from now on closes its connection. New connections are still accepted, so that clients learn that
  // the server stops.
  void drain();
  // Requests that are being answered.
  std::int64_t exchanges() const;
  // Answers what is being answered: a stream of events by one that is an error, anything else by 503.
  void abandon_exchanges(const std::string& why);
  void after(double seconds, std::function<void()> task);
  // Instead of ending the process, SIGTERM and SIGINT call `task`.
  void on_signal(std::function<void(int signal)> task);
  // run() returns; connections are closed.
  void stop();
  // From any thread: waits for work that has started and drops the rest; what the work uses may be freed afterwards.
  void end_work();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme::server
