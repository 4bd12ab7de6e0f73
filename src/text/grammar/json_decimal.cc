#include "src/text/grammar/json_decimal.h"

#include <cmath>

#include "src/base/error.h"

namespace mneme {
namespace {

__extension__ using Wide = __int128;

// The decimal number in units of 10^-9, rounded up or down (`up`).
Wide scaled(double v, bool up) {
  if (!(std::abs(v) < 1e17)) fail(ErrorKind::kUnsupported, "the bound {} has too many digits", v);
  const std::string text = fmt::format("{}", v);
  // The shortest decimal that round-trips.
  Wide digits = 0;
  int exponent = 0, e = 0;
  bool point = false, minus = false, e_minus = false, in_e = false;
  for (const char c : text) {
    if (c == '-') {
      (in_e ? e_minus : minus) = true;
    } else if (c == '.') {
      point = true;
    } else if (c == 'e') {
      in_e = true;
    } else if (c >= '0' && c <= '9' && in_e) {
      e = e * 10 + (c - '0');
    } else if (c >= '0' && c <= '9') {
      digits = digits * 10 + (c - '0');
      if (point) --exponent;
    }
  }
  exponent += (e_minus ? -e : e) + 9;
  if (minus) digits = -digits;
  for (; exponent > 0 && digits != 0; --exponent) digits *= 10;
  for (; exponent < 0 && digits != 0; ++exponent) {
    const Wide rest = digits % 10;
    digits /= 10;
    if (up && rest > 0) digits += 1;
    if (!up && rest < 0) digits -= 1;
  }
  return digits;
}

Wide power(int n) {
  Wide p = 1;
  for (; n > 0; --n) p *= 10;
  return p;
}

}  // namespace

NumberRange::NumberRange(std::optional<double> low, bool low_excluded, std::optional<double> high, bool high_excluded,
                         bool integer)
    : bounded_(low || high), integer_(integer) {
  if (low) {
    low_ = scaled(*low, true);
    if (low_excluded && low_ == scaled(*low, false)) low_ += 1;
  }
  if (high) {
    high_ = scaled(*high, false);
    if (high_excluded && high_ == scaled(*high, true)) high_ -= 1;
  }
  if (integer) {  // round to integers, inwards
    const auto floored = [](Wide x) { return x / kUnit - (x % kUnit < 0 ? 1 : 0); };
    low_ = -floored(-low_) * kUnit;
    high_ = floored(high_) * kUnit;
  }
  if (low_ > high_) fail(ErrorKind::kUnsupported, "no number lies between minimum and maximum");
}

bool NumberRange::meets(bool negative, Wide from, Wide to) const {
  return negative ? -from >= low_ && -to <= high_ : to >= low_ && from <= high_;
}

bool NumberRange::can_become(const Digits& d) const {
  if (!bounded_) return true;
  if (d.whole == 0) return meets(d.negative, d.negative ? 1 : 0, kLimit);
  const auto value = static_cast<Wide>(d.value);
  if (d.point) {
    const Wide unit = power(kMaxFraction - d.fraction);
    return meets(d.negative, value * unit, (value + 1) * unit - 1);
  }
  const int more = d.value == 0 ? 0 : kMaxWhole - d.whole;
  for (int i = 0; i <= more; ++i) {
    const Wide unit = power(i) * kUnit;
    // Integers end with the unit's last integer.
    if (meets(d.negative, value * unit, (value + 1) * unit - (integer_ ? kUnit : 1))) return true;
  }
  return false;
}

bool NumberRange::holds(const Digits& d) const {
  if (!bounded_) return true;
  const Wide value = static_cast<Wide>(d.value) * power(kMaxFraction - d.fraction);
  return meets(d.negative, value, value);
}

}  // namespace mneme
