#pragma once

#include <concepts>
#include <cstdint>
#include <utility>

#include "src/base/check.h"

namespace mneme {

// A count as the 32-bit number that rows, heads, pages and tokens of a step are indexed by. Aborts where it does not fit.
template <std::integral T>
constexpr std::int32_t count32(T n) {
  MNEME_CHECK(std::in_range<std::int32_t>(n), "{} does not fit 32 bits", n);
  return static_cast<std::int32_t>(n);
}

// The size of a container, likewise.
template <typename Container>
constexpr std::int32_t size32(const Container& c) {
  return count32(c.size());
}

}  // namespace mneme
