#include "apps/eval/figures/paper.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace mneme::eval {
namespace {

constexpr double kCharacter =
    0.62;  // of a font's size: digits of DejaVu Sans, the widest of the usual fonts, have 0.636
constexpr double kMargin = 4;
constexpr std::string_view kStyle =
    "<style>svg{fill:#1f2328}.paper{fill:#fff}.rule{stroke:#ddd}.mark{stroke:#1f2328}"
    "@media(prefers-color-scheme:dark){svg{fill:#e6edf3}.paper{fill:#0d1117}.rule{stroke:#30363d}.mark{stroke:#e6edf3}}"
    "</style>\n";

// The value of an attribute within a tag; "": it has none.
std::string_view attribute(std::string_view tag, std::string_view name) {
  const std::string begin = fmt::format(" {}=\"", name);
  const std::size_t at = tag.find(begin);
  if (at == tag.npos) return "";
  tag.remove_prefix(at + begin.size());
  return tag.substr(0, tag.find('"'));
}

double number_of(std::string_view text, double otherwise) {
  double value = otherwise;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

struct Extent {
  double left, right, bottom;
};

void add_text(std::string_view tag, std::string_view text, Extent& e) {
  const double width = text_width(text, number_of(attribute(tag, "font-size"), 11)),
               x = number_of(attribute(tag, "x"), 0), y = number_of(attribute(tag, "y"), 0);
  const std::string_view anchor = attribute(tag, "text-anchor");
  const double left = anchor == "end" ? x - width : anchor == "middle" ? x - width / 2 : x;
  e.left = std::min(e.left, left - kMargin);
  e.right = std::max(e.right, left + width + kMargin);
  e.bottom = std::max(e.bottom, y + kMargin);
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

double text_width(std::string_view text, double size) {
  double characters = 0;
  bool entity = false;  // "&lt;" is one character
  for (const char c : text) {
    const bool continues = (c & 0xc0) == 0x80;  // of a character in UTF-8
    if (!entity && !continues) ++characters;
    entity = (entity || c == '&') && c != ';';
  }
  return characters * kCharacter * size;
}

std::string svg_page(double width, double height, std::string_view content) {
  Extent e{.left = 0, .right = width, .bottom = height};
  for (std::size_t at = content.find("<text "); at != content.npos; at = content.find("<text ", at + 1)) {
    const std::size_t open = content.find('>', at), close = content.find("</text>", at);
    if (open == content.npos || close == content.npos || close < open) break;
    add_text(content.substr(at, open - at), content.substr(open + 1, close - open - 1), e);
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{1:.0f}\" height=\"{2:.0f}\" viewBox=\"{0:.0f} 0 {1:.0f} "
      "{2:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n{3}<rect class=\"paper\" x=\"{0:.0f}\" y=\"0\" "
      "width=\"100%\" height=\"100%\"/>\n{4}</svg>\n",
      std::floor(e.left), std::ceil(e.right) - std::floor(e.left), std::ceil(e.bottom), kStyle, content);
}

}  // namespace mneme::eval
