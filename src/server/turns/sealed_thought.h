// A thought as the opaque text that clients keep and send back: `encrypted_content` of a reasoning item, `signature` of
// a thinking block. It is not secret: anybody can read it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mneme::server {

// Letters, digits, '-' and '_' after "mn1.".
std::string seal_thought(std::string_view thought);
// Nothing: a text that seal_thought() did not make.
std::optional<std::string> open_thought(std::string_view sealed);

}  // namespace mneme::server
