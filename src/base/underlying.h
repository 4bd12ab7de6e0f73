#pragma once

#include <type_traits>

namespace mneme {

// The number of an enumerator, for messages, tables and files (std::to_underlying of C++23).
template <typename Enum>
requires std::is_enum_v<Enum>
constexpr std::underlying_type_t<Enum> underlying(Enum value) {
  return static_cast<std::underlying_type_t<Enum>>(value);
}

}  // namespace mneme
