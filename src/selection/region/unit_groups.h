// Groups of consecutive units, aligned at unit 0.
#pragma once

#include <cstdint>

namespace mneme {

// Groups of `each` units that units [first_unit, last_unit) are in. The region may cut the first and the last.
struct UnitGroups {
  std::int32_t first_unit = 0, last_unit = 0, each = 1;

  std::int32_t first() const { return first_unit / each; }
  std::int32_t size() const { return (last_unit + each - 1) / each - first(); }
};

}  // namespace mneme
