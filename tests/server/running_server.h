// A server in this process, on a port that was free, with the shipped model.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/server/server.h"

namespace mneme::server_test {

class RunningServer {
 public:
  explicit RunningServer(server::ServerOptions options = small());
  // With a model that `start` makes.
  RunningServer(server::ServerOptions options, std::function<RunningModel()> start);
  ~RunningServer() { stop(); }

  std::uint16_t port() const { return server_->port(); }
  // Tells it to stop, and waits until it has.
  void stop();
  void request_stop() { server_->stop(); }
  // Waits until it has stopped of its own; Server::failure().
  std::string wait();

  // One thread, no pinning, a context of 4,096 tokens, everything else the default.
  static server::ServerOptions small();
  // The value of a metric without further labels; fails the test where there is none.
  double metric(const std::string& name) const;
  std::vector<std::pair<std::string, std::string>> metric_headers;  // where a server asks for a key
  // Waits until nothing runs or waits; false where it makes no progress.
  bool idle() const;

 private:
  std::unique_ptr<server::Server> server_;
  std::thread thread_;
};

}  // namespace mneme::server_test
