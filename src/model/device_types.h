// Which weight types the device has kernels for.
#pragma once

#include <string_view>

#include "src/model/model.h"

namespace mneme {

// Errors  kUnsupported: a matrix in a type that the device does not multiply; names it, the type and what works instead.
void expect_device_types(const Model& model);
// The same for one matrix.
void expect_device_type(std::string_view tensor, DType type);

}  // namespace mneme
