// The answer to one request, as the API writes it.
//
// Threads  respond(), begin_stream(), write(), end() and on_close() on the I/O thread; the destructor on any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "src/server/http/http.h"
#include "src/server/socket/connection.h"

namespace mneme::server {

// Keeps nothing alive: a closed connection takes no answers.
class Exchange final : public ResponseWriter {
 public:
  Exchange(std::weak_ptr<Connection> connection, ConnectionHost& server, std::uint64_t number)
      : connection_(std::move(connection)), alive_(server.alive), io_(server.io), number_(number) {}
  ~Exchange() override;
  void respond(HttpResponse response) override;
  void begin_stream(HttpResponse head, StreamWords words) override;
  void write(std::string piece) override;
  void end() override;
  void on_close(std::function<void()> closed) override;

 private:
  std::weak_ptr<Connection> connection_;
  std::weak_ptr<const bool> alive_;
  boost::asio::io_context& io_;
  std::uint64_t number_;
  bool complete_ = false;
};

}  // namespace mneme::server
