#include "src/server/api/tagged_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/ascii.h"
#include "src/server/reply/unique_id.h"

namespace mneme::server {
namespace {

// The client's own id, where a header and a log line may contain it.
bool is_usable(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.';
  });
}

std::string printable(std::string_view text) {
  std::string out(text.substr(0, 200));
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return out;
}

}  // namespace

TaggedWriter::TaggedWriter(std::shared_ptr<ResponseWriter> inner, const HttpRequest& request,
                           const ServerOptions& options, Metrics& metrics)
    : inner_(std::move(inner)),
      options_(options),
      metrics_(metrics),
      of_messages_(request.path.starts_with("/v1/messages")),
      start_(std::chrono::steady_clock::now()) {
  const std::string_view given = request.header("x-request-id");
  request_id_ = is_usable(given) ? std::string(given) : unique_id();
  line_ = printable(request.method) + " " + printable(request.path);
}

void TaggedWriter::tag(HttpResponse& response) const {
  response.headers.emplace_back("X-Request-Id", request_id_);
  if (of_messages_) response.headers.emplace_back("request-id", request_id_);  // as Anthropic's clients read it
}

void TaggedWriter::done(int status) const {
  metrics_.count_request(route_, status);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
  options_.log(fmt::format("{} {} {} {:.3f} s", request_id_, line_, status, seconds.count()));
}

void TaggedWriter::respond(HttpResponse response) {
  tag(response);
  done(response.status);
  inner_->respond(std::move(response));
}

void TaggedWriter::begin_stream(HttpResponse head, StreamWords words) {
  tag(head);
  inner_->begin_stream(std::move(head), std::move(words));
}

void TaggedWriter::end() {
  done(200);
  inner_->end();
}

void TaggedWriter::on_close(std::function<void()> closed) {
  // nginx's number for it.
  constexpr int kClientGone = 499;
  inner_->on_close([weak = weak_from_this(), closed = std::move(closed)] {
    if (const auto self = weak.lock()) self->done(kClientGone);
    closed();
  });
}

}  // namespace mneme::server
