// Tensor helpers shared by the checkpoint formats.
#pragma once

#include <cstdint>
#include <span>

#include "src/tensor/view.h"

namespace mneme {

// A view of the first `rank` of dims, outermost first.
inline ConstTensorView view_of_dims(const std::byte* data, DType dtype, std::span<const std::int64_t> dims, int rank) {
  switch (rank) {
    case 1:
      return {data, dtype, {dims[0]}};
    case 2:
      return {data, dtype, {dims[0], dims[1]}};
    case 3:
      return {data, dtype, {dims[0], dims[1], dims[2]}};
    default:
      return {data, dtype, {dims[0], dims[1], dims[2], dims[3]}};
  }
}

}  // namespace mneme
