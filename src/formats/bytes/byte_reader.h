// Bounds-checked reader of little-endian values from untrusted bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "src/base/error.h"
#include "src/text/unicode/utf8.h"

namespace mneme {

static_assert(std::endian::native == std::endian::little,
              "checkpoint files are little-endian and are mapped as they are");

class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  std::size_t position() const { return position_; }
  std::size_t remaining() const { return bytes_.size() - position_; }

  // Takes n bytes; `what` names them in the error. Errors  kFormat: fewer than n bytes remain.
  std::span<const std::byte> take(std::uint64_t n, std::string_view what) {
    if (n > remaining())
      fail(ErrorKind::kFormat, "{}: {} at byte {} needs {} bytes, the file has {} left: truncated or damaged", file_,
           what, position_, n, remaining());
    const auto piece = bytes_.subspan(position_, n);
    position_ += n;
    return piece;
  }

  template <typename T>
  T read(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  // Reads to.size() numbers.
  template <typename T>
  void fill(std::span<T> to, std::string_view what) {
    const auto bytes = take(to.size_bytes(), what);
    if (!to.empty()) std::memcpy(to.data(), bytes.data(), bytes.size());
  }

  // Reads a length (u64) and that many bytes of UTF-8. Errors  kFormat: truncated, or invalid UTF-8.
  std::string_view string(std::string_view what) {
    const auto length = read<std::uint64_t>(what);
    const std::size_t begin = position_;
    const auto raw = take(length, what);
    const std::string_view text(reinterpret_cast<const char*>(raw.data()), raw.size());
    if (const std::size_t bad = find_invalid_utf8(text); bad != kValidUtf8)
      fail(ErrorKind::kFormat, "{}: {} is not valid UTF-8: byte {:#04x} at {} of the file", file_, what,
           static_cast<unsigned>(raw[bad]), begin + bad);
    return text;
  }

 private:
  std::span<const std::byte> bytes_;
  std::string_view file_;
  std::size_t position_ = 0;
};

}  // namespace mneme
