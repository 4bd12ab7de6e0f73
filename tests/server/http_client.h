// A client of a few lines that can do what a good one cannot: send half a request, go away in the middle of an answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace mneme::server_test {

struct Response {
  int status = 0;                              // 0: the connection ended before an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined

  nlohmann::json json() const { return nlohmann::json::parse(body); }
  // The data of server-sent events.
  std::vector<std::string> events() const;
  std::string error_message() const;
};

using Headers = std::vector<std::pair<std::string, std::string>>;

class Client {
 public:
  explicit Client(std::uint16_t port);
  ~Client();
  Client(Client&& other) noexcept : fd_(std::exchange(other.fd_, -1)), unread_(std::move(other.unread_)) {}
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(const std::string& bytes) const;
  // One request on this connection; reads its answer.
  Response request(const std::string& method, const std::string& target, const std::string& body = {},
                   const Headers& headers = {});
  void send_request(const std::string& method, const std::string& target, const std::string& body = {},
                    const Headers& headers = {}) const;
  Response read_response(bool head_only = false);
  // Reads until `text` was seen, or the connection ends: false.
  bool read_until(const std::string& text);
  // The other side has closed.
  bool ended();
  void close();
  // Closes with a reset instead of an end.
  void reset();

 private:
  bool read_more();
  // recv(), for as long as this process or one that it started makes progress; negative where none does.
  std::ptrdiff_t receive(void* buffer, std::size_t size, int flags) const;
  int fd_ = -1;
  std::string unread_;
};

// On a connection of its own.
Response get(std::uint16_t port, const std::string& target, const Headers& headers = {});
Response post(std::uint16_t port, const std::string& target, const std::string& body, const Headers& headers = {});
Response post(std::uint16_t port, const std::string& target, const nlohmann::json& body, const Headers& headers = {});

}  // namespace mneme::server_test
