// x for the few-rows kernels of quantised weights, in 15 bits. Private to src/ops/gemm.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/ops/gemm/quant.h"
#include "src/tensor/view.h"

namespace mneme {

inline std::size_t padded_to_line(std::size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// x for quantised weights: blocks of 32 as int16 with a scale. |q| <= 16256 (15 bits): the error is under a thousandth
// of that of rounding x to bf16, and a block's dot product with int8 fits 32 bits. `sum` is a block's sum of q * scale,
// which multiplies minima; zero-padded to a full line.
struct Int16Input {
  const std::int16_t* q;
  const float *scale, *sum;
  static std::size_t q_bytes(std::int64_t k) { return padded_to_line(2 * k); }
  static std::size_t scale_bytes(std::int64_t k) { return padded_to_line(k / kQuantBlock * 4); }
  static std::size_t row_bytes(std::int64_t k) { return q_bytes(k) + 2 * scale_bytes(k); }
  static Int16Input of(const std::byte* prepared, std::int64_t i, std::int64_t k) {
    const std::byte* row = prepared + i * row_bytes(k);
    return {reinterpret_cast<const std::int16_t*>(row), reinterpret_cast<const float*>(row + q_bytes(k)),
            reinterpret_cast<const float*>(row + q_bytes(k) + scale_bytes(k))};
  }
};
inline constexpr float kInt16Levels = 16256.0f;

// The two functions of a SkinnyKernel. Requires  x f32 and finite.
std::size_t int16_bytes(std::int64_t m, std::int64_t k);
void prepare_int16(const ConstTensorView& x, std::byte* prepared);

}  // namespace mneme
