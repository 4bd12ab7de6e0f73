// Elements of keys and indexes in bf16 or f16.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>

#include "src/tensor/dtype.h"
#include "src/tensor/half.h"

namespace mneme {

inline float load_element(const std::byte* elements, std::int64_t i, DType dtype) {
  std::uint16_t bits;
  std::memcpy(&bits, elements + 2 * i, sizeof(bits));
  if (dtype == DType::kBF16) return std::bit_cast<bf16>(bits);
  return std::bit_cast<f16>(bits);
}

// NaN is stored as the quiet one.
inline void store_element(float x, std::byte* elements, std::int64_t i, DType dtype) {
  const std::uint16_t quiet = dtype == DType::kBF16 ? 0x7fc0 : 0x7e00;
  const std::uint16_t bits = std::isnan(x) ? quiet : dtype == DType::kBF16 ? bf16(x).bits : f16(x).bits;
  std::memcpy(elements + 2 * i, &bits, sizeof(bits));
}

}  // namespace mneme
