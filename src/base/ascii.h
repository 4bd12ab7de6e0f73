// Classes, case and white space of ASCII text: names in files, headers and commands. Bytes of other characters belong to
// no class and keep their case, whatever the locale.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace mneme {

constexpr std::uint8_t byte_of(char c) {
  return c;
}
constexpr bool is_ascii(char c) {
  return byte_of(c) < 0x80;
}
constexpr bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}
constexpr bool is_upper(char c) {
  return c >= 'A' && c <= 'Z';
}
constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
constexpr bool is_letter(char c) {
  return is_lower(c) || is_upper(c);
}
constexpr bool is_letter_or_digit(char c) {
  return is_letter(c) || is_digit(c);
}
constexpr bool is_hex_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// The i-th letter of the alphabet, from 0.
constexpr char lower_letter(std::uint64_t i) {
  return "abcdefghijklmnopqrstuvwxyz"[i];
}
constexpr char upper_letter(std::uint64_t i) {
  return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i];
}
constexpr char to_lower(char c) {
  return is_upper(c) ? lower_letter(c - 'A') : c;
}
constexpr char to_upper(char c) {
  return is_lower(c) ? upper_letter(c - 'a') : c;
}

inline std::string ascii_lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), to_lower);
  return out;
}

// Without spaces, tabs and line ends at both ends.
inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  return begin == text.npos ? std::string_view() : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace mneme
