#include <algorithm>

#include "src/base/check.h"
#include "src/base/size32.h"
#include "src/selection/cluster/partition.h"

namespace mneme {

PartitionedTokens partition_ref(const PartitionRules& rules, std::span<const SeenToken> tokens) {
  const auto n = size32(tokens);
  MNEME_CHECK(n > 0 && tokens.back().decoded, "a partition of {} tokens, the last one not decoded", n);
  const auto token = [&](std::int32_t t) { return tokens[t]; };
  // All units in order, as if there were no buffer: start of each, and whether it is a block of clusters.
  std::vector<UnitRange> units{{rules.sink, rules.sink, false}};
  const auto begin_unit = [&](std::int32_t at, bool clusters) {
    units.back().end = at;
    units.push_back({at, at, clusters});
  };
  for (std::int32_t t = 0; t < n;) {
    if (token(t).decoded) {
      const std::int32_t size = t - units.back().begin;
      if (size >= rules.largest || (token(t).boundary && size >= rules.smallest)) begin_unit(t, false);
      ++t;
      continue;
    }
    std::int32_t end = t;
    while (!token(end).decoded) ++end;
    // A segment that is too short joins the prompt.
    if (t - units.back().begin >= rules.smallest) begin_unit(t, false);
    while (end - rules.recent > units.back().begin) {
      units.back().clusters = true;
      begin_unit(std::min(end - rules.recent, units.back().begin + rules.block), false);
    }
    while (end - units.back().begin > rules.largest) begin_unit(units.back().begin + rules.largest, false);
    t = end;
  }
  // The buffer is the remainder once it is short enough; clusters are never in it.
  PartitionedTokens result{.ranges = {}, .grouped = rules.sink};
  for (const UnitRange& unit : units) {
    if (unit.end == unit.begin || (!unit.clusters && n - unit.begin <= rules.recent)) continue;
    result.ranges.push_back(unit);
    result.ranges.back().clusters = unit.clusters || rules.cluster_segments;
    result.grouped = unit.end;
  }
  return result;
}

}  // namespace mneme
