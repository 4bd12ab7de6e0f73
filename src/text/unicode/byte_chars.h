// GPT-2's printable alphabet: each byte is one visible character, so that a vocabulary can be stored in JSON. "Ġ" is a
// space, "Ċ" a newline.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mneme {

// " the" becomes "Ġthe".
std::string to_byte_chars(std::string_view bytes);

// The bytes of a vocabulary entry; nothing where a character is not in the alphabet.
std::optional<std::string> from_byte_chars(std::string_view chars);

}  // namespace mneme
