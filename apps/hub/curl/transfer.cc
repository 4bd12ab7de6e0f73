#include "apps/hub/curl/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "apps/hub/curl/http.h"
#include "apps/hub/curl/partial_file.h"
#include "apps/hub/listing.h"
#include "src/base/backend.h"
#include "src/base/error.h"

namespace mneme::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxShown = 200;
constexpr std::int64_t kMegabyte = 1'000'000;

// What the hub calls a file, and what it must turn out to be.
struct BlobInfo {
  std::string hash;  // 64 hex digits: SHA-256; 40: git's SHA-1
  std::int64_t size = 0;

  DigestKind kind() const { return hash.size() == 64 ? DigestKind::kSha256 : DigestKind::kGitSha1; }
};

void note(const FetchContext& c, const std::string& line) {
  if (c.events.on_note) c.events.on_note(line);
}

// Text of a server for a terminal.
std::string printable(std::string text) {
  text.resize(std::min(text.size(), kMaxShown));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

// Throws what an answer that is not ok() means. `what`: the repository, or the file.
[[noreturn]] void refuse(const FetchContext& c, const HttpClient& client, const HttpResponse& r,
                         const std::string& what) {
  const bool of_endpoint = client.is_endpoint(r.url);
  const std::string where = of_endpoint ? c.settings.endpoint : r.url.substr(0, r.url.find('?'));
  if (r.status == 408 || r.status == 429 || (r.status >= 500 && r.status <= 504))
    throw Retryable(Retryable::Kind::kBusy, fmt::format("{} answers {}", where, r.status), r.retry_after);
  const std::string said =
      r.header("x-error-message").empty() ? "" : fmt::format(" ({})", printable(r.header("x-error-message")));
  if (of_endpoint && r.header("x-error-code") == "GatedRepo")
    fail(ErrorKind::kFile,
         "{}: access is restricted: accept its terms at {}/{} and set HF_TOKEN to a token of that "
         "account{}",
         what, c.settings.endpoint, c.repo.id(), said);
  if (of_endpoint && (r.status == 401 || r.status == 403))
    fail(ErrorKind::kFile, "{}: {} answers {}: there is no such repository, or it is private: {}{}", what, where,
         r.status, c.settings.token.empty() ? "set HF_TOKEN to a token that may read it" : "the token may not read it",
         said);
  if (of_endpoint && r.status == 404)
    fail(ErrorKind::kFile, "{}: {} answers 404: there is no such repository or file{}", what, where, said);
  fail(ErrorKind::kFile, "{}: {} answers {}{}", what, where, r.status, said);
}

// How often an unavailable file is tried. kListing: the cache may stand in, so an endpoint that cannot be
// reached at all is not tried again, and giving up is Unreachable.
enum class Attempts : std::uint8_t { kListing, kFile };

[[noreturn]] void give_up(Attempts attempts, const std::string& message) {
  if (attempts == Attempts::kListing) throw Unreachable(message);
  fail(ErrorKind::kFile, "{}", message);
}

// Runs `work` until it ends otherwise than by Retryable. Attempts count from the start again when `position` advances.
template <typename Work, typename Position>
auto with_retries(const FetchContext& c, const std::string& what, Attempts attempts, const Work& work,
                  const Position& position) {
  int failures = 0;
  std::int64_t before = position();
  for (;;) {
    try {
      return work();
    } catch (const Retryable& e) {
      if (e.kind() == Retryable::Kind::kUnreachable && attempts == Attempts::kListing)
        give_up(attempts, fmt::format("{}: {}", what, e.what()));
      if (position() > before) failures = 0;
      before = position();
      if (++failures >= c.settings.tries)
        give_up(attempts, fmt::format("{}: {}; given up after {} attempts; the same command goes on from here", what,
                                      e.what(), failures));
      if (e.wait_seconds() > c.settings.longest_wait_seconds)
        give_up(attempts,
                fmt::format("{}: {} and asks to wait for {:.0f} s: try again later", what, e.what(), e.wait_seconds()));
      const double wait = std::max(e.wait_seconds(), std::ldexp(c.settings.retry_seconds, failures - 1));
      note(c,
           fmt::format("{}: {}; attempt {} of {} in {:.0f} s", what, e.what(), failures + 1, c.settings.tries, wait));
      std::this_thread::sleep_for(std::chrono::duration<double>(wait));
    }
  }
}

// W/"abc" and "abc" as abc.
std::string etag_of(const HttpResponse& r) {
  std::string tag = r.header("x-linked-etag");
  if (tag.empty()) tag = r.header("etag");
  if (tag.starts_with("W/")) tag.erase(0, 2);
  std::erase(tag, '"');
  return tag;
}

std::int64_t size_of(const HttpResponse& r, const RepoFile& file, const std::string& what) {
  std::optional<std::int64_t> said = r.number("x-linked-size");
  if (!said && r.ok()) said = r.number("content-length");
  if (said && file.size && *said != *file.size)
    fail(ErrorKind::kFormat, "{}: listed with {} bytes, announced with {}", what, *file.size, *said);
  if (!said) said = file.size;
  if (!said) fail(ErrorKind::kFormat, "{}: the endpoint tells no size", what);
  return *said;
}

BlobInfo ask_for_blob(const FetchContext& c, HttpClient& client, const std::string& url, const RepoFile& file) {
  const std::string what = c.repo.id() + "/" + file.path;
  const HttpResponse r = client.head(url);
  if (!r.ok() && (r.status < 300 || r.status >= 400)) refuse(c, client, r, what);
  const std::string tag = etag_of(r);
  const std::string& listed = file.sha256.empty() ? file.git_sha1 : file.sha256;
  const bool hash = is_hex(tag, 64) || is_hex(tag, 40);
  if (hash && tag.size() == listed.size() && tag != listed)
    fail(ErrorKind::kFormat, "{}: listed with the hash {}, announced with {}", what, listed, tag);
  if (!hash && listed.empty())
    fail(ErrorKind::kFormat, "{}: the endpoint tells no hash: expected an ETag with a SHA-256 or git's SHA-1", what);
  // A listed SHA-256 is of the content; a short ETag beside it can only be of something else.
  return {.hash = hash && file.sha256.empty() ? tag : listed, .size = size_of(r, file, what)};
}

// The answer to a request for [begin, end) of a file: that part, or all of it. Returns where its bytes end.
std::int64_t check_answer(const HttpResponse& r, PartialFile& part, std::int64_t end, const std::string& what) {
  if (r.status == 200) {
    if (part.offset() > 0) part.restart();  // a server that does not know ranges
    end = part.size();
  } else {
    const std::string expected = fmt::format("bytes {}-{}/{}", part.offset(), end - 1, part.size());
    if (r.header("content-range") != expected)
      fail(ErrorKind::kFormat, "{}: expected Content-Range: {}, found \"{}\"", what, expected,
           printable(r.header("content-range")));
  }
  const auto length = r.number("content-length");
  if (length && *length != end - part.offset())
    fail(ErrorKind::kFormat, "{}: expected {} bytes, the answer announces {}", what, end - part.offset(), *length);
  return end;
}

// Requests the missing range, or the longest part of it that one request may ask for.
void fetch_rest(const FetchContext& c, HttpClient& client, const std::string& url, PartialFile& part,
                const std::string& path) {
  const std::string what = c.repo.id() + "/" + path;
  std::int64_t end = std::min(part.size(), part.offset() + c.settings.max_request_bytes);
  std::optional<HttpClient::Range> range;
  if (part.offset() > 0 || end < part.size()) range = {part.offset(), end};
  HttpBody body;
  body.begin = [&](const HttpResponse& head) { end = check_answer(head, part, end, what); };
  body.write = [&](std::span<const std::byte> bytes) {
    if (std::ssize(bytes) > end - part.offset())
      fail(ErrorKind::kFormat, "{}: the answer has more than the {} bytes that were announced", what, part.size());
    const std::int64_t before = part.offset() / kMegabyte;
    part.append(bytes);
    if (c.events.on_progress && part.offset() / kMegabyte != before) c.events.on_progress(part.offset(), part.size());
  };
  const HttpResponse r = client.get(url, range, body);
  if (r.status == 416) {
    part.restart();
    throw Retryable(Retryable::Kind::kBroken, "the endpoint does not go on in the middle of the file");
  }
  if (!r.ok()) refuse(c, client, r, what);
  if (part.offset() < end)
    throw Retryable(Retryable::Kind::kBroken,
                    fmt::format("the answer ended after {} of {} bytes", part.offset(), part.size()));
}

void fetch_blob(const FetchContext& c, HttpClient& client, const std::string& url, const BlobInfo& info,
                const std::string& path) {
  const std::string what = c.repo.id() + "/" + path;
  PartialFile part(c.cache.blob(info.hash + ".incomplete"), info.kind(), info.size);
  expect_room(c.cache.folder() / "blobs", info.size - part.offset(), what);
  if (c.events.on_file) c.events.on_file(path, info.size);
  for (bool resumed = part.offset() > 0;; resumed = false) {
    while (part.offset() < part.size()) {
      with_retries(
          c, what, Attempts::kFile, [&] { fetch_rest(c, client, url, part, path); }, [&] { return part.offset(); });
    }
    const std::string found = part.hex();
    if (found == info.hash) break;
    if (!resumed) {
      part.discard();
      fail(ErrorKind::kFormat, "{}: its hash is {}, expected {}: nothing is kept", what, found, info.hash);
    }
    // What an earlier attempt left may be wrong, and what has just arrived right.
    note(c, fmt::format("{}: what was there before does not fit; from the beginning", what));
    part.restart();
  }
  part.commit(c.cache.blob(info.hash));
}

bool has_blob(const fs::path& path, std::int64_t size) {
  std::error_code absent;
  return fs::is_regular_file(path, absent) && std::cmp_equal(fs::file_size(path, absent), size) && !absent;
}

}  // namespace

