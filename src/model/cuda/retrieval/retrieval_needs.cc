// Requirements of a method on the device, and checks of what the device supports.
#include <algorithm>

#include "src/base/check.h"
#include "src/cuda/loaded_code_cuda.h"
#include "src/model/cuda/retrieval/retrieval.h"
#include "src/recipes/device_form.h"

namespace mneme {
namespace {

UnitEntries entries_of(const Plan& plan) {
  UnitEntries e;
  if (!has_entries(plan.selection.scores.index)) return e;
  e.kind = plan.selection.scores.index, e.rank = plan.selection.scores.rank;
  e.tokens = plan.index->entry_tokens();
  e.bytes = static_cast<std::int32_t>(plan.index->entry_bytes(plan.shape.attention()));
  e.frame_floats = static_cast<std::int32_t>(plan.index->frame_floats(plan.shape.attention()));
  return e;
}

// Before Hopper a fused selection of pages has one thread block a KV head; the unfused one scores with the whole device.
bool scores_boxes_unfused() {
  static const bool unfused = loaded_code_version() < 90;
  return unfused;
}

// SelectionPlan::Scores::own_arrays.
bool scores_own_arrays(const Plan& plan) {
  const EntryKind index = plan.selection.scores.index;
  if (!plan.selects() || plan.layer_selection) return true;
  if (!has_entries(index) || device_form(plan) != DeviceForm::kFused || index == EntryKind::kCentroidSet ||
      index == EntryKind::kSketch)
    return false;
  return !is_box(index) || !(attends_by_token(plan) || scores_boxes_unfused());
}

}  // namespace

SelectionPlan CudaRetrieval::selection_plan_of(const Plan& plan, std::int32_t budget) {
  SelectionPlan r = plan.selection;
  set_slot_region(plan, budget, r);
  r.scores.own_arrays = scores_own_arrays(plan);
  return r;
}

SelectionPlan CudaRetrieval::selection_plan_in(const MethodState& method, std::size_t number) const {
  const Plan& plan = method.plan();
  const bool by_prompt = plan.norm && number < layers_.selecting().size();
  SelectionPlan r =
      selection_plan_of(plan, by_prompt ? method.rules(layers_.selecting()[number]).budget : plan.rules.budget);
  r.units.tokens = view_.unit_tokens;  // entry_tokens stay pages: the window is the same
  return r;
}

CudaRetrieval::Needs CudaRetrieval::needs_of(const MethodState& method, std::int32_t length, bool decodes,
                                             const Fit& fit) {
  const Plan& plan = method.plan();
  if (!plan.norm) return needs_of(plan, fit);
  std::int32_t most = 0;
  for (std::int32_t l = 0; l < plan.shape.n_layers; ++l) {
    if (!plan.compressed(l)) continue;
    const std::int32_t set = method.layer(l).budget;
    most = std::max(most, set > 0 ? set : decodes ? length : 0);
  }
  if (most <= plan.rules.budget) return needs_of(plan, fit);
  constexpr std::int32_t kStep = 512;  // so that not every prompt reallocates
  return needs_of(plan, fit, (most + kStep - 1) / kStep * kStep);
}

CudaRetrieval::Needs CudaRetrieval::needs_of(const Plan& plan, const Fit& fit, std::int32_t budget) {
  MNEME_CHECK(host_reason(plan) == nullptr, "{}: no kernel has {}", plan.name(), host_reason(plan));
  const SelectionPlan r = selection_plan_of(plan, budget);
  Needs n;
  n.plans = {r};
  const bool selects = asks::selects(r);
  if (plan.lists) {
    n.keys.list_tokens = std::min(plan.lists->clusters.tokens, plan.lists->partition.smallest);
  } else if (attends_by_token(plan) || (asks::other_scores(r) && has_page_entries(plan))) {
    n.keys.by_token = attends_by_token(plan);
    if (selects) {
      n.keys.entries = entries_of(plan), n.keys.select_tokens = r.units.select_tokens;
      n.keys.fused_entries =
          device_form(plan) == DeviceForm::kFused && !(is_box(plan.selection.scores.index) && scores_boxes_unfused());
    }
  }
  n.keys.by_query_head = plan.by_query_head() && plan.shape.group() > 1;
  n.two_parts = attends_in_two_parts(plan);
  n.keys.none = !selects && !n.two_parts && !n.keys.by_token;
  n.keys.by_layer = plan.layer_selection.has_value();
  if (plan.key_basis == KeyBasis::kPreRope) n.ring_pages = pages_of(plan.rules.recent) + 1;
  for (std::int32_t l = 0; l < plan.shape.n_layers; ++l) n.dense.push_back(plan.dense_layer(l));
  // Sinks, window, selection and spare slots; and everything attended before a selection exists.
  const std::int32_t unit = r.units.tokens,
                     window = unit == 1 ? std::max(r.region.recent, r.units.entry_tokens) : r.region.recent,
                     fixed = (r.region.sink + window) / unit, all = (r.region.budget + unit - 1) / unit;
  // The window of a truncated sequence may be shorter.
  const std::int32_t n_selected = plan.lists ? r.region.budget - r.region.sink : r.region.n_select;
  auto spares = static_cast<std::int32_t>(fit.spare * static_cast<float>(n_selected));
  if (plan.norm) spares = std::clamp(kMaxKvSlots - fixed - n_selected, 0, spares);  // rather than refuse
  n.n_slots = std::max(fixed + (selects ? n_selected + spares : 0), all);
  n.max_listed = std::max(all, fixed + n_selected) + 1;
  return n;
}

CudaRetrievalNeeds CudaRetrievalNeeds::beside(const Keys& others) const {
  CudaRetrievalNeeds n = *this;
  if (others.of_tokens()) n.n_slots *= kPageTokens, n.max_listed *= kPageTokens;
  n.keys = others;
  return n;
}

bool CudaRetrievalNeeds::holds(const CudaRetrievalNeeds& other) const {
  if (other.keys.none && !keys.none) return holds(other.beside(keys));
  return goes_with(other) && keys == other.keys && n_slots >= other.n_slots && max_listed >= other.max_listed &&
         ring_pages >= other.ring_pages && cover(plans, other.plans, keys.entries);
}

void CudaRetrievalNeeds::add(const CudaRetrievalNeeds& other) {
  if (dense.empty()) dense = other.dense, keys = other.keys, two_parts = other.two_parts, ring_pages = other.ring_pages;
  if (other.keys.none && !keys.none) return add(other.beside(keys));
  if (keys.none && !other.keys.none) *this = beside(other.keys);
  MNEME_CHECK(goes_with(other), "state of methods that cannot share it");
  ring_pages = std::max(ring_pages, other.ring_pages);
  n_slots = std::max(n_slots, other.n_slots), max_listed = std::max(max_listed, other.max_listed);
  add_plans(plans, other.plans, keys.entries);
}

}  // namespace mneme
