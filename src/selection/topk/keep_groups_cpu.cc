#include "src/selection/topk/keep_groups.h"

#include <algorithm>
#include <cmath>

namespace mneme {

void keep_groups_cpu(std::span<const float> scores, const UnitGroups& groups, float share, std::int32_t n_units,
                     std::vector<std::int32_t>& units, TopkScratch& scratch) {
  const std::int32_t n = groups.size(), each = groups.each;
  units.clear();
  if (n == 0) return;
  // The region may cut two of the groups.
  const std::int32_t least = each == 1 ? n_units : (n_units + each - 1) / each + 2;
  const auto wanted = static_cast<std::int32_t>(std::ceil(double{share} * n));
  const std::int32_t k = std::min(n, std::max(wanted, least));
  std::vector<std::int32_t> best(k);
  best.resize(topk_cpu(scores.first(n), k, best.data(), scratch));
  for (const std::int32_t group : best) {
    const std::int32_t begin = std::max(groups.first_unit, (groups.first() + group) * each),
                       end = std::min(groups.last_unit, (groups.first() + group + 1) * each);
    for (std::int32_t u = begin; u < end; ++u) units.push_back(u);
  }
}

}  // namespace mneme