Listing fetch_listing(const FetchContext& c) {
  HttpClient client(c.settings);
  const std::string url = fmt::format("{}/api/models/{}/revision/main?blobs=true", c.settings.endpoint, c.repo.id());
  const auto attempt = [&] {
    std::string text;
    HttpBody body;
    body.begin = [&](const HttpResponse&) { text.clear(); };
    body.write = [&](std::span<const std::byte> bytes) {
      if (text.size() + bytes.size() > kMaxListingBytes)
        fail(ErrorKind::kFormat, "{}: the listing has more than {} bytes", c.repo.id(), kMaxListingBytes);
      text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    const HttpResponse r = client.get(url, std::nullopt, body);
    if (!r.ok()) refuse(c, client, r, c.repo.id());
    return text;
  };
  const std::string text = with_retries(c, c.repo.id(), Attempts::kListing, attempt, [] { return 0; });
  return parse_listing(text, url);
}

void fetch_file(const FetchContext& c, const std::string& commit, const RepoFile& file) {
  const fs::path pointer = c.cache.snapshot(commit) / file.path;
  std::error_code absent;
  if (fs::is_regular_file(pointer, absent) && (!file.size || has_blob(pointer, *file.size))) return;
  HttpClient client(c.settings);
  const std::string what = c.repo.id() + "/" + file.path;
  const std::string url =
      fmt::format("{}/{}/resolve/{}/{}", c.settings.endpoint, c.repo.id(), commit, url_path(file.path));
  const BlobInfo info = with_retries(
      c, what, Attempts::kFile, [&] { return ask_for_blob(c, client, url, file); }, [] { return 0; });
  make_folders(c.cache.folder() / "blobs");
  const FileLock lock(c.cache.lock(info.hash),
                      [&] { note(c, what + ": waiting for another process that fetches it"); });
  if (!has_blob(c.cache.blob(info.hash), info.size)) fetch_blob(c, client, url, info, file.path);
  c.cache.link(commit, file.path, info.hash);
}

MNEME_REGISTER_BACKEND(hub_curl, hub::Downloader,
                       (hub::Downloader{.list = &hub::fetch_listing, .fetch = &hub::fetch_file}));

}  // namespace mneme::hub
