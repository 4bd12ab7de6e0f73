#include "src/text/grammar/json_text.h"

#include <string_view>

namespace mneme {
namespace {

int hex_digit(std::uint8_t b) {
  if (b >= '0' && b <= '9') return b - '0';
  const int letter = b | 0x20;
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

}  // namespace

JsonText::Step JsonText::step(std::uint8_t byte, std::uint8_t& decoded) {
  decoded = 0xFF;
  switch (mode) {
    case Mode::kPlain:
      return first_byte(byte, decoded);
    case Mode::kMore:
      return more_bytes(byte);
    case Mode::kEscape:
      return escape(byte, decoded);
    case Mode::kHex:
    case Mode::kPairHex:
      return hex(byte);
    case Mode::kPairSlash:
      mode = Mode::kPairU;
      return byte == '\\' ? Step::kInside : Step::kNo;
    case Mode::kPairU:
      return byte == 'u' ? expect_digits(Mode::kPairHex) : Step::kNo;
  }
  return Step::kNo;
}

// A character of one byte, the first byte of a longer one, a backslash, or the closing quote.
JsonText::Step JsonText::first_byte(std::uint8_t byte, std::uint8_t& decoded) {
  if (byte == '"') return Step::kEnd;
  if (byte < 0x20) return Step::kNo;
  if (byte == '\\') {
    mode = Mode::kEscape;
    return Step::kInside;
  }
  if (byte < 0x80) {
    decoded = byte;
    return Step::kCharacter;
  }
  if (byte < 0xC2 || byte > 0xF4) return Step::kNo;
  mode = Mode::kMore;
  left = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
  low = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
  high = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
  return Step::kInside;
}

JsonText::Step JsonText::more_bytes(std::uint8_t byte) {
  if (byte < low || byte > high) return Step::kNo;
  if (--left == 0) return character();
  low = 0x80;
  high = 0xBF;
  return Step::kInside;
}

JsonText::Step JsonText::escape(std::uint8_t byte, std::uint8_t& decoded) {
  constexpr std::string_view kLetters = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
  if (byte == 'u') return expect_digits(Mode::kHex);
  const std::size_t k = kLetters.find(static_cast<char>(byte));
  if (k == std::string_view::npos) return Step::kNo;
  mode = Mode::kPlain;
  decoded = kMeant[k];
  return Step::kCharacter;
}

JsonText::Step JsonText::hex(std::uint8_t byte) {
  const int digit = hex_digit(byte);
  if (digit < 0) return Step::kNo;
  code = static_cast<std::uint16_t>(code * 16 + digit);
  --left;
  const bool second = mode == Mode::kPairHex;
  // Rejected as early as possible: D800 to DBFF starts a pair, DC00 to DFFF ends one.
  if (second && left == 3 && code != 0xD) return Step::kNo;
  if (left == 2 && (code >= 0xDC && code <= 0xDF) != second) return Step::kNo;
  if (left > 0) return Step::kInside;
  if (second || code < 0xD800 || code > 0xDBFF) return character();
  mode = Mode::kPairSlash;
  return Step::kInside;
}

JsonText::Step JsonText::character() {
  *this = {};
  return Step::kCharacter;
}

JsonText::Step JsonText::expect_digits(Mode digits) {
  mode = digits;
  left = 4;
  code = 0;
  return Step::kInside;
}

}  // namespace mneme
