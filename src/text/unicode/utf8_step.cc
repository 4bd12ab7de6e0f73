#include "src/text/unicode/utf8_step.h"

#include <array>

namespace mneme {
namespace {

// Properties of a lead byte: length of its character, and the range of the second byte, which rejects overlong forms
// (E0, F0), surrogates (ED) and values past U+10FFFF (F4).
struct Lead {
  std::uint8_t length, low, high;
};

Lead lead_of(std::uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view rest) {
  const std::uint8_t first = rest[0];
  Lead lead = lead_of(first);
  if (lead.length == 1) return {Utf8Kind::kCharacter, 1, first};
  if (lead.length == 0) return {Utf8Kind::kInvalid, 1, 0};
  char32_t code = first & (0x7Fu >> lead.length);
  for (std::uint8_t i = 1; i < lead.length; ++i) {
    if (i == rest.size()) return {Utf8Kind::kIncomplete, i, 0};
    const std::uint8_t byte = rest[i];
    if (byte < lead.low || byte > lead.high) return {Utf8Kind::kInvalid, i, 0};
    lead.low = 0x80;
    lead.high = 0xBF;
    code = (code << 6) | (byte & 0x3Fu);
  }
  return {Utf8Kind::kCharacter, lead.length, code};
}

void append_utf8(std::string& out, char32_t code) {
  auto put = [&](char32_t byte) { out.push_back(static_cast<std::uint8_t>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

}  // namespace mneme
