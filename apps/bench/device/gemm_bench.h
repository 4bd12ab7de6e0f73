// Skinny GEMMs of a layer's matrices, alone, on a device.
#pragma once

#include <array>
#include <cstdint>

#include "src/tensor/dtype.h"

namespace mneme {

inline constexpr std::array kGemmNames = {"qkv", "o", "gate_up", "down"};

struct GemmCase {
  DType weights = DType::kBF16;
  std::int32_t rows = 1;
  std::int32_t splits = 0;  // parts of K; 0: as the shape needs
};
struct GemmResult {  // of one layer: the median over graphs of many layers
  std::array<double, kGemmNames.size()> seconds{}, bytes{};
  double layer_seconds = 0;  // of all four, one after the other
  double layer_bytes() const { return bytes[0] + bytes[1] + bytes[2] + bytes[3]; }
};

}  // namespace mneme
