#include "src/text/unicode/utf8.h"

#include <cstdint>
#include <cstring>

#include "src/base/ascii.h"

namespace mneme {
namespace {

bool is_continuation(unsigned char c) {
  return (c & 0xc0u) == 0x80u;
}

// Length of the well-formed character at `i`; 0 when there is none.
std::size_t character_length(std::string_view s, std::size_t i) {
  const auto at = [&](std::size_t k) { return byte_of(s[i + k]); };
  const std::size_t left = s.size() - i;
  const unsigned char c = at(0);
  if (c < 0x80) return 1;
  if (c >= 0xc2 && c <= 0xdf) return left >= 2 && is_continuation(at(1)) ? 2 : 0;
  if (c >= 0xe0 && c <= 0xef) {
    if (left < 3 || !is_continuation(at(1)) || !is_continuation(at(2))) return 0;
    if (c == 0xe0 && at(1) < 0xa0) return 0;  // overlong
    if (c == 0xed && at(1) > 0x9f) return 0;  // surrogate
    return 3;
  }
  if (c >= 0xf0 && c <= 0xf4) {
    if (left < 4 || !is_continuation(at(1)) || !is_continuation(at(2)) || !is_continuation(at(3))) return 0;
    if (c == 0xf0 && at(1) < 0x90) return 0;  // overlong
    if (c == 0xf4 && at(1) > 0x8f) return 0;  // past U+10FFFF
    return 4;
  }
  return 0;
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    while (i + 8 <= text.size()) {  // eight ASCII characters at a time
      std::uint64_t word;
      std::memcpy(&word, text.data() + i, 8);
      if ((word & 0x8080808080808080ull) != 0) break;
      i += 8;
    }
    if (i == text.size()) break;
    const std::size_t n = character_length(text, i);
    if (n == 0) return i;
    i += n;
  }
  return kValidUtf8;
}

std::string_view utf8_prefix(std::string_view text, std::size_t n) {
  if (text.size() <= n) return text;
  while (n > 0 && is_continuation(text[n])) --n;
  return text.substr(0, n);
}

}  // namespace mneme
