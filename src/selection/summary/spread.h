// What the spread of keys around the point that stands for them adds to the log-sum-exp of their scores.
//
// n scores with mean m and variance s^2 have, to second order, log sum exp = log n + m + s^2 / 2. Where s exceeds
// c = sqrt(2 log n), the largest of n samples rules (the random-energy limit) and s^2 / 2 overestimates without bound;
// from there on the term grows linearly, with the same slope.
#pragma once

#include <cmath>
#include <cstdint>

namespace mneme {

// s^2 / 2 up to s = c, c s - c^2 / 2 beyond.   variance: s^2 >= 0.   NaN gives NaN.
inline float spread_gain(float variance, float c) {
  return variance <= c * c ? 0.5f * variance : c * std::sqrt(variance) - 0.5f * c * c;
}
// c of n samples.
inline float spread_limit(float n) {
  return n <= 1.0f ? 0.0f : std::sqrt(2.0f * std::log(n));
}

// A variance in one byte: 0 is 0, others are 2^((code - 128) / 6), within 6 % from 2^-21 to 2^21.
inline std::uint8_t variance_code(float variance) {
  if (!(variance > 0.0f)) return 0;
  const float code = std::round(std::log2(variance) * 6.0f) + 128.0f;
  return static_cast<std::uint8_t>(code < 1.0f ? 1.0f : code > 255.0f ? 255.0f : code);
}
inline float decode_variance(std::uint8_t code) {
  return code == 0 ? 0.0f : std::exp2((static_cast<float>(code) - 128.0f) / 6.0f);
}

}  // namespace mneme
