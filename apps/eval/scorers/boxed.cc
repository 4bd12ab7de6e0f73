#include "apps/eval/scorers/boxed.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "apps/eval/scorers/words.h"

namespace mneme::eval {
namespace {

// The end of what a brace at `open` holds; npos: it does not close.
std::size_t closing(std::string_view text, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return i;
  }
  return std::string_view::npos;
}

// \sqrt3 -> \sqrt{3}: the character behind `command` gets braces.
std::string with_braces(std::string text, std::string_view command) {
  for (std::size_t at = text.find(command); at != std::string::npos; at = text.find(command, at + 1)) {
    const std::size_t i = at + command.size();
    if (i >= text.size() || text[i] == '{' || text[i] == '[') continue;
    text = text.substr(0, i) + "{" + text[i] + "}" + text.substr(i + 1);
  }
  return text;
}

// \frac12 -> \frac{1}{2}, \frac1{72} -> \frac{1}{72}, \frac{1}2 -> \frac{1}{2}.
std::string with_fraction_braces(std::string text) {
  static constexpr std::string_view kFrac = "\\frac";
  for (std::size_t at = text.find(kFrac); at != std::string::npos; at = text.find(kFrac, at + 1)) {
    std::size_t i = at + kFrac.size();
    for (int part = 0; part < 2 && i < text.size(); ++part) {
      if (text[i] != '{') text = text.substr(0, i) + "{" + text[i] + "}" + text.substr(i + 1);
      const std::size_t end = closing(text, i);
      if (end == std::string::npos) return text;
      i = end + 1;
    }
  }
  return text;
}

bool is_integer(std::string_view text) {
  if (text.starts_with("-")) text.remove_prefix(1);
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string slash_as_fraction(const std::string& text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos || text.find('/', slash + 1) != std::string::npos) return text;
  const std::string a = text.substr(0, slash), b = text.substr(slash + 1);
  return is_integer(a) && is_integer(b) ? "\\frac{" + a + "}{" + b + "}" : text;
}

}  // namespace

std::optional<std::string> last_boxed(std::string_view text) {
  const auto last = [&](std::string_view mark) { return text.rfind(mark); };
  std::size_t at = last("\\boxed");
  if (at == std::string_view::npos) at = last("\\fbox");
  if (at == std::string_view::npos) return {};
  std::size_t i = at + (text.substr(at).starts_with("\\boxed") ? 6 : 5);
  if (i < text.size() && text[i] == ' ') {
    ++i;
    return std::string(text.substr(i, text.find('$', i) - i));
  }
  if (i >= text.size() || text[i] != '{') return {};
  const std::size_t end = closing(text, i);
  if (end == std::string_view::npos) return {};
  return std::string(text.substr(i + 1, end - i - 1));
}

std::optional<std::string> first_boxed_behind(std::string_view text, std::string_view mark) {
  const std::size_t from = text.find(mark);
  if (from == std::string_view::npos) return {};
  static constexpr std::string_view kBox = "\\boxed{";
  for (std::size_t at = text.find(kBox, from); at != std::string_view::npos; at = text.find(kBox, at + 1)) {
    const std::size_t open = at + kBox.size() - 1, end = closing(text, open);
    if (end == std::string_view::npos) continue;
    const std::string_view inside = text.substr(open + 1, end - open - 1);
    int depth = 0, deepest = 0;
    for (char c : inside) {
      depth += c == '{' ? 1 : c == '}' ? -1 : 0;
      deepest = std::max(deepest, depth);
    }
    if (deepest <= 1) return std::string(inside);
  }
  return {};
}

std::string normal_latex(std::string_view answer) {
  std::string s(answer);
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kRemoved = {{
      {"\n", ""},
      {"\\!", ""},
      {"\\\\", "\\"},
      {"tfrac", "frac"},
      {"dfrac", "frac"},
      {"\\left", ""},
      {"\\right", ""},
      {"^{\\circ}", ""},
      {"^\\circ", ""},
      {"\\$", ""},
      {"\\%", ""},
      {"%", ""},
  }};
  for (std::size_t i = 0; i < 10; ++i) s = replaced_all(s, kRemoved[i].first, kRemoved[i].second);
  if (const std::size_t unit = s.find("\\text{ "); unit != std::string::npos) s.resize(unit);
  for (std::size_t i = 10; i < kRemoved.size(); ++i) s = replaced_all(s, kRemoved[i].first, kRemoved[i].second);
  s = replaced_all(s, " .", " 0.");
  s = replaced_all(s, "{.", "{0.");
  if (s.starts_with(".")) s = "0" + s;
  if (const std::size_t equal = s.find('=');
      equal != std::string::npos && equal <= 2 && s.find('=', equal + 1) == std::string::npos)
    s = s.substr(equal + 1);
  s = with_braces(s, "\\sqrt");
  s = replaced_all(s, " ", "");
  s = with_fraction_braces(s);
  if (s == "0.5") s = "\\frac{1}{2}";
  return slash_as_fraction(s);
}

}  // namespace mneme::eval
