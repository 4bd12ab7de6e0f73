// Ratios of counts and sizes as tables and metrics print them. In double: counts beyond 2^53 do not occur.
#pragma once

#include <concepts>

namespace mneme {

template <typename T>
concept Number = std::integral<T> || std::floating_point<T>;

// A count as a factor.
constexpr double real(std::integral auto n) {
  return static_cast<double>(n);
}

// part / whole; 0 where whole is 0.
template <Number A, Number B>
constexpr double ratio(A part, B whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

template <Number A, Number B>
constexpr double percent(A part, B whole) {
  return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

// share * n, rounded down: the place of a quantile, a part of a text.
template <std::integral T>
constexpr T part_of(T n, double share) {
  return static_cast<T>(static_cast<double>(n) * share);
}

template <Number T>
constexpr double mebibytes(T bytes) {
  return ratio(bytes, 1 << 20);
}

template <Number T>
constexpr double gibibytes(T bytes) {
  return ratio(bytes, 1 << 30);
}

}  // namespace mneme
