// What plans ask of the state that their rows share. Each costs memory or launches for all rows, so a state keeps the
// plans that ask for different things.
#pragma once

#include <span>
#include <vector>

#include "src/offload/selection_plan.h"
#include "src/offload/unit_indexes.h"

namespace mneme {

namespace asks {

inline bool selects(const SelectionPlan& p) {
  return p.schedule != ScheduleKind::kNone;
}
inline bool speculates(const SelectionPlan& p) {
  return p.schedule == ScheduleKind::kSpeculative;
}
inline bool keeps_selections(const SelectionPlan& p) {
  return p.schedule == ScheduleKind::kBoundary;
}
inline bool own_arrays(const SelectionPlan& p) {
  return selects(p) && p.scores.own_arrays;
}
inline bool other_scores(const SelectionPlan& p) {
  return selects(p) && !p.scores.own_arrays;
}
inline bool query_of_selection(const SelectionPlan& p) {
  return p.gate.reference == GateReference::kLastRetrieval;
}
inline bool gates_by_mass(const SelectionPlan& p) {
  return p.gate.kind == GateKind::kMass;
}
inline bool weighs_attention(const SelectionPlan& p) {
  return p.scores.domain == Domain::kAttention;
}
inline bool pools_layers(const SelectionPlan& p) {
  return p.scope == SelectScope::kLayer;
}
inline bool prunes(const SelectionPlan& p) {
  return p.top_p < 1;
}
inline bool budget_by_prompt(const SelectionPlan& p) {
  return p.region.by_prompt;
}

}  // namespace asks

using PlanAsks = bool (*)(const SelectionPlan&);

bool any(std::span<const SelectionPlan> plans, PlanAsks asks);
// Whether some plan's candidates may be of the group or entry that its step completes: for this step where entries are
// larger than what leaves the window as one, for the next where the window is short.
bool selects_newest(std::span<const SelectionPlan> plans, const UnitEntries& entries);
// Whether `plans` ask for all that `others` do.
bool cover(std::span<const SelectionPlan> plans, std::span<const SelectionPlan> others, const UnitEntries& entries);
// Adds those of `others` that ask for more.
void add_plans(std::vector<SelectionPlan>& plans, std::span<const SelectionPlan> others, const UnitEntries& entries);

}  // namespace mneme
