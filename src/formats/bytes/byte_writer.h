// Appends little-endian values; the inverse of ByteReader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace mneme {

class ByteWriter {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T>
  void put(T value) { put(std::as_bytes(std::span(&value, 1))); }
  // A length (u64) and that many bytes.
  void put(std::string_view text) {
    put(std::uint64_t{text.size()});
    put(std::as_bytes(std::span(text)));
  }
  void put(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  // Appends the numbers without their count.
  template <typename T>
  void put_all(const std::vector<T>& values) {
    put(std::as_bytes(std::span(values)));
  }

  std::span<const std::byte> get() const { return bytes_; }
  std::vector<std::byte> take() && { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace mneme
