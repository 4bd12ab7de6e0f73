#include "src/checkpoint/gguf_types.h"

#include <fmt/format.h>

#include <array>

#include "src/base/check.h"

namespace mneme {

std::string_view gguf_type_name(GgufType type) {
  static constexpr std::array<std::string_view, kGgufTypes> kNames = {
      "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
  return kNames.at(static_cast<std::size_t>(type));
}

std::size_t gguf_type_bytes(GgufType type) {
  static constexpr std::array<std::size_t, kGgufTypes> kBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes.at(static_cast<std::size_t>(type));
}

std::string ggml_type_name(std::uint32_t type) {
  static constexpr std::array<std::string_view, 40> kNames = {
      "F32",      "F16",      "Q4_0",    "Q4_1",  "Q4_2",       "Q4_3",       "Q5_0",       "Q5_1",
      "Q8_0",     "Q8_1",     "Q2_K",    "Q3_K",  "Q4_K",       "Q5_K",       "Q6_K",       "Q8_K",
      "IQ2_XXS",  "IQ2_XS",   "IQ3_XXS", "IQ1_S", "IQ4_NL",     "IQ3_S",      "IQ2_S",      "IQ4_XS",
      "I8",       "I16",      "I32",     "I64",   "F64",        "IQ1_M",      "BF16",       "Q4_0_4_4",
      "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",   "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4"};
  return type < kNames.size() ? std::string(kNames[type]) : fmt::format("type {}", type);
}

std::optional<DType> dtype_of_ggml(std::uint32_t type) {
  switch (type) {
    case 0:
      return DType::kF32;
    case 1:
      return DType::kF16;
    case 2:
      return DType::kQ4_0;
    case 8:
      return DType::kQ8_0;
    case 30:
      return DType::kBF16;
    default:
      return std::nullopt;
  }
}

std::uint32_t ggml_of_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kQ4_0:
      return 2;
    case DType::kQ8_0:
      return 8;
    case DType::kBF16:
      return 30;
    default:
      break;
  }
  MNEME_CHECK(false, "no tensor of a checkpoint has type {}", dtype_name(dtype));
}

}  // namespace mneme
