#include "src/engine/answer/scoped_stops.h"

#include <utility>

#include "src/text/answer/mark.h"

namespace mneme {
namespace {

// Without special tokens, which are no text of an answer.
std::string plain(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const std::size_t begin = bytes.find(kTokenBegin);
    out += bytes.substr(0, begin);
    if (begin == std::string_view::npos) break;
    const std::size_t end = bytes.find(kTokenEnd, begin);
    if (end == std::string_view::npos) break;
    bytes.remove_prefix(end + 1);
  }
  return out;
}

bool has_text(const std::vector<std::string>& strings) {
  for (const std::string& s : strings)
    if (!s.empty()) return true;
  return false;
}

}  // namespace

ScopedStops::ScopedStops(std::vector<std::string> stop, bool keep, std::shared_ptr<const AnswerScope> scope)
    : matcher_(stop, keep), scope_(std::move(scope)) {
  if (scope_ != nullptr && has_text(stop)) parser_ = AnswerParser::make(*scope_);
}

std::string ScopedStops::text_up_to(std::size_t end) {
  std::string text = plain(std::string_view(bytes_).substr(0, end - told_));
  bytes_.erase(0, end - told_);
  told_ = end;
  return text;
}

std::string ScopedStops::take(const std::vector<AnswerEvent>& events) {
  std::string out;
  for (const AnswerEvent& event : events) {
    if (matched()) break;
    std::string text = text_up_to(event.end), content;
    // White space and marks before a text are not part of it.
    if (event.part == AnswerPart::kText) content = text.ends_with(event.text) ? event.text : text;
    text.resize(text.size() - content.size());
    if (!text.empty()) out += matcher_.finish();
    if (matched()) break;
    out += text + matcher_.push(content);
  }
  return out;
}

std::string ScopedStops::feed(std::string_view bytes) {
  bytes_ += bytes;
  std::vector<AnswerEvent> events;
  parser_->push(bytes, events);
  return take(events);
}

std::string ScopedStops::push(std::string_view text) {
  if (parser_ == nullptr) return matcher_.push(text);
  return matched() || text.empty() ? std::string() : feed(text);
}

bool ScopedStops::is_mark(TokenId token) const {
  return scope_ != nullptr && !scope_->marks->bytes_of(token).empty();
}

std::string ScopedStops::push_special(TokenId token) {
  if (parser_ == nullptr || matched()) return {};
  const std::string_view bytes = scope_->marks->bytes_of(token);
  return bytes.empty() ? std::string() : feed(bytes);
}

std::string ScopedStops::finish() {
  if (parser_ == nullptr || matched()) return matcher_.finish();
  std::vector<AnswerEvent> events;
  parser_->finish(events);
  std::string out = take(events);
  if (matched()) return out;
  out += matcher_.finish();
  return out + text_up_to(told_ + bytes_.size());
}

}  // namespace mneme
