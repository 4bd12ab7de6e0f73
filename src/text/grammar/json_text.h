// State machine for the inside of a JSON string, byte by byte.
#pragma once

#include <cstdint>

namespace mneme {

struct JsonText {
  enum class Mode : std::uint8_t {
    kPlain,      // between characters
    kMore,       // `left` bytes of a character are missing, the next from `low` to `high`
    kEscape,     // after a backslash
    kHex,        // after \u: `left` digits are missing, `code` holds those so far
    kPairSlash,  // after the first surrogate of a pair: the backslash,
    kPairU,      // then the u,
    kPairHex,    // then the second surrogate
  };
  Mode mode = Mode::kPlain;
  std::uint8_t left = 0, low = 0, high = 0;
  std::uint16_t code = 0;

  enum class Step : std::uint8_t { kNo, kInside, kCharacter, kEnd };
  // Consumes a byte: not allowed, inside a character, last of a character, or the closing quote. Accepts only
  // well-formed UTF-8, and \u escapes only of characters (a surrogate pair is one). `decoded` is the character if it
  // has one byte, else 0xFF.
  Step step(std::uint8_t byte, std::uint8_t& decoded);

 private:
  Step first_byte(std::uint8_t byte, std::uint8_t& decoded);
  Step more_bytes(std::uint8_t byte);
  Step escape(std::uint8_t byte, std::uint8_t& decoded);
  Step hex(std::uint8_t byte);
  Step character();
  Step expect_digits(Mode digits);
};

}  // namespace mneme
