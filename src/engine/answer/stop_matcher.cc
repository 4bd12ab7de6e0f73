#include "src/engine/answer/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace mneme {
namespace {

// Where the longest end of `text` that begins `stop` starts; text.size() if there is none.
std::size_t possible_start(std::string_view text, std::string_view stop) {
  const std::size_t longest = std::min(text.size(), stop.size() - 1);
  for (std::size_t n = longest; n > 0; --n)
    if (text.ends_with(stop.substr(0, n))) return text.size() - n;
  return text.size();
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stop, bool keep) : stop_(std::move(stop)), keep_(keep) {
  std::erase_if(stop_, [](const std::string& s) { return s.empty(); });
}

StopMatcher::Match StopMatcher::first_match() const {
  Match first;
  for (const std::string& s : stop_) {
    const std::size_t at = pending_.find(s);
    if (at < first.begin || (at == first.begin && at != std::string::npos && s.size() < first.size))
      first = {.begin = at, .size = s.size()};
  }
  return first;
}

// The text up to the match, which it ends.
std::string StopMatcher::end_at(Match match) {
  matched_ = true;
  matched_string_ = pending_.substr(match.begin, match.size);
  return std::exchange(pending_, "").substr(0, match.begin + (keep_ ? match.size : 0));
}

std::string StopMatcher::push(std::string_view text) {
  if (matched_) return "";
  pending_ += text;
  const Match match = first_match();
  std::size_t safe = pending_.size();
  for (const std::string& s : stop_) safe = std::min(safe, possible_start(pending_, s));
  // A string that may yet begin before the match cannot be told from none: the earlier of both decides, later.
  if (match.begin != std::string::npos && match.begin <= safe) return end_at(match);
  std::string out = pending_.substr(0, safe);
  pending_.erase(0, safe);
  return out;
}

std::string StopMatcher::finish() {
  if (matched_) return "";
  // What was waiting for an earlier beginning may hold a whole string.
  const Match match = first_match();
  if (match.begin != std::string::npos) return end_at(match);
  return std::exchange(pending_, "");
}

}  // namespace mneme
