// safetensors parser.
//
// Layout  header length u64, header (JSON: name -> dtype, shape, data_offsets; "__metadata__"), data without holes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/tensor/dtype.h"

namespace mneme {

struct SafetensorsTensor {
  std::string name;
  int rank = 1;
  std::array<std::int64_t, 4> dims{1, 1, 1, 1};  // outermost first
  DType dtype = DType::kF32;
  std::span<const std::byte> data;
};

// Tensors in the order of their data, as views of `bytes`; `file` names them in errors.
//
// Errors  kFormat: truncated, holes, overlaps, sizes inconsistent with the shape; kUnsupported: element type, rank
//         above 4 (named)
std::vector<SafetensorsTensor> parse_safetensors(std::span<const std::byte> bytes, std::string_view file);

}  // namespace mneme
