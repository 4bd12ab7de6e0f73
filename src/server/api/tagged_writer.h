// A request's writer that adds what every answer has (request id, CORS), counts it, and writes its line in the log.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "src/server/http/http.h"
#include "src/server/metrics.h"
#include "src/server/server_options.h"

namespace mneme::server {

class TaggedWriter final : public ResponseWriter, public std::enable_shared_from_this<TaggedWriter> {
 public:
  TaggedWriter(std::shared_ptr<ResponseWriter> inner, const HttpRequest& request, const ServerOptions& options,
               Metrics& metrics);

  const std::string& request_id() const { return request_id_; }
  // The request is of Anthropic's API, which has errors of its own shape.
  bool of_messages() const { return of_messages_; }
  // What the request is counted under: a route's path, so that clients cannot fill the metrics with names.
  void set_route(std::string_view route) { route_ = route; }

  void respond(HttpResponse response) override;
  void begin_stream(HttpResponse head, StreamWords words) override;
  void write(std::string piece) override { inner_->write(std::move(piece)); }
  void end() override;
  void on_close(std::function<void()> closed) override;

 private:
  void tag(HttpResponse& response) const;
  void done(int status) const;

  std::shared_ptr<ResponseWriter> inner_;
  const ServerOptions& options_;
  Metrics& metrics_;
  std::string request_id_, line_, route_ = "other";
  bool of_messages_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace mneme::server
