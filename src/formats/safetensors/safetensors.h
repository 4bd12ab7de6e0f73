// safetensors parser.
//
// Layout  header length u64, header (JSON: name -> dtype, shape, data_offsets; "__metadata__"), data without holes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/tensor/dtype.h"

namespace mneme {

// Element types that are read. Those beyond the first three are parts of quantised weights.
enum class SafetensorsType : std::uint8_t { kBF16, kF16, kF32, kF8E4M3, kI8, kU8, kI32, kI64 };
std::string_view safetensors_type_name(SafetensorsType type);  // as in files: "BF16", "F8_E4M3"
// Nothing for parts of quantised weights.
std::optional<DType> float_dtype(SafetensorsType type);

struct SafetensorsTensor {
  std::string name;
  int rank = 1;
  std::array<std::int64_t, 5> dims{1, 1, 1, 1, 1};  // outermost first; five where a model sees
  SafetensorsType type = SafetensorsType::kF32;
  std::span<const std::byte> data;

  std::string shape() const;  // "F8_E4M3 [128, 64]"
};

// Whether the data begins at a multiple of its elements' size; the format does not ask for it.
bool is_aligned(const SafetensorsTensor& t);

// Element i. Requires  float_dtype(t.type), is_aligned(t).
float float_at(const SafetensorsTensor& t, std::int64_t i);

// Tensors in the order of their data, as views of `bytes`; `file` names them in errors.
//
// Errors  kFormat: truncated, holes, overlaps, sizes inconsistent with the shape; kUnsupported: element type, rank
//         above 5 (named)
std::vector<SafetensorsTensor> parse_safetensors(std::span<const std::byte> bytes, std::string_view file);

}  // namespace mneme
