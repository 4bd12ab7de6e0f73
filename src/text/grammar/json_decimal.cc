#include "src/text/grammar/json_decimal.h"

#include <fmt/format.h>

#include <algorithm>

namespace mneme {
namespace {

__extension__ using Wide = __int128;
constexpr std::int64_t kMaxPoint = 1'000'000'000'000'000;

Wide power(int n) {
  Wide p = 1;
  for (; n > 0; --n) p *= 10;
  return p;
}

// A magnitude in units of 10^-9, rounded towards zero.
struct Units {
  Wide value = 0;
  bool exact = true;
};

// Requires  the number is below 10^18.
Units units_of(const Decimal& d) {
  const std::int64_t places = d.point + NumberRange::kMaxFraction;  // digits before the unit's point
  Units u;
  for (std::int64_t i = 0; i < places; ++i)
    u.value = u.value * 10 + (i < std::ssize(d.digits) ? d.digits[static_cast<std::size_t>(i)] - '0' : 0);
  u.exact = std::ssize(d.digits) <= std::max<std::int64_t>(places, 0);
  return u;
}

std::int64_t exponent_of(std::string_view text) {
  const bool minus = !text.empty() && text[0] == '-';
  std::int64_t e = 0;
  for (const char c : text)
    if (c >= '0' && c <= '9') e = std::min(e * 10 + (c - '0'), kMaxPoint);
  return minus ? -e : e;
}

}  // namespace

Decimal Decimal::of(std::string_view text) {
  Decimal d;
  d.negative = !text.empty() && text[0] == '-';
  const std::size_t e = std::min(text.find_first_of("eE"), text.size());
  bool fraction = false;
  for (const char c : text.substr(0, e)) {
    if (c == '.') fraction = true;
    if (c < '0' || c > '9') continue;
    const bool leading = d.digits.empty() && c == '0';
    if (!leading) d.digits += c;
    if (!leading && !fraction) ++d.point;
    if (leading && fraction) --d.point;
  }
  d.digits.erase(d.digits.find_last_not_of('0') + 1);
  if (d.digits.empty()) return {};
  d.point = std::clamp(d.point + exponent_of(text.substr(std::min(e + 1, text.size()))), -kMaxPoint, kMaxPoint);
  return d;
}

Decimal Decimal::of(double value) {
  return of(fmt::format("{}", value));
}

NumberRange::NumberRange(std::span<const Bound> bounds, bool integer) : integer_(integer) {
  for (const Bound& b : bounds) {
    const Decimal& v = b.value;
    const bool inwards_is_up = b.lower;
    const bool all_pass = v.negative == b.lower && !v.digits.empty();  // it has the sign of numbers that it permits
    // 18 digits and an exponent of 280 stay below 10^298.
    if (all_pass && v.point > kMaxWhole + (integer ? 0 : std::int64_t{kMaxExponent})) continue;
    bounded_ = true;
    Wide cut = v.negative ? -kLimit : kLimit;
    if (v.point <= kMaxWhole) {
      const Units u = units_of(v);
      cut = v.negative ? -u.value : u.value;
      if (!u.exact && v.negative != inwards_is_up) cut += inwards_is_up ? 1 : -1;
      if (u.exact && b.excluded) cut += inwards_is_up ? 1 : -1;
    }
    if (b.lower) {
      low_ = std::max(low_, cut);
    } else {
      high_ = std::min(high_, cut);
    }
  }
  if (integer_ && bounded_) {  // round to integers, inwards
    const auto floored = [](Wide x) { return (x / kUnit - (x % kUnit < 0 ? 1 : 0)) * kUnit; };
    low_ = -floored(-low_);
    high_ = floored(high_);
  }
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
