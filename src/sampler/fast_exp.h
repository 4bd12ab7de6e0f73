// exp for values at or below the largest logit, branch-free so that the compiler vectorises it.
#pragma once

#include <bit>
#include <cstdint>

namespace mneme {

// e^x within 2 ulp. x < -87 (e^x below 1.7e-38) and NaN give 0. Requires  x <= 0 or NaN.
//
// Source  the polynomial of Cephes' expf (Moshier), ln 2 in two parts.
inline float exp_below_zero(float x) {
  const float c = x >= -87.0f ? x : -87.0f;
  constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float n = (c * 1.44269504f + kToInteger) - kToInteger;
  const float r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  const float scale = std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
  return x >= -87.0f ? y * scale : 0.0f;
}

}  // namespace mneme
