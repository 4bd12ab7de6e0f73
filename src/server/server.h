// A model behind HTTP: the parts of this room put together.
//
//   Server server(options, progress);
//   server.run();   // until stop(), or a signal after stop_on_signals()
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "mneme/progress.h"
#include "src/engine/loop/engine_loop.h"
#include "src/server/server_options.h"

namespace mneme::server {

class Server {
 public:
  // Listens, then loads the model.
  //
  // Errors  as HttpServer and LanguageModel.
  explicit Server(ServerOptions options, const ProgressFn& progress = {});
  // The same with a model that `start` makes, on the thread that will compute.
  Server(ServerOptions options, std::function<RunningModel()> start);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const;
  const std::string& served_name() const;
  const KvEventPublisher* kv_events() const;  // null: no --kv-events
  EngineOptions engine_options() const;
  std::int64_t kv_bytes() const;  // room for keys and values

  void stop_on_signals();
  // Serves until it is stopped and every request is answered, or drain_seconds and shutdown_seconds are over. A device that fails stops
  // it as well.
  void run();
  // After run(): how the device failed; empty: it did not.
  const std::string& failure() const;
  // From any thread: ends the server as a failed device does, with this reason.
  void fail(std::string why);
  // From any thread: stops the server. A second call no longer waits for requests.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme::server
