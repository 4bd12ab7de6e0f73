#include "tests/apps/hub/hub_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

#include "apps/hub/curl/digest.h"

namespace mneme::hub_test {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string digest_of(hub::DigestKind kind, std::string_view content) {
  hub::Digest digest(kind, std::ssize(content));
  digest.update(std::as_bytes(std::span(content.data(), content.size())));
  return digest.hex();
}

Request parse_request(const std::string& head) {
  Request out;
  std::size_t line_end = head.find("\r\n");
  const std::string first = head.substr(0, line_end);
  const std::size_t a = first.find(' '), b = first.rfind(' ');
  out.method = first.substr(0, a);
  const std::string target = first.substr(a + 1, b - a - 1);
  out.path = target.substr(0, target.find('?'));
  if (out.path.size() < target.size()) out.query = target.substr(out.path.size() + 1);
  while (line_end + 2 < head.size()) {
    const std::size_t begin = line_end + 2;
    line_end = head.find("\r\n", begin);
    const std::string line = head.substr(begin, line_end - begin);
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) out.headers[lower(line.substr(0, colon))] = line.substr(colon + 2);
  }
  return out;
}

}  // namespace

std::string sha256_of(std::string_view content) {
  return digest_of(hub::DigestKind::kSha256, content);
}
std::string git_sha1_of(std::string_view content) {
  return digest_of(hub::DigestKind::kGitSha1, content);
}

std::string Request::header(const std::string& name) const {
  const auto it = headers.find(name);
  return it == headers.end() ? "" : it->second;
}

void Connection::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return;  // the other side has gone
    bytes.remove_prefix(n);
  }
}

void Connection::send_head(int status, const Headers& headers) {
  std::string head = fmt::format("HTTP/1.1 {} Status\r\nConnection: close\r\n", status);
  for (const auto& [name, value] : headers) head += fmt::format("{}: {}\r\n", name, value);
  send(head + "\r\n");
}

void Connection::answer(int status, Headers headers, std::string_view body) {
  headers.emplace_back("Content-Length", std::to_string(body.size()));
  send_head(status, headers);
  send(body);
}

HttpServer::HttpServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (listener_ < 0 || ::bind(listener_, any, length) != 0 || ::listen(listener_, 64) != 0 ||
      ::getsockname(listener_, any, &length) != 0)
    throw std::runtime_error("cannot listen");
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept_all(); });
}

HttpServer::~HttpServer() {
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  ::close(listener_);
  for (std::thread& thread : threads_) thread.join();
}

std::string HttpServer::url() const {
  const std::lock_guard lock(mutex_);  // what a test has set is seen by who serves
  return fmt::format("http://127.0.0.1:{}", port_);
}

std::vector<Request> HttpServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

int HttpServer::count(const std::string& method, const std::string& end) const {
  const auto all = requests();
  return static_cast<int>(std::count_if(all.begin(), all.end(),
                                        [&](const Request& r) { return r.method == method && r.path.ends_with(end); }));
}

void HttpServer::accept_all() {
  for (int fd; (fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;)
    threads_.emplace_back([this, fd] { serve(fd); });
}

void HttpServer::serve(int fd) {
  std::string head;
  char byte = 0;
  while (!head.ends_with("\r\n\r\n") && ::recv(fd, &byte, 1, 0) == 1) head += byte;
  if (head.ends_with("\r\n\r\n")) {
    const Request request = parse_request(head);
    const bool too_many = [&] {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
      return requests_.size() > kMaxRequests;
    }();
    Connection connection(fd);
    if (too_many)
      connection.answer(400, {{"X-Error-Message", "a test asks less often"}}, "");
    else
      handler_(request, connection);
  }
  ::shutdown(fd, SHUT_WR);
  while (::recv(fd, &byte, 1, 0) == 1) {
  }
  ::close(fd);
}

HubServer::HubServer(std::map<std::string, HubFile> given, Fault given_fault)
    : files(std::move(given)), fault(std::move(given_fault)), http([this](const Request& r, Connection& c) {
        if (!fault || !fault(r, c)) answer(r, c);
      }) {}

std::string HubServer::true_listing() const {
  nlohmann::json out = {{"id", "acme/tiny"}, {"sha", kCommit}, {"siblings", nlohmann::json::array()}};
  for (const auto& [name, file] : files) {
    nlohmann::json entry = {{"rfilename", name}, {"size", file.content.size()}, {"blobId", git_sha1_of(file.content)}};
    if (file.large) entry["lfs"] = {{"sha256", file.hash()}, {"size", file.content.size()}, {"pointerSize", 135}};
    out["siblings"].push_back(entry);
  }
  return out.dump();
}

void HubServer::answer(const Request& r, Connection& c) {
  if (!token.empty() && r.header("authorization") != "Bearer " + token)
    return c.answer(401, {{"X-Error-Code", "RepoNotFound"}, {"X-Error-Message", "Invalid username or password."}},
                    "{}");
  if (r.path == "/api/models/acme/tiny/revision/main")
    return c.answer(200, {{"Content-Type", "application/json"}}, listing.empty() ? true_listing() : listing);
  const std::string prefix = "/acme/tiny/resolve/" + kCommit + "/";
  const auto file = r.path.starts_with(prefix) ? files.find(r.path.substr(prefix.size())) : files.end();
  if (file == files.end()) return c.answer(404, {{"X-Error-Code", "EntryNotFound"}}, "Entry not found");
  answer_file(r, c, file->second);
}

void HubServer::answer_file(const Request& r, Connection& c, const HubFile& file) {
  const std::string size = std::to_string(file.content.size()), tag = '"' + file.hash() + '"';
  Headers headers = {{"X-Repo-Commit", kCommit}};
  if (file.large) {
    headers.insert(headers.end(), {{"X-Linked-Etag", tag}, {"X-Linked-Size", size}, {"ETag", "\"of-the-pointer\""}});
  } else {
    headers.emplace_back("ETag", "W/" + tag);
  }
  if (!redirect.empty()) {
    headers.emplace_back("Location", redirect + r.path);
    return c.answer(302, headers, "");
  }
  if (r.method != "HEAD") return send_content(r, c, file.content);
  headers.emplace_back("Content-Length", size);
  c.send_head(200, headers);
}

void HubServer::send_content(const Request& r, Connection& c, std::string_view content) {
  unsigned long begin = 0, end = 0;
  const std::string range = r.header("range");
  if (std::sscanf(range.c_str(), "bytes=%lu-%lu", &begin, &end) != 2) return c.answer(200, {}, content);
  end = std::min<unsigned long>(end, content.size() - 1);
  c.answer(206, {{"Content-Range", fmt::format("bytes {}-{}/{}", begin, end, content.size())}},
           content.substr(begin, end + 1 - begin));
}

}  // namespace mneme::hub_test
