#include "src/selection/region/region.h"

#include <algorithm>

#include "src/base/check.h"

namespace mneme {
namespace {

std::int32_t align_down(std::int32_t n, std::int32_t to) {
  return n / to * to;
}
std::int32_t align_up(std::int32_t n, std::int32_t to) {
  return align_down(n + to - 1, to);
}

}  // namespace

std::int32_t window_begin(const RegionRules& rules, std::int32_t n_tokens) {
  const std::int32_t p = rules.unit_tokens, sink = std::min(rules.sink, n_tokens);
  const std::int32_t wanted = align_up(std::max(n_tokens - rules.recent, 0), p);
  const std::int32_t closed = align_down(n_tokens - 1, std::max(p, rules.entry_tokens));
  return std::max(sink, std::min(wanted, closed));
}

Region region_at(const RegionRules& rules, std::int32_t n_tokens) {
  MNEME_CHECK(n_tokens >= 1, "a region of {} tokens", n_tokens);
  Region r;
  if (n_tokens <= rules.budget) return r;
  r.everything = false;
  const std::int32_t p = rules.unit_tokens;
  r.sink = std::min(rules.sink, n_tokens);
  r.recent_from = window_begin(rules, n_tokens);
  r.first_unit = align_up(r.sink, p) / p;
  r.last_unit = std::max(r.first_unit, r.recent_from / p);
  // Pages: the same number at every step, whatever the window's alignment leaves. Tokens: exactly what the budget
  // leaves.
  const std::int32_t window = p == 1 ? n_tokens - r.recent_from : std::max({rules.recent, p, rules.entry_tokens});
  r.n_select = std::clamp((rules.budget - r.sink - window) / p, 0, r.last_unit - r.first_unit);
  r.select_tokens = r.n_select * p;
  return r;
}

Region list_region_at(const RegionRules& rules, std::int32_t n_tokens, std::int32_t grouped, std::int32_t n_units) {
  MNEME_CHECK(n_tokens >= 1, "a region of {} tokens", n_tokens);
  Region r;
  if (n_tokens <= rules.budget) return r;
  r.everything = false;
  r.sink = std::min(rules.sink, n_tokens);
  r.last_unit = n_units;
  r.recent_from = std::max(r.sink, grouped);
  r.select_tokens = std::max(0, rules.budget - r.sink - (n_tokens - r.recent_from));
  return r;
}

std::int64_t least_budget(const RegionRules& rules) {
  const std::int64_t window = std::max({rules.recent, rules.unit_tokens, rules.entry_tokens});
  return rules.sink + window + rules.unit_tokens;
}

const char* check_region(const RegionRules& rules) {
  if (rules.budget < 1) return "the budget must be at least one token";
  if (rules.sink < 0 || rules.recent < 0) return "sink and recent cannot be negative";
  if (rules.unit_tokens < 1 || rules.entry_tokens < 1) return "a unit has at least one token";
  const int larger = std::max(rules.unit_tokens, rules.entry_tokens),
            smaller = std::min(rules.unit_tokens, rules.entry_tokens);
  if (larger % smaller != 0) return "the unit's tokens and the index's group must divide one another";
  if (rules.sink % rules.unit_tokens != 0) return "sink must be a multiple of the unit's tokens";
  if (rules.recent % rules.unit_tokens != 0) return "recent must be a multiple of the unit's tokens";
  if (least_budget(rules) > rules.budget)
    return "the budget leaves no room to select: it must hold sink, recent (at least one unit, and one group of the "
           "index) and one unit more";
  return nullptr;
}

}  // namespace mneme
