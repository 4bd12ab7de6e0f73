#include <algorithm>
#include <cmath>
#include <set>

#include "src/selection/topk/keep_groups.h"

namespace mneme {

void keep_groups_ref(std::span<const float> scores, const UnitGroups& groups, float share, std::int32_t n_units,
                     std::vector<std::int32_t>& units) {
  // Units by group, in the order of the scores: a larger score first, then the larger group; NaN last.
  std::set<std::int32_t> left;
  for (std::int32_t u = groups.first_unit; u < groups.last_unit; ++u) left.insert(u / groups.each);
  const auto n_groups = static_cast<std::int32_t>(left.size());
  const std::int32_t spare = groups.each == 1 ? 0 : 2;
  const std::int32_t least = (n_units + groups.each - 1) / groups.each + spare;
  const std::int32_t k = std::max(static_cast<std::int32_t>(std::ceil(double{share} * n_groups)), least);
  const std::int32_t first = groups.first_unit / groups.each;
  units.clear();
  for (std::int32_t i = 0; i < k && !left.empty(); ++i) {
    auto best = left.begin();
    for (auto it = left.begin(); it != left.end(); ++it) {
      const float x = scores[*it - first], y = scores[*best - first];
      if (std::isnan(y) || x >= y) best = it;
    }
    for (std::int32_t u = groups.first_unit; u < groups.last_unit; ++u)
      if (u / groups.each == *best) units.push_back(u);
    left.erase(best);
  }
  std::sort(units.begin(), units.end());
}

}  // namespace mneme
