// GGUF's numbers for value types and tensor types, and their names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/tensor/dtype.h"

namespace mneme {

enum class GgufType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

inline constexpr std::uint32_t kGgufTypes = 13;
inline constexpr std::uint32_t kGgufDefaultAlignment = 32;

std::string_view gguf_type_name(GgufType type);  // "u32", "string", ...
// Bytes of one value, 0 for strings and arrays.
std::size_t gguf_type_bytes(GgufType type);

// ggml's name of a tensor type; "type 1234" for unknown numbers.
std::string ggml_type_name(std::uint32_t type);
// Nothing for types without kernels in this build.
std::optional<DType> dtype_of_ggml(std::uint32_t type);
// Why this build does not read such a type and what to do, for an error; empty for numbers without a name.
std::string_view refusal_of_ggml(std::uint32_t type);
// Requires  a weight type.
std::uint32_t ggml_of_dtype(DType dtype);
// llama.cpp's general.file_type of a file with most weights in that type. Requires  a weight type.
std::uint32_t gguf_file_type(DType weights);

}  // namespace mneme
