// Every 16-bit pattern, and every midpoint between neighbours, rounds as IEEE 754 defines.
#include "src/tensor/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "src/base/rng.h"
#include "src/tensor/half_value.h"

namespace mneme {
namespace {

f16 f16_of_bits(std::uint32_t bits) {
  f16 h;
  h.bits = static_cast<std::uint16_t>(bits);
  return h;
}
bf16 bf16_of_bits(std::uint32_t bits) {
  bf16 h;
  h.bits = static_cast<std::uint16_t>(bits);
  return h;
}

// The value of a 16-bit float by its definition, in double.
double value_by_definition(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

TEST(HalfValue, IsThatOfTheTypeAtAnyAddress) {
  std::byte bytes[5] = {};
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const std::uint16_t bits = half_bits(-1.5f, dtype);
    std::memcpy(bytes + 3, &bits, sizeof(bits));
    EXPECT_EQ(half_value(bits, dtype), -1.5f);
    EXPECT_EQ(load_half(bytes + 1, 1, dtype), -1.5f);
  }
  EXPECT_EQ(half_bits(1.0f, DType::kBF16), 0x3f80);
  EXPECT_EQ(half_bits(1.0f, DType::kF16), 0x3c00);
}

template <typename Half>
void every_pattern_has_its_value(Half (*of_bits)(std::uint32_t), int exponent_bits, int mantissa_bits) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double expected = value_by_definition(bits, exponent_bits, mantissa_bits);
    const float got = static_cast<float>(of_bits(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << std::hex << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(Half(got)))) << "a NaN must stay one: " << std::hex << bits;
    } else {
      ASSERT_EQ(static_cast<double>(got), expected) << std::hex << bits;
      ASSERT_EQ(std::signbit(got), (bits & 0x8000u) != 0) << std::hex << bits;
      ASSERT_EQ(Half(got).bits, bits) << "there and back must be exact: " << std::hex << bits;
    }
  }
}

TEST(Half, EveryF16PatternHasItsValueAndComesBack) {
  every_pattern_has_its_value(f16_of_bits, 5, 10);
}
TEST(Half, EveryBf16PatternHasItsValueAndComesBack) {
  every_pattern_has_its_value(bf16_of_bits, 8, 7);
}

// Between neighbours a and b: the midpoint rounds to even, everything else to the nearest.
template <typename Half>
void boundaries_round_to_nearest_even(Half (*of_bits)(std::uint32_t), std::uint32_t infinity, double beyond_last) {
  for (std::uint32_t sign : {0u, 0x8000u})
    for (std::uint32_t bits = 0; bits < infinity; ++bits) {
      const double a = static_cast<float>(of_bits(sign | bits));
      // Infinity takes the place of the next value that a larger exponent would have.
      const double b = bits + 1 == infinity ? (sign != 0 ? -beyond_last : beyond_last)
                                            : (static_cast<float>(of_bits(sign | (bits + 1))));
      const auto middle = static_cast<float>((a + b) / 2);
      ASSERT_EQ(static_cast<double>(middle), (a + b) / 2) << "the middle is exact in float";
      const std::uint32_t even = (bits & 1u) == 0 ? bits : bits + 1;
      const float toward_a = std::nextafter(
          middle, sign != 0 ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity());
      const float toward_b = std::nextafter(
          middle, sign != 0 ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity());
      ASSERT_EQ(Half(middle).bits, sign | even) << std::hex << (sign | bits);
      ASSERT_EQ(Half(toward_a).bits, sign | bits) << std::hex << (sign | bits);
      ASSERT_EQ(Half(toward_b).bits, sign | (bits + 1)) << std::hex << (sign | bits);
    }
}

TEST(Half, F16RoundsToNearestEvenAtEveryBoundary) {
  boundaries_round_to_nearest_even(f16_of_bits, 0x7c00, 65536.0);
}
TEST(Half, Bf16RoundsToNearestEvenAtEveryBoundary) {
  boundaries_round_to_nearest_even(bf16_of_bits, 0x7f80, std::ldexp(1.0, 128));
}

TEST(Half, ValuesBeyondTheRange) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(f16(inf).bits, 0x7c00);
  EXPECT_EQ(f16(-inf).bits, 0xfc00);
  EXPECT_EQ(f16(std::numeric_limits<float>::max()).bits, 0x7c00);
  EXPECT_EQ(f16(-1e9f).bits, 0xfc00);
  EXPECT_EQ(f16(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(f16(-std::numeric_limits<float>::denorm_min()).bits, 0x8000);
  EXPECT_EQ(bf16(inf).bits, 0x7f80);
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(bf16(-0.0f).bits, 0x8000);
}

TEST(Half, NansStayNansWhateverTheirBits) {
  for (std::uint32_t mantissa : {1u, 0x200u, 0x1fffu, 0x2000u, 0xffffu, 0x10000u, 0x3fffffu, 0x400000u, 0x7fffffu})
    for (std::uint32_t sign : {0u, 0x80000000u}) {
      const auto nan = std::bit_cast<float>(sign | 0x7f800000u | mantissa);
      EXPECT_TRUE(std::isnan(static_cast<float>(f16(nan)))) << std::hex << mantissa;
      EXPECT_TRUE(std::isnan(static_cast<float>(bf16(nan)))) << std::hex << mantissa;
    }
}

TEST(Half, RandomFloatsGoToTheNearestValue) {
  Rng rng(3);
  for (int i = 0; i < 200'000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(rng.next()));
    if (std::isnan(x)) continue;
    const f16 h(x);
    const double d = x;
    if (std::abs(d) >= 65520.0) {
      ASSERT_EQ(h.bits & 0x7fff, 0x7c00);
      continue;
    }
    const double error = std::abs((static_cast<float>(h)) - d);
    const double spacing = std::max(std::ldexp(1.0, -24), std::ldexp(1.0, std::ilogb(d == 0 ? 1e-30 : d) - 10));
    ASSERT_LE(error, spacing / 2) << x;
  }
}

}  // namespace
}  // namespace mneme
