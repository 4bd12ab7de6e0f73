#include "apps/hub/curl/http.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <exception>
#include <string_view>

#include "src/base/ascii.h"
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/ratio.h"

namespace mneme::hub {
namespace {

constexpr int kMaxRedirects = 8;

class Url {
 public:
  explicit Url(const std::string& text) : url_(curl_url()) {
    MNEME_CHECK(url_ != nullptr, "no memory for an address");
    set(text);
  }
  ~Url() { curl_url_cleanup(url_); }
  Url(const Url&) = delete;
  Url& operator=(const Url&) = delete;

  // An address, or one relative to what this is.
  void set(const std::string& text) {
    if (curl_url_set(url_, CURLUPART_URL, text.c_str(), CURLU_URLENCODE) != CURLUE_OK)
      fail(ErrorKind::kFile, "\"{}\" is no address of a web server", text);
  }
  std::string part(CURLUPart which, unsigned flags = 0) const {
    char* text = nullptr;
    if (curl_url_get(url_, which, &text, flags) != CURLUE_OK) return {};
    std::string out(text);
    curl_free(text);
    return out;
  }
  std::string origin() const {
    return ascii_lower(part(CURLUPART_SCHEME) + "://" + part(CURLUPART_HOST) + ":" +
                       part(CURLUPART_PORT, CURLU_DEFAULT_PORT));
  }

