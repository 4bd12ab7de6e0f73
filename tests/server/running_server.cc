#include "tests/server/running_server.h"

#include <gtest/gtest.h>

#include <chrono>

#include "tests/progress.h"
#include "tests/server/http_client.h"

namespace mneme::server_test {

server::ServerOptions RunningServer::small() {
  server::ServerOptions o;
  o.model = MNEME_MODEL_FILE;
  o.listen.port = 0;
  o.engine.context = 4096;
  o.engine.threads = 1;
  o.engine.pin_threads = false;
  o.timeouts.shutdown_seconds = 300;  // answers of 800 tokens under a sanitizer on a loaded machine
  return o;
}

RunningServer::RunningServer(server::ServerOptions options)
    : server_(std::make_unique<server::Server>(std::move(options))), thread_([this] { server_->run(); }) {}

RunningServer::RunningServer(server::ServerOptions options, std::function<RunningModel()> start)
    : server_(std::make_unique<server::Server>(std::move(options), std::move(start))),
      thread_([this] { server_->run(); }) {}

std::string RunningServer::wait() {
  thread_.join();
  return server_->failure();
}

void RunningServer::stop() {
  if (!thread_.joinable()) return;
  server_->stop();
  thread_.join();
}

double RunningServer::metric(const std::string& name) const {
  const std::string text = get(port(), "/metrics", metric_headers).body;
  const std::string line = "\nmneme:" + name + "{model_name=\"needle-27m-q8_0\"} ";
  const std::size_t at = text.find(line);
  EXPECT_NE(at, std::string::npos) << name;
  return at == std::string::npos ? -1 : std::stod(text.substr(at + line.size()));
}

bool RunningServer::idle() const {
  return wait_until([&] { return metric("num_requests_running") == 0 && metric("num_requests_waiting") == 0; },
                    std::chrono::milliseconds(2));
}

}  // namespace mneme::server_test
