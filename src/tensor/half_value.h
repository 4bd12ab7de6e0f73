// One element of a bf16 or f16 array as f32, and back: the plain form, at any address.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/tensor/dtype.h"
#include "src/tensor/half.h"

namespace mneme {

// dtype is kBF16 or kF16 throughout.
inline float half_value(std::uint16_t bits, DType dtype) {
  if (dtype == DType::kBF16) return std::bit_cast<bf16>(bits);
  return std::bit_cast<f16>(bits);
}

// Rounded to nearest even.
inline std::uint16_t half_bits(float x, DType dtype) {
  return dtype == DType::kBF16 ? bf16(x).bits : f16(x).bits;
}

// Element i.
inline float load_half(const std::byte* elements, std::int64_t i, DType dtype) {
  std::uint16_t bits;
  std::memcpy(&bits, elements + 2 * i, sizeof(bits));
  return half_value(bits, dtype);
}

}  // namespace mneme
