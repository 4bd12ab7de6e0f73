#include "src/server/turns/sealed_thought.h"

#include <array>
#include <cstdint>

#include "src/text/unicode/utf8.h"

namespace mneme::server {
namespace {

constexpr std::string_view kSealBegin = "mn1.";
constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr std::size_t kSealSum = 8;

// FNV-1a, the first byte first.
std::string checksum_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  std::string out;
  for (std::size_t i = 0; i < kSealSum; ++i) out += static_cast<char>((hash >> (8 * i)) & 0xff);
  return out;
}

std::string to_base64(std::string_view bytes) {
  std::string out;
  std::uint32_t bits = 0;
  int n = 0;
  for (const char c : bytes) {
    bits = (bits << 8) | static_cast<unsigned char>(c);
    for (n += 8; n >= 6; n -= 6) out += kBase64[(bits >> (n - 6)) & 63];
  }
  if (n > 0) out += kBase64[(bits << (6 - n)) & 63];
  return out;
}

std::optional<std::string> from_base64(std::string_view text) {
  static const std::array<std::int8_t, 256> kValues = [] {
    std::array<std::int8_t, 256> values;
    values.fill(-1);
    for (std::size_t i = 0; i < kBase64.size(); ++i) values[static_cast<unsigned char>(kBase64[i])] = std::int8_t(i);
    return values;
  }();
  std::string out;
  std::uint32_t bits = 0;
  int n = 0;
  for (const char c : text) {
    const int value = kValues[static_cast<unsigned char>(c)];
    if (value < 0) return std::nullopt;
    bits = (bits << 6) | static_cast<std::uint32_t>(value);
    n += 6;
    if (n < 8) continue;
    n -= 8;
    out += static_cast<char>((bits >> n) & 0xff);
  }
  return out;
}

}  // namespace

std::string seal_thought(std::string_view thought) {
  return std::string(kSealBegin) + to_base64(std::string(thought) + checksum_of(thought));
}

std::optional<std::string> open_thought(std::string_view sealed) {
  if (!sealed.starts_with(kSealBegin)) return std::nullopt;
  std::optional<std::string> bytes = from_base64(sealed.substr(kSealBegin.size()));
  if (!bytes || bytes->size() < kSealSum) return std::nullopt;
  std::string thought = bytes->substr(0, bytes->size() - kSealSum);
  if (bytes->substr(thought.size()) != checksum_of(thought) || find_invalid_utf8(thought) != kValidUtf8)
    return std::nullopt;
  return thought;
}

}  // namespace mneme::server
