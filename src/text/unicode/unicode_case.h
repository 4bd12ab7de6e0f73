// Case conversion, white space and printable characters, as in Python's str.
#pragma once

#include <string>
#include <string_view>

namespace mneme::unicode {

enum class Case : unsigned char { kUpper, kLower, kTitle };

// Case mapping of one character: itself, another, or several. Ignores the final sigma rule.
std::u32string convert(char32_t c, Case to);

// Whether the capital sigma at `byte` ends a word.
bool ends_word(std::string_view text, std::size_t byte);

bool is_cased(char32_t c);
bool is_space(char32_t c);
// The property White_Space: is_space() without U+001C to U+001F.
bool is_white_space(char32_t c);
bool is_printable(char32_t c);
// Line boundary of str.splitlines.
bool is_line_end(char32_t c);

}  // namespace mneme::unicode
