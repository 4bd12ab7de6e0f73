#include "src/text/unicode/unicode_case.h"

#include <algorithm>

#include "src/text/unicode/generated/unicode_tables.h"
#include "src/text/unicode/utf8_step.h"

namespace mneme::unicode {
namespace {

bool in(const std::vector<CodeRange>& ranges, char32_t c) {
  const auto it = std::partition_point(ranges.begin(), ranges.end(), [c](const CodeRange& r) { return r.last < c; });
  return it != ranges.end() && it->first <= c;
}

const std::vector<CaseRun>& runs_of(Case to) {
  return to == Case::kUpper ? kUpperRuns : to == Case::kLower ? kLowerRuns : kTitleRuns;
}
const std::vector<CaseSpecial>& special_of(Case to) {
  return to == Case::kUpper ? kUpperSpecial : to == Case::kLower ? kLowerSpecial : kTitleSpecial;
}

// The character before `byte`; moves `byte` to its start. Requires  byte > 0.
char32_t before(std::string_view text, std::size_t& byte) {
  do --byte;
  while (byte > 0 && (text[byte] & 0xC0) == 0x80);
  return utf8_step(text.substr(byte)).code_point;
}

}  // namespace

std::u32string convert(char32_t c, Case to) {
  const auto& special = special_of(to);
  const auto s = std::partition_point(special.begin(), special.end(), [c](const auto& x) { return x.code < c; });
  if (s != special.end() && s->code == c) return std::u32string(s->to);
  const auto& runs = runs_of(to);
  const auto r = std::partition_point(runs.begin(), runs.end(), [c](const auto& x) { return x.last < c; });
  if (r == runs.end() || c < r->first || (c - r->first) % r->stride != 0) return {c};
  return {static_cast<char32_t>(static_cast<std::int32_t>(c) + r->delta)};
}

bool ends_word(std::string_view text, std::size_t byte) {
  bool cased = false;
  for (std::size_t at = byte; at > 0 && !cased;) {
    const char32_t c = before(text, at);
    cased = in(kCased, c);
    if (!cased && !in(kCaseIgnorable, c)) return false;
  }
  if (!cased) return false;
  for (std::size_t at = byte + 2; at < text.size();) {  // a sigma has two bytes
    const Utf8Step step = utf8_step(text.substr(at));
    if (in(kCased, step.code_point)) return false;
    if (!in(kCaseIgnorable, step.code_point)) return true;
    at += step.length;
  }
  return true;
}

bool is_cased(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return in(kCased, c) || in(kCasedIgnorable, c);
}

bool is_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1c && c <= 0x1f);
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0d);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
         c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_printable(char32_t c) {
  return c >= 0x20 && !in(kUnprintable, c);
}

bool is_line_end(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace mneme::unicode
