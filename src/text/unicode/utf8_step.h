// Decodes one step of bytes that may not be UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mneme {

enum class Utf8Kind : std::uint8_t {
  kCharacter,   // a well-formed character
  kInvalid,     // bytes that cannot form one: the longest run that one U+FFFD represents
  kIncomplete,  // all remaining bytes are the start of a character
};

struct Utf8Step {
  Utf8Kind kind = Utf8Kind::kInvalid;
  std::uint8_t length = 1;
  char32_t code_point = 0;  // of a character
};

// Classifies the start of `rest`. Invalid runs are the Unicode standard's maximal subparts (section 3.9, table 3-7), as
// in Python's errors="replace" and in browsers.
//
// Requires  rest is not empty.
Utf8Step utf8_step(std::string_view rest);

void append_utf8(std::string& out, char32_t code_point);

}  // namespace mneme
