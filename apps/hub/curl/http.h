// HTTP by libcurl, as far as a hub needs it. Redirects are followed here and not by libcurl, so that each hop is
// judged: the token goes to the endpoint's scheme, host and port alone; no hop leads from https to http or to files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "apps/hub/hub_settings.h"

namespace mneme::hub {

// Something that another attempt may mend: a broken connection, a server that is busy.
class Retryable : public std::runtime_error {
 public:
  enum class Kind : std::uint8_t { kBroken, kUnreachable, kBusy };
  Retryable(Kind kind, const std::string& message, double wait_seconds = 0)
      : std::runtime_error(message), kind_(kind), wait_seconds_(wait_seconds) {}
  Kind kind() const { return kind_; }
  double wait_seconds() const { return wait_seconds_; }  // what the server asks for

 private:
  Kind kind_;
  double wait_seconds_;
};

struct HttpResponse {
  long status = 0;
  std::string url;                             // that answered
  std::map<std::string, std::string> headers;  // names in lower case
  double retry_after = 0;                      // seconds; 0: not said

  bool ok() const { return status == 200 || status == 206; }
  std::string header(const std::string& name) const;
  std::optional<std::int64_t> number(const std::string& name) const;  // none: absent, or no number from 0 up
};

// Takes the body of an answer with status 200 or 206. What either throws ends the request and reaches the caller.
struct HttpBody {
  std::function<void(const HttpResponse& head)> begin;  // once before the first byte, also of an empty body
  std::function<void(std::span<const std::byte>)> write;
};

class HttpClient {
 public:
  explicit HttpClient(const HubSettings& settings);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Headers of a file at the endpoint. Follows redirects within the endpoint; one that leads to another host is the
  // answer, because the headers that describe the file (X-Linked-...) are the endpoint's own.
  //
  // Errors  Retryable; kFile: a redirect that is not followed, a certificate that is not accepted.
  HttpResponse head(const std::string& url);
  // The content, or its bytes [begin, end). Follows redirects to any host. An answer that is not ok() has its body
  // dropped.   Errors  as head(); what `body` throws.
  struct Range {
    std::int64_t begin = 0, end = 0;
  };
  HttpResponse get(const std::string& url, const std::optional<Range>& range, const HttpBody& body);

  // Whether a URL is the endpoint's: the same scheme, host and port.
  bool is_endpoint(const std::string& url) const;

 private:
  struct Hop;
  HttpResponse perform(const std::string& url, bool head, const std::optional<Range>& range, const HttpBody* body);

  const HubSettings& settings_;
  std::string origin_;
  void* handle_;  // CURL*
};

// Where a redirect from `url` to `location` leads; a location may be relative.
//
// Errors  kFile: no address; one that is not followed, because it leads from https to http or to neither of them.
std::string redirect_target(const std::string& url, const std::string& location);

// A path with everything but letters, digits, - . _ ~ and / percent-encoded.
std::string url_path(const std::string& path);

}  // namespace mneme::hub
