#include "src/model/cuda/retrieval/plan_asks.h"

#include <algorithm>
#include <iterator>

namespace mneme {
namespace {

constexpr PlanAsks kAsks[] = {asks::selects,       asks::speculates,       asks::keeps_selections,
                              asks::own_arrays,    asks::other_scores,     asks::query_of_selection,
                              asks::gates_by_mass, asks::weighs_attention, asks::pools_layers,
                              asks::prunes,        asks::budget_by_prompt};

bool selects_newest(const SelectionPlan& p, const UnitEntries& entries) {
  return asks::selects(p) &&
         (entries.tokens > p.units.entry_tokens || (asks::speculates(p) && entries.kind != EntryKind::kNone &&
                                                    p.region.recent < p.units.entry_tokens + p.units.select_tokens));
}

}  // namespace

bool any(std::span<const SelectionPlan> plans, PlanAsks asks) {
  return std::any_of(plans.begin(), plans.end(), asks);
}

bool selects_newest(std::span<const SelectionPlan> plans, const UnitEntries& entries) {
  return std::any_of(plans.begin(), plans.end(), [&](const SelectionPlan& p) { return selects_newest(p, entries); });
}

bool cover(std::span<const SelectionPlan> plans, std::span<const SelectionPlan> others, const UnitEntries& entries) {
  if (selects_newest(others, entries) && !selects_newest(plans, entries)) return false;
  return std::all_of(std::begin(kAsks), std::end(kAsks),
                     [&](PlanAsks asks) { return any(plans, asks) || !any(others, asks); });
}

void add_plans(std::vector<SelectionPlan>& plans, std::span<const SelectionPlan> others, const UnitEntries& entries) {
  for (const SelectionPlan& other : others)
    if (!cover(plans, {&other, 1}, entries)) plans.push_back(other);
}

}  // namespace mneme
