// Exact decimal numbers, and the bounds of a schema's number, checked digit by digit.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace mneme {

// A number of JSON as written: sign * 0.DIGITS * 10^point. Two are equal exactly if they are the same number.
struct Decimal {
  bool negative = false;
  std::string digits;      // without zeros at either end; empty: zero
  std::int64_t point = 0;  // 0 for zero; exponents beyond 10^15 count as 10^15

  // Requires  a number of JSON's grammar.
  static Decimal of(std::string_view text);
  // The shortest decimal that is read as this double.
  static Decimal of(double value);
  bool operator==(const Decimal&) const = default;
};

// Numbers of a type. With bounds, at most 18 digits before and 9 after the decimal point and no exponent; without,
// below 10^298. A bound that none of these exceed is no bound. Comparison is exact: the numbers are integers in units
// of 10^-9, and a bound between two units is rounded inwards.
class NumberRange {
 public:
  struct Bound {
    Decimal value;
    bool lower = false, excluded = false;
  };
  NumberRange() = default;
  NumberRange(std::span<const Bound> bounds, bool integer);

  bool bounded() const { return bounded_; }
  // No number that can be written is within the bounds.
  bool empty() const { return low_ > high_; }
  static constexpr int kMaxWhole = 18, kMaxFraction = 9;
  static constexpr std::uint32_t kMaxExponent = 280;  // without bounds; with 18 digits, below the largest double

  struct Digits {
    bool negative = false;
    __extension__ unsigned __int128 value = 0;  // of all digits
    int whole = 0, fraction = 0;                // digits before and after the decimal point
    bool point = false;
  };
  // Some number with this prefix is within the bounds.
  bool can_become(const Digits& digits) const;
  // This number is within the bounds.
  bool holds(const Digits& digits) const;

 private:
  __extension__ using Wide = __int128;  // units of 10^-9
  bool meets(bool negative, Wide from, Wide to) const;

  static constexpr Wide kUnit = 1'000'000'000;
  static constexpr Wide kLimit = kUnit * kUnit * kUnit;  // 10^18: the first number with too many digits
  bool bounded_ = false, integer_ = false;
  Wide low_ = 1 - kLimit, high_ = kLimit - 1;
};

}  // namespace mneme
