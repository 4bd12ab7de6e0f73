// Marks of a format in the bytes of an answer.
//
// Special tokens are written into those bytes as their spelling between kTokenBegin and kTokenEnd, which no text
// contains: text that spells a special token is then another sequence of bytes than the token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/ascii.h"

namespace mneme {

inline constexpr char kTokenBegin = '\xFE', kTokenEnd = '\xFF';

inline bool is_white(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

inline unsigned char byte_index(char c) {
  return static_cast<unsigned char>(c);
}

enum class Found : std::uint8_t { kNo, kPartly, kWhole };

struct MarkMatch {
  Found found = Found::kNo;
  std::size_t length = 0;  // kWhole: bytes of the text
};

// The mark at the beginning of `text`. White space within the mark matches any of up to 16 bytes. kPartly: more text
// decides; never where `last` says that there is none.
//
// Requires  the mark is not empty and begins and ends with no white space.
MarkMatch match_mark(std::string_view mark, std::string_view text, bool last);

// Without kTokenBegin and kTokenEnd: special tokens as they are spelled.
std::string spelled(std::string_view text);
void append_spelled(std::string_view text, std::string& out);

}  // namespace mneme
