// UTF-8 validation.
#pragma once

#include <cstddef>
#include <string_view>

namespace mneme {

inline constexpr std::size_t kValidUtf8 = -1;

// Position of the first byte that is not part of a well-formed character, or kValidUtf8. Overlong forms, surrogates and
// values past U+10FFFF are not well-formed.
std::size_t find_invalid_utf8(std::string_view text);

// At most the first n bytes, never ending inside a character. Requires  text is valid UTF-8.
std::string_view utf8_prefix(std::string_view text, std::size_t n);

}  // namespace mneme
