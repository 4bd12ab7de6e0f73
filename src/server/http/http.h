// HTTP as the API sees it: a request with its whole body, and a way to answer. No sockets here.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mneme::server {

struct HttpRequest {
  std::string method, path, query;                           // path and query still percent-encoded
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;

  // The first of that name; empty: none.
  std::string_view header(std::string_view name) const;
  // The value of `key` in the query, decoded; empty: none.
  std::string parameter(std::string_view key) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
};

// What a stream says of its own: for clients that wait, and where it cannot go on.
struct StreamWords {
  std::function<std::string()> heartbeat;  // whenever nothing else was written for some seconds; null: nothing
  // Last words, from the message and the HTTP status that the failure would have had; null: an event as OpenAI's API
  // has it.
  std::function<std::string(const std::string& message, int status)> failure;
};

// Answers one request: respond() once, or begin_stream(), write()s and end(). A writer that goes away before has
// answered 500. What is written after the client went away is dropped.
//
// Threads  the I/O thread.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  virtual void respond(HttpResponse response) = 0;
  // The body follows.
  virtual void begin_stream(HttpResponse head, StreamWords words) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end() = 0;
  // Called once if the client goes away before the answer is complete.
  virtual void on_close(std::function<void()> closed) = 0;
};

// Where work goes: the I/O thread, which must never wait; a few others for parsing and tokenizing; and one for files,
// which may wait for as long as it likes.
struct Executors {
  std::function<void(std::function<void()>)> io, work, files;
};

using RequestHandler = std::function<void(HttpRequest, std::shared_ptr<ResponseWriter>)>;

}  // namespace mneme::server
