// GPT-2's printable alphabet: each byte is written as one visible character, so that a vocabulary can live in JSON. "Ġ"
// is a space, "Ċ" a newline.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mneme {

// " the" becomes "Ġthe".
std::string to_byte_chars(std::string_view bytes);

// The bytes that a vocabulary entry stands for; nothing where a character is not of the alphabet.
std::optional<std::string> from_byte_chars(std::string_view chars);

}  // namespace mneme
