#include "apps/eval/scorers/words.h"

#include <algorithm>
#include <cctype>

#include "src/base/ascii.h"
#include "src/text/unicode/unicode_case.h"
#include "src/text/unicode/utf8_step.h"

namespace mneme::eval {
namespace {

// string.punctuation: the ASCII characters that are neither letters, digits, white space nor controls.
bool is_punctuation(char32_t c) {
  return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) || (c >= 0x7B && c <= 0x7E);
}

// Punctuation of Chinese text, beside ASCII's.
bool is_cjk_punctuation(char32_t c) {
  static constexpr std::u32string_view kOthers = U"–—‘’‛“”„‟…‧﹏";
  return (c >= 0x3000 && c <= 0x301F) || c == 0x3030 || c == 0x303E || c == 0x303F || (c >= 0xFF01 && c <= 0xFF0F) ||
         (c >= 0xFF1A && c <= 0xFF20) || (c >= 0xFF3B && c <= 0xFF40) || (c >= 0xFF5B && c <= 0xFF64) ||
         kOthers.find(c) != std::u32string_view::npos;
}

// Whether \b is between two bytes: letters, digits, underscores and all of UTF-8 beyond ASCII count as word characters.
bool is_word_byte(char c) {
  return is_letter_or_digit(c) || c == '_' || !is_ascii(c);
}

std::string without_articles(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && is_word_byte(text[end])) ++end;
    const std::string_view word = text.substr(i, end - i);
    if (word == "a" || word == "an" || word == "the")
      out += ' ';
    else
      out += word;
    if (end < text.size()) out += text[end++];
    i = end;
  }
  return out;
}

}  // namespace

std::u32string characters(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    out += step.kind == Utf8Kind::kCharacter ? step.code_point : U'\uFFFD';
    text.remove_prefix(step.kind == Utf8Kind::kIncomplete ? text.size() : step.length);
  }
  return out;
}

std::string lowered(std::string_view text) {
  std::string out;
  for (char32_t c : characters(text))
    for (char32_t l : unicode::convert(c, unicode::Case::kLower)) append_utf8(out, l);
  return out;
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words(1);
  for (char32_t c : characters(text))
    if (!unicode::is_space(c))
      append_utf8(words.back(), c);
    else if (!words.back().empty())
      words.emplace_back();
  if (words.back().empty()) words.pop_back();
  return words;
}

std::vector<std::string_view> split_at(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t at = text.find(separator); at != std::string_view::npos; at = text.find(separator)) {
    parts.push_back(text.substr(0, at));
    text.remove_prefix(at + 1);
  }
  parts.push_back(text);
  return parts;
}

std::string_view stripped(std::string_view text) {
  const auto space = [](unsigned char c) { return std::isspace(c) != 0; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

std::string replaced_all(std::string text, std::string_view what, std::string_view by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

std::vector<std::string> digit_runs(std::string_view text) {
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!is_digit(text[i])) continue;
    if (i == 0 || !is_digit(text[i - 1])) runs.emplace_back();
    runs.back() += text[i];
  }
  return runs;
}

std::string normalised(std::string_view text) {
  std::string plain;
  for (const unsigned char c : lowered(text))
    if (!is_punctuation(c)) plain += c;
  std::string out;
  for (const std::string& word : split_words(without_articles(plain))) {
    if (!out.empty()) out += ' ';
    out += word;
  }
  return out;
}

std::vector<std::string> normalised_characters(std::string_view text) {
  std::vector<std::string> out;
  for (char32_t c : characters(lowered(text))) {
    if (unicode::is_space(c) || is_punctuation(c) || is_cjk_punctuation(c)) continue;
    out.emplace_back();
    append_utf8(out.back(), c);
  }
  return out;
}

}  // namespace mneme::eval
