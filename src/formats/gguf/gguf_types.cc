#include "src/formats/gguf/gguf_types.h"

#include <fmt/format.h>

#include <array>

#include "src/base/check.h"
#include "src/base/underlying.h"

namespace mneme {
namespace {

// ggml's number of a tensor type, and llama.cpp's general.file_type of a file with most weights in it; iq4_xs, which
// nothing here writes, has that of bf16.
struct WeightType {
  DType dtype;
  std::uint32_t ggml, file;
};

constexpr std::array<WeightType, 17> kWeightTypes = {{
    {DType::kF32, 0, 0},
    {DType::kF16, 1, 1},
    {DType::kQ4_0, 2, 2},
    {DType::kQ4_1, 3, 3},
    {DType::kQ5_0, 6, 8},
    {DType::kQ5_1, 7, 9},
    {DType::kQ8_0, 8, 7},
    {DType::kQ2_K, 10, 10},
    {DType::kQ3_K, 11, 11},
    {DType::kQ4_K, 12, 14},
    {DType::kQ5_K, 13, 16},
    {DType::kQ6_K, 14, 18},
    {DType::kIQ4_NL, 20, 25},
    {DType::kIQ4_XS, 23, 32},
    {DType::kBF16, 30, 32},
    {DType::kMXFP4, 39, 38},
    {DType::kNVFP4, 40, 39},
}};

const WeightType& weight_type(DType dtype) {
  for (const WeightType& t : kWeightTypes)
    if (t.dtype == dtype) return t;
  MNEME_CHECK(false, "no tensor of a checkpoint has type {}", dtype_name(dtype));
}

}  // namespace

std::string_view gguf_type_name(GgufType type) {
  static constexpr std::array<std::string_view, kGgufTypes> kNames = {
      "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
  return kNames.at(underlying(type));
}

std::size_t gguf_type_bytes(GgufType type) {
  static constexpr std::array<std::size_t, kGgufTypes> kBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes.at(underlying(type));
}

std::string ggml_type_name(std::uint32_t type) {
  static constexpr std::array<std::string_view, 43> kNames = {
      "F32",        "F16",        "Q4_0",       "Q4_1",  "Q4_2",     "Q4_3",     "Q5_0",     "Q5_1",    "Q8_0",
      "Q8_1",       "Q2_K",       "Q3_K",       "Q4_K",  "Q5_K",     "Q6_K",     "Q8_K",     "IQ2_XXS", "IQ2_XS",
      "IQ3_XXS",    "IQ1_S",      "IQ4_NL",     "IQ3_S", "IQ2_S",    "IQ4_XS",   "I8",       "I16",     "I32",
      "I64",        "F64",        "IQ1_M",      "BF16",  "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",   "TQ2_0",
      "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4", "NVFP4",    "Q1_0",     "Q2_0"};
  return type < kNames.size() ? std::string(kNames[type]) : fmt::format("type {}", type);
}

std::optional<DType> dtype_of_ggml(std::uint32_t type) {
  for (const WeightType& t : kWeightTypes)
    if (t.ggml == type) return t.dtype;
  return std::nullopt;
}

std::string_view refusal_of_ggml(std::uint32_t type) {
  switch (type) {
    case 16:
    case 17:
    case 18:
    case 19:
    case 21:
    case 22:
    case 29:
      return "its values are entries of a large codebook; take the model in Q2_K, Q3_K, IQ4_XS or Q4_K";
    case 34:
    case 35:
    case 41:
    case 42:
      return "made for models of one to two bits a weight; take the model in Q2_K, Q4_K or Q8_0";
    case 9:
    case 15:
      return "a type of activations, which files do not store; make the file again";
    case 4:
    case 5:
    case 31:
    case 32:
    case 33:
    case 36:
    case 37:
    case 38:
      return "removed from the format; take a newer file of the model";
    default:
      return "";
  }
}

std::uint32_t ggml_of_dtype(DType dtype) {
  return weight_type(dtype).ggml;
}

std::uint32_t gguf_file_type(DType weights) {
  return weight_type(weights).file;
}

}  // namespace mneme
