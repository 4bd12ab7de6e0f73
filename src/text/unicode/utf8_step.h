// One step through bytes that may or may not be UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mneme {

enum class Utf8Kind : std::uint8_t {
  kCharacter,   // a well-formed character
  kInvalid,     // bytes that cannot become one, whatever follows: the longest such run that one U+FFFD stands for
  kIncomplete,  // all that is left is the beginning of a character
};

struct Utf8Step {
  Utf8Kind kind = Utf8Kind::kInvalid;
  std::uint8_t length = 1;
  char32_t code_point = 0;  // of a character
};

// What `rest` begins with. The invalid runs are the Unicode standard's maximal subparts (section 3.9, table 3-7), which
// is also what Python's errors="replace" and browsers do.
//
// Requires  rest is not empty.
Utf8Step utf8_step(std::string_view rest);

void append_utf8(std::string& out, char32_t code_point);

}  // namespace mneme
