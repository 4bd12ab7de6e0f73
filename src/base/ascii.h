// Case and white space of ASCII text: names in files, headers and commands. Bytes of other characters stay.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

namespace mneme {

inline std::string ascii_lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// Without spaces, tabs and line ends at both ends.
inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  return begin == text.npos ? std::string_view() : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace mneme
