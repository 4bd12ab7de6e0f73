#include "tests/server/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "tests/progress.h"

namespace mneme::server_test {

std::vector<std::string> Response::events() const {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < body.size();) {
    const std::size_t end = std::min(body.find("\n\n", at), body.size());
    const std::string block = body.substr(at, end - at);
    if (block.starts_with("data: ")) out.push_back(block.substr(6));
    at = end + 2;
  }
  return out;
}

std::string Response::error_message() const {
  const auto parsed = nlohmann::json::parse(body, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("error")) return "no error: " + body;
  return parsed["error"]["message"].get<std::string>();
}

Client::Client(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval limit{.tv_sec = 1, .tv_usec = 0};  // of one recv(); receive() repeats it while there is progress
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(fd_);
    fd_ = -1;
    throw std::runtime_error("cannot connect");
  }
}

Client::~Client() {
  close();
}

void Client::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Client::reset() {
  const linger now{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close();
}

void Client::send(const std::string& bytes) const {
  for (std::size_t at = 0; at < bytes.size();) {
    const auto n = ::send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (n <= 0) return;  // the answer, or its absence, says what happened
    at += n;
  }
}

void Client::send_request(const std::string& method, const std::string& target, const std::string& body,
                          const Headers& headers) const {
  std::string bytes = method + " " + target + " HTTP/1.1\r\n";
  Headers all = headers;
  const auto has = [&](const char* name) {
    return std::any_of(headers.begin(), headers.end(), [&](const auto& h) { return h.first == name; });
  };
  if (!has("Host")) all.emplace_back("Host", "localhost");
  if (!body.empty() && !has("Content-Type")) all.emplace_back("Content-Type", "application/json");
  if (method == "POST") all.emplace_back("Content-Length", std::to_string(body.size()));
  for (const auto& [name, value] : all) bytes += name + ": " + value + "\r\n";
  send(bytes + "\r\n" + body);
}

std::ptrdiff_t Client::receive(void* buffer, std::size_t size, int flags) const {
  std::ptrdiff_t n = -1;
  wait_until(
      [&] {
        n = ::recv(fd_, buffer, size, flags);
        return n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
      },
      std::chrono::milliseconds(0));
  return n;
}

bool Client::read_more() {
  char buffer[65536];
  const auto n = receive(buffer, sizeof buffer, 0);
  if (n <= 0) return false;
  unread_.append(buffer, n);
  return true;
}

bool Client::read_until(const std::string& text) {
  while (unread_.find(text) == std::string::npos)
    if (!read_more()) return false;
  return true;
}

bool Client::ended() {
  char byte = 0;
  return receive(&byte, 1, MSG_PEEK) <= 0;
}

Response Client::read_response(bool head_only) {
  Response response;
  if (!read_until("\r\n\r\n")) return response;
  const std::size_t head_end = unread_.find("\r\n\r\n");
  const std::string head = unread_.substr(0, head_end + 2);
  unread_.erase(0, head_end + 4);
  response.status = std::stoi(head.substr(9, 3));
  for (std::size_t at = head.find("\r\n") + 2; at < head.size();) {
    const std::size_t end = head.find("\r\n", at), colon = head.find(": ", at);
    std::string name = head.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    response.headers[name] = head.substr(colon + 2, end - colon - 2);
    at = end + 2;
  }
  if (head_only || response.status == 100 || response.status == 204) return response;
  if (response.headers.contains("transfer-encoding")) {
    for (;;) {
      if (!read_until("\r\n")) return response;
      const std::size_t n = std::stoul(unread_, nullptr, 16);
      unread_.erase(0, unread_.find("\r\n") + 2);
      while (unread_.size() < n + 2)
        if (!read_more()) return response;
      response.body += unread_.substr(0, n);
      unread_.erase(0, n + 2);
      if (n == 0) return response;
    }
  }
  const bool sized = response.headers.contains("content-length");
  const std::size_t n = sized ? std::stoul(response.headers["content-length"]) : static_cast<std::size_t>(-1);
  while (unread_.size() < n && read_more()) {
  }
  response.body = unread_.substr(0, n);
  unread_.erase(0, response.body.size());
  return response;
}

Response Client::request(const std::string& method, const std::string& target, const std::string& body,
                         const Headers& headers) {
  send_request(method, target, body, headers);
  return read_response(method == "HEAD");
}

Response get(std::uint16_t port, const std::string& target, const Headers& headers) {
  return Client(port).request("GET", target, {}, headers);
}
Response post(std::uint16_t port, const std::string& target, const std::string& body, const Headers& headers) {
  return Client(port).request("POST", target, body, headers);
}
Response post(std::uint16_t port, const std::string& target, const nlohmann::json& body, const Headers& headers) {
  return post(port, target, body.dump(), headers);
}

}  // namespace mneme::server_test
