#include "apps/bench/timed/load.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/asio.hpp>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/base/rng.h"
#include "src/base/seconds.h"

namespace mneme::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

namespace {

// HTTP/1.0, whose answers end with the connection: nothing to unchunk.
std::string request_text(const LoadOptions& o, std::string_view method, std::string_view target,
                         std::string_view body) {
  std::string text = fmt::format("{} {} HTTP/1.0\r\nHost: {}\r\n", method, target, o.host);
  if (!o.api_key.empty()) text += fmt::format("Authorization: Bearer {}\r\n", o.api_key);
  if (!body.empty()) text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  return text.append("\r\n").append(body);
}

class Load;

// One request: sends it, reads lines, notes when they came.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(Load& load, std::size_t index);
  void start();

 private:
  void read();
  void take_lines();
  void take_line(std::string_view line);
  void finish(std::string error);

  Load& load_;
  std::size_t index_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  Clock::time_point start_;
  std::string text_, unread_, body_;
  char buffer_[16 << 10];
  bool head_ = true, done_ = false, finished_ = false;
};

class Load {
 public:
  Load(const LoadOptions& o, const std::function<void(std::int64_t)>& told)
      : options(o), progress(told), rng_(o.seed), arrivals_(io) {
    error_code error;
    tcp::resolver resolver(io);
    const auto found = resolver.resolve(o.host, std::to_string(o.port), tcp::resolver::numeric_service, error);
    if (error || found.empty()) fail(ErrorKind::kOption, "{}: {}", o.host, error.message());
    endpoint = found.begin()->endpoint();
    run.records.resize(o.requests);
    for (std::int64_t i = 0; i < o.shared_tokens; ++i) shared_.push_back(token());
  }

  LoadRun go() {
    begin = Clock::now();
    options.request_rate > 0 ? arrive() : fill();
    io.run();
    run.seconds = seconds_since(begin);
    return std::move(run);
  }

  std::string body(std::size_t index) {
    const auto n = options.prompt_tokens[index % options.prompt_tokens.size()];
    std::vector<std::int64_t> prompt = shared_;
    prompt.resize(std::min<std::int64_t>(n, options.shared_tokens));
    while (std::ssize(prompt) < n) prompt.push_back(token());
    run.records[index].prompt_tokens = n;
    nlohmann::json json = {{"prompt", prompt}, {"max_tokens", options.output_tokens},
                           {"stream", true},   {"ignore_eos", true},
                           {"temperature", 0}, {"stream_options", {{"include_usage", true}}}};
    if (!options.model.empty()) json["model"] = options.model;
    if (!options.kv.empty()) json["kv"] = nlohmann::json::parse(options.kv);
    return json.dump();
  }

  void ended() {
    --open_;
    ++done_;
    if (progress) progress(done_);
    fill();
  }

  const LoadOptions& options;
  const std::function<void(std::int64_t)>& progress;
  asio::io_context io{1};
  tcp::endpoint endpoint;
  Clock::time_point begin;
  LoadRun run;

 private:
  std::int64_t token() {
    const std::int64_t quarter = std::max<std::int64_t>(options.vocabulary / 4, 1);
    return quarter + rng_.below(quarter * 2);
  }

  // Starts what may run: all that has arrived, within the concurrency.
  void fill() {
    const std::int64_t most = run.records.size();
    const std::int64_t arrived = options.request_rate > 0 ? arrived_ : most;
    while (next_ < arrived && (options.max_concurrency == 0 || open_ < options.max_concurrency)) {
      run.most_open = std::max(run.most_open, ++open_);
      std::make_shared<Call>(*this, next_++)->start();
    }
  }

  void arrive() {
    ++arrived_;
    fill();
    if (arrived_ == std::ssize(run.records)) return;
    const double gap = -std::log(1 - rng_.uniform()) / options.request_rate;
    arrivals_.expires_after(std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::duration<double>(gap)));
    arrivals_.async_wait([this](error_code) { arrive(); });
  }

  Rng rng_;
  asio::steady_timer arrivals_;
  std::vector<std::int64_t> shared_;
  std::int64_t next_ = 0, open_ = 0, done_ = 0, arrived_ = 0;
};

Call::Call(Load& load, std::size_t index) : load_(load), index_(index), socket_(load.io), timer_(load.io) {}

