// The inside of a JSON string, byte by byte.
#pragma once

#include <cstdint>

namespace mneme {

struct JsonText {
  enum class Mode : std::uint8_t {
    kPlain,      // between characters
    kMore,       // bytes of a character are missing: `left` of them, the next one from `low` to `high`
    kEscape,     // behind a backslash
    kHex,        // behind \u: `left` digits are missing, `code` are those before
    kPairSlash,  // behind the first half of a pair: the backslash,
    kPairU,      // then the u,
    kPairHex,    // then the second half
  };
  Mode mode = Mode::kPlain;
  std::uint8_t left = 0, low = 0, high = 0;
  std::uint16_t code = 0;

  enum class Step : std::uint8_t { kNo, kInside, kCharacter, kEnd };
  // What a byte does: not allowed, within a character, the last of one, the closing quote. Only well-formed UTF-8, and
  // \u escapes only of characters (a pair of surrogates is one). `decoded` is the character where it has one byte, else
  // 0xFF.
  Step step(std::uint8_t byte, std::uint8_t& decoded);
};

}  // namespace mneme
