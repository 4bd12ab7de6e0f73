// A hub on a free port of this machine, with the faults that a test asks for.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace mneme::hub_test {

struct Request {
  std::string method, path, query;
  std::map<std::string, std::string> headers;  // names in lower case

  std::string header(const std::string& name) const;
};

using Headers = std::vector<std::pair<std::string, std::string>>;

// One connection: it ends with its answer.
class Connection {
 public:
  explicit Connection(int fd) : fd_(fd) {}
  void send(std::string_view bytes);
  // Status line and headers; Content-Length only where the headers have one.
  void send_head(int status, const Headers& headers = {});
  // A whole answer, with Content-Length.
  void answer(int status, Headers headers, std::string_view body);

 private:
  int fd_;
};

class HttpServer {
 public:
  using Handler = std::function<void(const Request&, Connection&)>;
  // What comes after is refused: a client that asks for ever fails its test in place of hanging.
  static constexpr std::size_t kMaxRequests = 500;
  explicit HttpServer(Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::string url() const;
  std::vector<Request> requests() const;
  // Requests of this method whose path ends so.
  int count(const std::string& method, const std::string& end) const;

 private:
  void accept_all();
  void serve(int fd);

  Handler handler_;
  int listener_ = -1, port_ = 0;
  mutable std::mutex mutex_;
  std::vector<Request> requests_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

inline const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";

// SHA-256, and git's SHA-1 of a file.
std::string sha256_of(std::string_view content);
std::string git_sha1_of(std::string_view content);

struct HubFile {
  std::string content;
  bool large = false;  // told by SHA-256 and X-Linked-..., else by git's SHA-1

  std::string hash() const { return large ? sha256_of(content) : git_sha1_of(content); }
};

// The repository "acme/tiny".
class HubServer {
 public:
  // Answers before the hub does, and tells whether it has.
  using Fault = std::function<bool(const Request&, Connection&)>;
  explicit HubServer(std::map<std::string, HubFile> files, Fault fault = {});

  std::map<std::string, HubFile> files;
  Fault fault;
  std::string token;     // where it is not empty, requests without it are answered with 401
  std::string redirect;  // content comes from this address instead
  std::string listing;   // where it is not empty, in place of the true one
  HttpServer http;       // last: it serves while the others live

  std::string true_listing() const;
  // The content as an answer to a GET with or without Range.
  static void send_content(const Request& r, Connection& c, std::string_view content);

 private:
  void answer(const Request& r, Connection& c);
  void answer_file(const Request& r, Connection& c, const HubFile& file);
};

}  // namespace mneme::hub_test
