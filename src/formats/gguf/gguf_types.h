// The numbers that GGUF files use for types of values and of tensors, and their names.
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

// A tensor type's name as ggml writes it, "type 1234" for numbers that have none.
std::string ggml_type_name(std::uint32_t type);
// Nothing for types that this build has no kernels for.
std::optional<DType> dtype_of_ggml(std::uint32_t type);
// Requires  a type that weights may have.
std::uint32_t ggml_of_dtype(DType dtype);

}  // namespace mneme
