// Where blocks of quantised weights have their scales: tests set them to values that a random block would not have.
#pragma once

#include <cstddef>
#include <vector>

#include "src/tensor/dtype.h"

namespace mneme {

// Offsets of the f16 scales and minima in a block.
inline std::vector<std::size_t> scale_offsets(DType dtype) {
  switch (dtype) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108};
    case DType::kQ6_K:
      return {208};
    case DType::kMXFP4:
    case DType::kFp8:
    case DType::kInt4:
    case DType::kInt8:
    case DType::kNVFP4:
      return {};
    default:
      return {0};
  }
}

}  // namespace mneme
