#pragma once

#include <cstdint>
#include <limits>

#include "src/base/check.h"

namespace mneme {

// The size of a container as the 32-bit count that rows, heads, pages and tokens of a step are indexed by. Aborts where
// it does not fit.
template <typename Container>
constexpr std::int32_t size32(const Container& c) {
  const std::size_t n = c.size();
  MNEME_CHECK(n <= std::numeric_limits<std::int32_t>::max(), "{} elements", n);
  return static_cast<std::int32_t>(n);
}

}  // namespace mneme
