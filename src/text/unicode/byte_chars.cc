#include "src/text/unicode/byte_chars.h"

#include <array>
#include <cstdint>

#include "src/text/unicode/utf8_step.h"

namespace mneme {
namespace {

// Bytes that are printable in Latin-1 represent themselves; the other 68 map to U+0100 and up, in order.
// Source  openai/gpt-2 encoder.py, bytes_to_unicode.
struct Alphabet {
  std::array<char32_t, 256> of_byte{};
  std::array<std::int16_t, 0x144> to_byte{};

  Alphabet() {
    to_byte.fill(-1);
    char32_t next = 0x100;
    for (std::size_t b = 0; b < 256; ++b) {
      const bool visible = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      of_byte[b] = visible ? static_cast<char32_t>(b) : next++;
      to_byte[of_byte[b]] = static_cast<std::int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

std::string to_byte_chars(std::string_view bytes) {
  std::string out;
  for (const unsigned char c : bytes) append_utf8(out, alphabet().of_byte[c]);
  return out;
}

std::optional<std::string> from_byte_chars(std::string_view chars) {
  const Alphabet& table = alphabet();
  std::string out;
  out.reserve(chars.size());
  while (!chars.empty()) {
    const Utf8Step step = utf8_step(chars);
    if (step.kind != Utf8Kind::kCharacter || step.code_point >= table.to_byte.size()) return std::nullopt;
    const std::int16_t byte = table.to_byte[step.code_point];
    if (byte < 0) return std::nullopt;
    out.push_back(static_cast<std::uint8_t>(byte));
    chars.remove_prefix(step.length);
  }
  return out;
}

}  // namespace mneme
