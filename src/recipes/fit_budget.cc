#include "src/recipes/fit_budget.h"

#include <fmt/format.h>

#include <algorithm>

namespace mneme {
namespace {

// The smallest window that the recipe can do with: some indexes and positions are made from recent tokens.
std::int32_t least_recent(const Recipe& r, std::int32_t unit) {
  if (!r.decode) return 0;
  if (const auto* segments = std::get_if<SegmentUnit>(&r.decode->units.output)) return segments->largest;
  const bool needed = std::holds_alternative<Representative>(r.decode->index) || r.positions == Positions::kOneAngle;
  return needed ? unit : 0;
}

}  // namespace

std::string fit_defaults(const RegionGiven& given, Recipe& r) {
  if (r.attend == Attend::kEverything || r.norm || r.budget < 1) return "";
  // Without a selection and without a drop the window is all that the sinks leave.
  const bool window_only = !r.decode && !r.prefill_end;
  const std::int32_t unit = r.decode ? unit_tokens(r.decode->units.prompt) : 1;
  const std::int32_t sink = r.sink, recent = r.recent;
  // Tokens that the caller set aside, and those of defaults, which take at most half of what is left.
  const std::int64_t fixed = (given.sink ? sink : 0) + std::int64_t{given.recent && !window_only ? recent : 0};
  const std::int64_t defaults = (given.sink ? 0 : sink) + std::int64_t{given.recent || window_only ? 0 : recent};
  const std::int64_t left = std::max<std::int64_t>(r.budget - fixed, 0), half = left / 2;
  // What drops token by token needs none beside them; pages do.
  const bool by_token = r.prefill_end && r.prefill_end->rank != Rank::kStamp;
  if (defaults > (by_token ? left : half)) {
    const auto shrunk = [&](std::int32_t n) { return static_cast<std::int32_t>(half * n / defaults); };
    if (!given.sink) r.sink = shrunk(sink);
    if (!given.recent && !window_only) r.recent = shrunk(recent);
  }
  if (!given.sink) r.sink -= r.sink % unit;
  if (!given.recent) r.recent = std::max(r.recent - r.recent % unit, std::min(recent, least_recent(r, unit)));
  if (window_only) {
    if (!given.recent) r.recent = r.budget - r.sink;
    if (r.sink == sink) return "";
    return fmt::format("{}: the budget of {} tokens shrinks the default sinks from {} to {}", r.name, r.budget, sink,
                       r.sink);
  }
  if (r.sink == sink && r.recent == recent) return "";
  return fmt::format("{}: the budget of {} tokens shrinks the default sinks and window from {} + {} to {} + {}", r.name,
                     r.budget, sink, recent, r.sink, r.recent);
}

}  // namespace mneme
