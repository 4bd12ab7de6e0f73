// Upper and lower case, white space and printable characters, as Python's str has them.
#pragma once

#include <string>
#include <string_view>

namespace mneme::unicode {

enum class Case : unsigned char { kUpper, kLower, kTitle };

// What one character becomes: itself, another, or several. A sigma at the end of a word is not told from others here.
std::u32string convert(char32_t c, Case to);

// The capital sigma at `byte` of the text ends a word.
bool ends_word(std::string_view text, std::size_t byte);

bool is_cased(char32_t c);
bool is_space(char32_t c);
bool is_printable(char32_t c);
// Ends a line, as str.splitlines has it.
bool is_line_end(char32_t c);

}  // namespace mneme::unicode
