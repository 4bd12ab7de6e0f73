// Bounds of a schema's number, checked digit by digit.
#pragma once

#include <cstdint>
#include <optional>

namespace mneme {

// Numbers of a type; with bounds, at most 18 digits before and 9 after the decimal point.
class NumberRange {
 public:
  NumberRange() = default;
  // Absent: no bound.
  //
  // Errors  kUnsupported: bounds of more than 18 digits before the decimal point, or an empty range.
  NumberRange(std::optional<double> low, bool low_excluded, std::optional<double> high, bool high_excluded,
              bool integer);

  bool bounded() const { return bounded_; }
  static constexpr int kMaxWhole = 18, kMaxFraction = 9;

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
  // Some negative number is within the bounds.
  bool allows_negative() const { return low_ < 0; }

 private:
  __extension__ using Wide = __int128;  // units of 10^-9
  bool meets(bool negative, Wide from, Wide to) const;

  bool bounded_ = false, integer_ = false;
  Wide low_ = -kLimit, high_ = kLimit;
  static constexpr Wide kUnit = 1'000'000'000;
  static constexpr Wide kLimit = kUnit * kUnit * kUnit;
};

}  // namespace mneme
