// Bounds of a schema's number, decided digit by digit.
#pragma once

#include <cstdint>
#include <optional>

namespace mneme {

// Numbers of a type, with at most 18 digits before and 9 behind the point where there are bounds.
class NumberRange {
 public:
  NumberRange() = default;
  // Absent: no bound.
  //
  // Errors  kUnsupported: bounds of more than 18 digits before the point, or no number between them.
  NumberRange(std::optional<double> low, bool low_excluded, std::optional<double> high, bool high_excluded,
              bool integer);

  bool bounded() const { return bounded_; }
  static constexpr int kMostWhole = 18, kMostFraction = 9;

  struct Digits {
    bool negative = false;
    __extension__ unsigned __int128 value = 0;  // of all digits
    int whole = 0, fraction = 0;                // how many before and behind the point
    bool point = false;
  };
  // Some number that begins so lies between the bounds.
  bool can_become(const Digits& digits) const;
  // This one does.
  bool holds(const Digits& digits) const;
  // Some negative number does.
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
