// A model behind an OpenAI-compatible HTTP API, in this process: what `mneme serve` runs.
//
//   mneme::Server server("model.gguf", {.port = 8000});
//   std::cout << server.url() << std::endl;
//   server.run();   // until SIGINT, SIGTERM or stop()
//
// Endpoints, requests and metrics are those of `mneme serve`. The options here are those that most servers set; the
// command has all of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mneme/error.h"
#include "mneme/options.h"
#include "mneme/progress.h"

namespace mneme {

struct ServeOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;          // 0: any that is free
  std::vector<std::string> api_keys;  // any of them; empty: none is asked for
  std::string served_name;            // of the model in requests and answers; empty: the file's or folder's name
  std::string chat_template;          // Jinja, or the name of one of the model's; empty: its own
  EngineOptions engine;               // engine.kv is the default of requests, which may name a method of their own
  bool stop_on_signals = true;  // SIGINT and SIGTERM end run(), after the answers that run; the second ends it at once
  // One line for each request and each event; may be called on any thread. Empty: none.
  std::function<void(std::string_view line)> log;
};

// Threads  the constructor, run() and the destructor belong to one thread; everything else may be called from any.
class Server {
 public:
  // Listens, then loads the model.
  //
  // Errors  as LanguageModel's constructor; kOption: no such address; kResource: the port is taken.
  explicit Server(const std::filesystem::path& model, const ServeOptions& options = {},
                  const ProgressFn& progress = {});
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const;
  std::string url() const;  // "http://127.0.0.1:8000"
  // Serves until it is stopped. Answers that run then may finish within 30 seconds.
  //
  // Errors  kDevice: the device failed.
  void run();
  // A second call does not wait for answers any more.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme
