// Element types of tensors and their sizes in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mneme {

enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kI32,
  kU8,
  kQ8_0,    // blocks of 32, 34 bytes: f16 scale d, 32 x int8 q; value = d * q
  kQ4_0,    // blocks of 32, 18 bytes: f16 scale d, 16 bytes b; value i is d * (nibble - 8), where nibble is the low one
            // of b[i] for i < 16, the high one of b[i - 16] else
  kQ4_1,    // blocks of 32, 20 bytes: f16 scale d, f16 minimum m, nibbles in the order of kQ4_0; value = d * nibble + m
  kQ5_0,    // blocks of 32, 22 bytes; the fields of this and the following are in src/ops/gemm/quant.h
  kQ5_1,    // blocks of 32, 24 bytes
  kQ2_K,    // blocks of 256, 84 bytes
  kQ3_K,    // blocks of 256, 110 bytes
  kQ4_K,    // blocks of 256, 144 bytes
  kQ5_K,    // blocks of 256, 176 bytes
  kQ6_K,    // blocks of 256, 210 bytes
  kIQ4_NL,  // blocks of 32, 18 bytes
  kIQ4_XS,  // blocks of 256, 136 bytes
  kMXFP4,   // blocks of 32, 17 bytes, at any address
  kFp8,     // blocks of 64, 68 bytes: f32 scale, codes of e4m3; this and the following are in no GGUF file, quantised
            // safetensors become them
  kInt4,    // blocks of 32, 20 bytes: scale and zero point, nibbles in the order of kQ4_0
  kInt8,    // blocks of 32, 36 bytes: f32 scale d, 32 x int8 q; value = d * q
  kNVFP4,   // blocks of 64, 40 bytes: the matrix's f32 factor, 4 scales in e4m3, codes of e2m1; type 40 of GGUF files
            // becomes it too
};

struct DTypeInfo {
  std::string_view name;  // as in files and options: "f32", "bf16", "q8_0"
  int block;              // elements per block
  int bytes;              // bytes per block
};

const DTypeInfo& dtype_info(DType dtype);
inline std::string_view dtype_name(DType dtype) {
  return dtype_info(dtype).name;
}
inline bool is_quantised(DType dtype) {
  return dtype_info(dtype).block > 1;
}

// Bytes of a row of n elements. Requires  n % block == 0.
std::size_t row_bytes(DType dtype, std::int64_t n);

template <typename T>
struct dtype_of;  // dtype_of<float>::value == DType::kF32

}  // namespace mneme

#include "src/tensor/half.h"

namespace mneme {
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct dtype_of<f16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct dtype_of<std::int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct dtype_of<std::uint8_t> {
  static constexpr DType value = DType::kU8;
};
}  // namespace mneme
