#include "src/engine/stop_matcher.h"

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

StopMatcher::StopMatcher(std::vector<std::string> stop) : stop_(std::move(stop)) {
  std::erase_if(stop_, [](const std::string& s) { return s.empty(); });
}

std::string StopMatcher::push(std::string_view text) {
  if (matched_) return "";
  pending_ += text;
  std::size_t match = std::string::npos;
  std::size_t safe = pending_.size();
  for (const std::string& s : stop_) {
    match = std::min(match, pending_.find(s));
    safe = std::min(safe, possible_start(pending_, s));
  }
  // A string that may yet begin before the match cannot be told from none: the earlier of both decides, later.
  if (match != std::string::npos && match <= safe) {
    matched_ = true;
    return std::exchange(pending_, "").substr(0, match);
  }
  std::string out = pending_.substr(0, safe);
  pending_.erase(0, safe);
  return out;
}

std::string StopMatcher::finish() {
  if (matched_) return "";
  // What was waiting for an earlier beginning may hold a whole string.
  std::size_t match = std::string::npos;
  for (const std::string& s : stop_) match = std::min(match, pending_.find(s));
  matched_ = match != std::string::npos;
  return std::exchange(pending_, "").substr(0, match);
}

}  // namespace mneme
