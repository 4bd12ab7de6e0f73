#include "src/tensor/half.h"

namespace mneme {

f16::f16(float f) {
  const auto u = std::bit_cast<std::uint32_t>(f);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) {  // NaN
    bits = static_cast<std::uint16_t>(sign | 0x7e00u);
  } else if (a >= 0x477ff000u) {  // rounds to 65536 or more: infinity
    bits = static_cast<std::uint16_t>(sign | 0x7c00u);
  } else if (a >= 0x38800000u) {  // normal
    const std::uint32_t r = a + 0xfffu + ((a >> 13) & 1u);
    bits = static_cast<std::uint16_t>(sign | ((r - 0x38000000u) >> 13));
  } else {  // subnormal or zero: adding 0.5 lets the FPU round at the right bit
    const float magic = std::bit_cast<float>(a) + 0.5f;
    bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(magic) - 0x3f000000u));
  }
}

f16::operator float() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float value = static_cast<float>(mantissa) * 0x1.0p-24f;  // subnormal: exact in float
  return sign != 0 ? -value : value;
}

}  // namespace mneme
