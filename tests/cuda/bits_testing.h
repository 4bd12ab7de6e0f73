// Tensors of the host, and bits of bf16 from the device, as numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "src/tensor/buffer.h"
#include "src/tensor/half.h"

namespace mneme {

// The first n of an f32 tensor.
inline std::vector<float> floats_of(const Tensor& t, std::int64_t n) {
  return {t.as<float>(), t.as<float>() + n};
}

inline double value(std::uint16_t bits) {
  bf16 v;
  v.bits = bits;
  return static_cast<double>(static_cast<float>(v));
}

}  // namespace mneme