void Call::start() {
  text_ = request_text(load_.options, "POST", "/v1/completions", load_.body(index_));
  start_ = Clock::now();
  load_.run.records[index_].start = seconds_since(load_.begin);
  timer_.expires_after(std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(load_.options.timeout_seconds)));
  timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error) self->finish("timeout");
  });
  socket_.async_connect(load_.endpoint, [self = shared_from_this()](error_code error) {
    if (error) return self->finish("connect: " + error.message());
    error_code ignored;
    self->socket_.set_option(tcp::no_delay(true), ignored);
    asio::async_write(self->socket_, asio::buffer(self->text_),
                      [self](error_code e, std::size_t) { e ? self->finish("send: " + e.message()) : self->read(); });
  });
}

void Call::read() {
  socket_.async_read_some(asio::buffer(buffer_), [self = shared_from_this()](error_code error, std::size_t n) {
    self->unread_.append(self->buffer_, n);
    self->take_lines();
    if (!error) return self->read();
    const LoadRecord& r = self->load_.run.records[self->index_];
    if (r.status != 200) return self->finish(fmt::format("status {} {}", r.status, self->body_.substr(0, 200)));
    self->finish(self->done_ ? "" : "the answer ends early");
  });
}

void Call::take_lines() {
  std::size_t at = 0;
  for (std::size_t end = 0; (end = unread_.find('\n', at)) != std::string::npos; at = end + 1) {
    std::string_view line(unread_.data() + at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    take_line(line);
  }
  unread_.erase(0, at);
  if (!head_ && load_.run.records[index_].status != 200) body_ += std::exchange(unread_, "");
}

void Call::take_line(std::string_view line) {
  LoadRecord& record = load_.run.records[index_];
  if (head_) {
    if (record.status == 0 && line.size() > 12) record.status = std::atoi(line.substr(9, 3).data());
    if (line.empty()) head_ = false;
    return;
  }
  if (!line.starts_with("data: ")) return;
  if (line == "data: [DONE]") {
    done_ = true;
    return;
  }
  // Most lines are tokens, and this program shares the machine with the server that it measures: these are not parsed.
  const bool plain =
      line.find("\"usage\":{") == std::string_view::npos && line.find("\"error\"") == std::string_view::npos;
  const std::size_t text = line.find("\"text\":\"");
  if (plain && text != std::string_view::npos) {
    if (line[text + 8] != '"') record.pieces.push_back(seconds_since(start_));
    return;
  }
  const auto json = nlohmann::json::parse(line.substr(6), nullptr, false);
  if (!json.is_object()) return finish("not JSON: " + std::string(line.substr(0, 200)));
  if (json.contains("error")) return finish(json["error"].dump());
  const auto choices = json.find("choices");
  if (choices != json.end() && !choices->empty() && !choices->front().value("text", "").empty())
    record.pieces.push_back(seconds_since(start_));
  const auto usage = json.find("usage");
  if (usage != json.end() && usage->is_object())
    record.output_tokens = usage->value("completion_tokens", std::int64_t{0});
}

void Call::finish(std::string error) {
  if (std::exchange(finished_, true)) return;
  LoadRecord& record = load_.run.records[index_];
  record.end = seconds_since(start_);
  record.error = std::move(error);
  timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
  load_.ended();
}

}  // namespace

double LoadRecord::per_token() const {
  if (pieces.empty() || output_tokens < 2) return 0;
  return ratio(pieces.back() - pieces.front(), output_tokens - 1);
}

LoadRun run_load(const LoadOptions& options, const std::function<void(std::int64_t)>& progress) {
  return Load(options, progress).go();
}

std::string http_get(const std::string& host, std::uint16_t port, const std::string& target,
                     const std::string& api_key) {
  asio::io_context io;
  tcp::socket socket(io);
  error_code error;
  asio::connect(socket, tcp::resolver(io).resolve(host, std::to_string(port), error), error);
  if (error) fail(ErrorKind::kOption, "no server at {} port {}: {}", host, port, error.message());
  LoadOptions o;
  o.host = host;
  o.api_key = api_key;
  asio::write(socket, asio::buffer(request_text(o, "GET", target, "")), error);
  std::string answer;
  asio::read(socket, asio::dynamic_buffer(answer), error);
  const std::size_t head = answer.find("\r\n\r\n");
  if (head == std::string::npos || answer.compare(9, 3, "200") != 0)
    fail(ErrorKind::kOption, "{} of {} port {}: expected status 200, found {}", target, host, port,
         answer.substr(0, std::min<std::size_t>(answer.find('\r'), 80)));
  return answer.substr(head + 4);
}

}  // namespace mneme::server
