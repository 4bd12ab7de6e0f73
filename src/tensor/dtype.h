// Element types of tensors and how many bytes they take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mneme {

enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kI32,
  kU8,
  kQ8_0,  // blocks of 32: f16 scale d, 32 x int8; value = d * q                      (34 bytes)
  kQ4_0,  // blocks of 32: f16 scale d, 16 bytes; value i < 16: d * (low nibble of byte i - 8), i >= 16: high nibble of
          // i - 16 (18 bytes)
};

struct DTypeInfo {
  std::string_view name;  // as in files and options: "f32", "bf16", "q8_0"
  int block;              // elements a block
  int bytes;              // bytes a block
};

const DTypeInfo& dtype_info(DType dtype);
inline std::string_view dtype_name(DType dtype) {
  return dtype_info(dtype).name;
}
inline bool is_quantised(DType dtype) {
  return dtype_info(dtype).block > 1;
}

// Bytes of a row of n elements. Requires  n % block == 0.
std::size_t row_bytes(DType dtype, std::int64_t n);

template <typename T>
struct dtype_of;  // dtype_of<float>::value == DType::kF32

}  // namespace mneme

#include "src/tensor/half.h"

namespace mneme {
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct dtype_of<f16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct dtype_of<std::int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct dtype_of<std::uint8_t> {
  static constexpr DType value = DType::kU8;
};
}  // namespace mneme
