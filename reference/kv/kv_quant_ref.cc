// Rows of keys and values in 8 bits, element by element: every code is tried, and the nearest wins.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "src/kv/kv_quant.h"
#include "src/tensor/half.h"

namespace mneme {
namespace {

double value_of(int code, DType dtype) {
  if (dtype == DType::kInt8) return static_cast<std::int8_t>(code);
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const double size = exponent == 0 ? mantissa * 0x1p-9 : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return (code & 0x80) != 0 ? -size : size;
}

bool is_used(int code, DType dtype) {
  return dtype == DType::kInt8 ? code != 0x80 : (code & 0x7f) != 0x7f;
}

// Nearest code; of two as near, the even one. A zero keeps its sign in fp8.
int nearest(double x, DType dtype) {
  int best = -1;
  for (int code = 0; code < 256; ++code) {
    if (!is_used(code, dtype)) continue;
    if (dtype == DType::kFp8 && std::signbit(x) != ((code & 0x80) != 0)) continue;
    const double off = std::abs(value_of(code, dtype) - x);
    const double least = best < 0 ? HUGE_VAL : std::abs(value_of(best, dtype) - x);
    if (off < least || (off == least && code % 2 == 0)) best = code;
  }
  return best;
}

}  // namespace

float quantise_row_ref(const float* x, std::int32_t head_dim, DType dtype, std::byte* codes) {
  float largest = 0;
  bool finite = true;
  for (std::int32_t i = 0; i < head_dim; ++i) {
    finite = finite && std::isfinite(x[i]);
    largest = std::max(largest, std::abs(x[i]));
  }
  if (!finite || largest < 0x1p-100f) {
    std::fill_n(codes, head_dim, finite ? std::byte{0} : std::byte{1});
    return finite ? 0.0f : NAN;
  }
  const float top = dtype == DType::kInt8 ? 127.0f : 448.0f, inverse = top / largest;
  for (std::int32_t i = 0; i < head_dim; ++i)
    codes[i] = static_cast<std::byte>(nearest(std::clamp(x[i] * inverse, -top, top), dtype));
  return largest / top;
}

void widen_row_ref(const std::byte* codes, std::int32_t head_dim, float scale, DType dtype, std::byte* to) {
  for (std::int32_t i = 0; i < head_dim; ++i) {
    const bf16 value(static_cast<float>(value_of(std::to_integer<int>(codes[i]), dtype)) * scale);
    std::memcpy(to + 2 * i, &value, sizeof(value));
  }
}

}  // namespace mneme
