#include "src/text/answer/mark.h"

namespace mneme {
namespace {

constexpr std::size_t kMaxWhite = 16;

}  // namespace

MarkMatch match_mark(std::string_view mark, std::string_view text, bool last) {
  const Found undecided = last ? Found::kNo : Found::kPartly;
  std::size_t at = 0;
  for (std::size_t m = 0; m < mark.size();) {
    if (is_white(mark[m])) {
      while (is_white(mark[m])) ++m;
      const std::size_t most = at + kMaxWhite;
      while (at < text.size() && at < most && is_white(text[at])) ++at;
      continue;
    }
    if (at == text.size()) return {undecided, 0};
    if (text[at] != mark[m]) return {};
    ++at, ++m;
  }
  return {Found::kWhole, at};
}

void append_spelled(std::string_view text, std::string& out) {
  while (!text.empty()) {
    const std::size_t end = text.find_first_of("\xFE\xFF");
    out += text.substr(0, end);
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

std::string spelled(std::string_view text) {
  std::string out;
  append_spelled(text, out);
  return out;
}

}  // namespace mneme
