// The public Server (include/mneme/server.h) by the server of this room.
#include "mneme/server.h"

#include <fmt/format.h>

#include <utility>

#include "src/base/error.h"
#include "src/server/server.h"

namespace mneme {
namespace {

server::ServerOptions options_of(const std::filesystem::path& model, const ServeOptions& o) {
  server::ServerOptions options;
  options.model = model;
  options.served_name = o.served_name;
  options.chat_template = o.chat_template;
  options.engine = o.engine;
  if (o.engine.kv.recipe) options.engine.kv.method = o.engine.kv.recipe->name;  // what requests and metrics call it
  options.listen.host = o.host;
  options.listen.port = o.port;
  options.listen.api_keys = o.api_keys;
  if (o.log) options.log = o.log;
  return options;
}

}  // namespace

struct Server::Impl {
  Impl(const std::filesystem::path& model, const ServeOptions& o, const ProgressFn& progress)
      : host(o.host), server(options_of(model, o), progress) {
    if (o.stop_on_signals) server.stop_on_signals();
  }

  std::string host;
  server::Server server;
};

Server::Server(const std::filesystem::path& model, const ServeOptions& options, const ProgressFn& progress)
    : impl_(std::make_unique<Impl>(model, options, progress)) {}
Server::~Server() = default;

std::uint16_t Server::port() const {
  return impl_->server.port();
}

std::string Server::url() const {
  const bool v6 = impl_->host.find(':') != std::string::npos;
  return v6 ? fmt::format("http://[{}]:{}", impl_->host, port()) : fmt::format("http://{}:{}", impl_->host, port());
}

void Server::run() {
  impl_->server.run();
  if (!impl_->server.failure().empty()) fail(ErrorKind::kDevice, "{}", impl_->server.failure());
}

void Server::stop() {
  impl_->server.stop();
}

}  // namespace mneme