 private:
  CURLU* url_;
};

void initialise() {
  static const CURLcode once = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (once != CURLE_OK) fail(ErrorKind::kResource, "libcurl cannot be started: {}", curl_easy_strerror(once));
}

// How a request that failed without an answer may end.
[[noreturn]] void fail_transfer(CURLcode code, const std::string& url, const char* details) {
  const std::string why = details[0] != '\0' ? details : curl_easy_strerror(code);
  const std::string where = Url(url).origin();
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
      throw Retryable(Retryable::Kind::kUnreachable, fmt::format("{} cannot be reached: {}", where, why));
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      throw Retryable(Retryable::Kind::kBroken, fmt::format("the connection to {} broke off: {}", where, why));
    default:
      fail(ErrorKind::kFile, "{}: {}", where, why);
  }
}

bool is_redirect(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

}  // namespace

std::string redirect_target(const std::string& from, const std::string& location) {
  Url url(from);
  const std::string origin = url.origin(), scheme = url.part(CURLUPART_SCHEME);
  if (location.empty()) fail(ErrorKind::kFile, "{}: a redirect without an address", origin);
  url.set(location);
  const std::string to = url.part(CURLUPART_SCHEME);
  if (to != "https" && (to != "http" || scheme == "https"))
    fail(ErrorKind::kFile, "{}: a redirect from {} to {} is not followed", origin, scheme, to);
  return url.part(CURLUPART_URL);
}

std::string url_path(const std::string& path) {
  std::string out;
  for (const char c : path) {
    const bool plain = is_letter_or_digit(c) || std::string_view("-._~/").find(c) != std::string::npos;
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", byte_of(c));
  }
  return out;
}

std::string HttpResponse::header(const std::string& name) const {
  const auto it = headers.find(name);
  return it == headers.end() ? std::string() : it->second;
}

std::optional<std::int64_t> HttpResponse::number(const std::string& name) const {
  const std::string text = header(name);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// One request, and what libcurl's callbacks need of it. Nothing may be thrown through libcurl: it is kept in `thrown`.
struct HttpClient::Hop {
  CURL* handle;
  HttpResponse response;
  const HttpBody* body;
  bool begun = false;
  std::exception_ptr thrown;

  static std::size_t on_header(char* data, std::size_t, std::size_t n, void* self) {
    Hop& hop = *static_cast<Hop*>(self);
    const std::string_view line(data, n);
    if (line.starts_with("HTTP/")) hop.response.headers.clear();  // "100 Continue" had its own
    const std::size_t colon = line.find(':');
    if (colon == line.npos) return n;
    constexpr std::string_view kSpace = " \t\r\n";
    const std::string_view rest = line.substr(colon + 1);
    const std::size_t first = rest.find_first_not_of(kSpace), last = rest.find_last_not_of(kSpace);
    hop.response.headers[ascii_lower(line.substr(0, colon))] =
        first == rest.npos ? std::string() : std::string(rest.substr(first, last + 1 - first));
    return n;
  }

  void begin() {
    curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &response.status);
    begun = true;
    if (response.ok() && body != nullptr) body->begin(response);
  }

  static std::size_t on_body(char* data, std::size_t, std::size_t n, void* self) {
    Hop& hop = *static_cast<Hop*>(self);
    try {
      if (!hop.begun) hop.begin();
      if (hop.response.ok() && hop.body != nullptr) hop.body->write(std::as_bytes(std::span(data, n)));
      return n;
    } catch (...) {
      hop.thrown = std::current_exception();
      return 0;  // ends the request
    }
  }
};

HttpClient::HttpClient(const HubSettings& settings) : settings_(settings) {
  initialise();
  origin_ = Url(settings.endpoint).origin();
  handle_ = curl_easy_init();
  MNEME_CHECK(handle_ != nullptr, "no memory for a connection");
}

HttpClient::~HttpClient() {
  curl_easy_cleanup(static_cast<CURL*>(handle_));
}

bool HttpClient::is_endpoint(const std::string& url) const {
  return Url(url).origin() == origin_;
}

HttpResponse HttpClient::perform(const std::string& url, bool head, const std::optional<Range>& range,
                                 const HttpBody* body) {
  auto* const curl = static_cast<CURL*>(handle_);
  curl_easy_reset(curl);  // keeps connections
  std::array<char, CURL_ERROR_SIZE> details{};
  Hop hop{.handle = curl, .response = {.url = url}, .body = body};
  curl_slist* raw = curl_slist_append(nullptr, "Accept-Encoding: identity");  // ranges and lengths are of the file
  if (!settings_.token.empty() && is_endpoint(url))
    raw = curl_slist_append(raw, ("Authorization: Bearer " + settings_.token).c_str());
  const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(raw, &curl_slist_free_all);
  const std::string bytes = range ? fmt::format("{}-{}", range->begin, range->end - 1) : "";
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "mneme");
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  if (head) curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  if (range) curl_easy_setopt(curl, CURLOPT_RANGE, bytes.c_str());
  if (!settings_.ca_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, settings_.ca_file.c_str());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, details.data());
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, std::lround(settings_.connect_seconds * 1000));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, std::max(1L, std::lround(settings_.idle_seconds)));
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 512L << 10);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Hop::on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &hop);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Hop::on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &hop);
  CURLcode code = curl_easy_perform(curl);
  curl_off_t connected = 0;
  curl_easy_getinfo(curl, CURLINFO_CONNECT_TIME_T, &connected);
  if (code == CURLE_OPERATION_TIMEDOUT && connected == 0) code = CURLE_COULDNT_CONNECT;  // no host answers there
  if (hop.thrown) std::rethrow_exception(hop.thrown);
  if (code != CURLE_OK) fail_transfer(code, url, details.data());
  if (!hop.begun) hop.begin();
  curl_off_t wait = 0;
  if (curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &wait) == CURLE_OK) hop.response.retry_after = real(wait);
  return std::move(hop.response);
}

HttpResponse HttpClient::head(const std::string& first) {
  std::string url = first;
  for (int hops = 0; hops <= kMaxRedirects; ++hops) {
    HttpResponse response = perform(url, true, std::nullopt, nullptr);
    if (!is_redirect(response.status) || !response.header("x-linked-etag").empty()) return response;
    url = redirect_target(response.url, response.header("location"));
    if (!is_endpoint(url)) return response;
  }
  fail(ErrorKind::kFile, "{}: more than {} redirects", first, kMaxRedirects);
}

HttpResponse HttpClient::get(const std::string& first, const std::optional<Range>& range, const HttpBody& body) {
  std::string url = first;
  for (int hops = 0; hops <= kMaxRedirects; ++hops) {
    HttpResponse response = perform(url, false, range, &body);
    if (!is_redirect(response.status)) return response;
    url = redirect_target(response.url, response.header("location"));
  }
  fail(ErrorKind::kFile, "{}: more than {} redirects", first, kMaxRedirects);
}

}  // namespace mneme::hub
