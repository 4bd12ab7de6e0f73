// Requirements of a method on the device, and checks of what the device supports.
#include <algorithm>

#include "src/base/check.h"
#include "src/cuda/loaded_code_cuda.h"
#include "src/model/cuda/retrieval/retrieval.h"
#include "src/recipes/device_form.h"

namespace mneme {
namespace {

// rank: centroids of an entry, or coefficients of a token.
UnitEntries entries_of(const Plan& plan) {
  const Index& index = plan.recipe.decode->index;
  UnitEntries e;
  if (const auto* box = std::get_if<Box>(&index))
    e.kind = box->kind == BoxKind::kMinMax ? EntryKind::kMinMaxBox : EntryKind::kCuboidBox;
  if (const auto* bits = std::get_if<OneBit>(&index))
    e.kind = bits->levels == OneBitLevels::kMinMax ? EntryKind::kOneBitMinMax : EntryKind::kOneBitMeanAbs;
  if (const auto* set = std::get_if<CentroidSet>(&index)) e.kind = EntryKind::kCentroidSet, e.rank = set->k;
  if (const auto* sketch = std::get_if<Sketch>(&index)) e.kind = EntryKind::kSketch, e.rank = sketch->rank;
  if (std::holds_alternative<Moments>(index)) e.kind = EntryKind::kMoments;
  if (std::holds_alternative<Centroid>(index)) e.kind = EntryKind::kCentroid;
  if (e.kind == EntryKind::kNone) return e;
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

SlotScore score_of(const Plan& plan) {
  const DecodeStage& d = *plan.recipe.decode;
  if (std::holds_alternative<RandomScore>(d.score)) return SlotScore::kRandom;
  if (std::holds_alternative<RawKeys>(d.index)) return SlotScore::kKeys;
  if (device_form(plan) != DeviceForm::kFused || std::holds_alternative<CentroidSet>(d.index) ||
      std::holds_alternative<Sketch>(d.index))
    return SlotScore::kEntries;
  const bool by_boxes = std::holds_alternative<Box>(d.index);
  return by_boxes && (attends_by_token(plan) || scores_boxes_unfused()) ? SlotScore::kEntries : SlotScore::kIndex;
}

SlotQueryPool query_pool_of(const Plan& plan) {
  if (!plan.pool.queries) return SlotQueryPool::kNone;
  return *plan.pool.queries == QueryPool::kMax ? SlotQueryPool::kMax : SlotQueryPool::kMean;
}

SlotGate gate_of(GatePool pool) {
  return pool == GatePool::kMean ? SlotGate::kMean : pool == GatePool::kMax ? SlotGate::kMax : SlotGate::kAny;
}

}  // namespace

SelectionPlan CudaRetrieval::selection_plan_of(const Plan& plan, std::int32_t budget) {
  SelectionPlan r{.region = {.budget = budget, .sink = plan.rules.sink, .recent = plan.rules.recent}};
  if (plan.lists) {
    // As many tokens as the smallest window leaves: a segment of the largest size has just left it.
    r.units.tokens = r.units.entry_tokens = 1;
    r.region.n_select =
        std::max(0, r.region.budget - r.region.sink - std::max(1, r.region.recent - plan.lists->partition.largest + 1));
  } else if (attends_by_token(plan)) {
    const std::int32_t p = plan.rules.unit_tokens;
    r.units.tokens = 1, r.units.select_tokens = p, r.units.entry_tokens = std::max(p, plan.rules.entry_tokens);
    const std::int32_t window = p == 1 ? std::max(r.region.recent, 1) : std::max(r.region.recent, r.units.entry_tokens);
    r.region.n_select = std::max(0, r.region.budget - r.region.sink - window) / p * p;
  } else {
    // With two-part attention the table has pages for all local tokens, and attention masks the others.
    if (attends_in_two_parts(plan) && !plan.layer_selection)
      r.region.sink = whole_pages(r.region.sink), r.region.recent = whole_pages(r.region.recent) + kPageTokens;
    r.region.recent = std::max(r.region.recent, kPageTokens);
    r.region.n_select = std::max(0, (r.region.budget - r.region.sink - r.region.recent) / kPageTokens);
  }
  // A budget set by the prompt may be below sinks and window, which are everything until there are more tokens. The
  // window of lists may temporarily be shorter than `recent`; the budget then selects more.
  if (plan.recipe.norm && !plan.lists) r.region.budget = std::max(r.region.budget, r.region.sink + r.region.recent);
  if (!plan.recipe.decode) return r;
  if (plan.layer_selection) {
    const std::int32_t k = plan.layer_selection->n_units;
    r.region.n_select = plan.layer_selection->entropy ? EntropyCut::most(k) : k;
    r.schedule = SlotSchedule::kEveryStep;
    return r;
  }
  r.schedule = plan.reuse == Reuse::kSpeculative ? SlotSchedule::kSpeculative
               : plan.reuse == Reuse::kKept      ? SlotSchedule::kKept
                                                 : SlotSchedule::kEveryStep;
  r.scores.by = score_of(plan);
  r.scores.query_pool = query_pool_of(plan);
  if (const auto* random = std::get_if<RandomScore>(&plan.recipe.decode->score)) r.seed = random->seed;
  r.scores.pool = plan.pool.scores.value_or(GroupPool::kMean);
  r.scores.alpha = plan.alpha;
  if (plan.gate) r.gate.kind = gate_of(plan.gate->pool), r.gate.tau = plan.gate->tau;
  if (plan.mass_gate)
    r.gate.kind = plan.mass_gate->of_attended ? SlotGate::kAttendedMass : SlotGate::kMass,
    r.gate.eps = plan.mass_gate->eps;
  r.scores.by_size = plan.by_size ? 1 : 0;
  r.scores.whole_attention = plan.domain == Domain::kAttention ? 1 : 0;
  r.gate.max_reuse = plan.max_reuse;
  r.pools_layer = plan.recipe.decode->select == SelectScope::kLayer ? 1 : 0;
  r.hold = plan.recipe.decode->hold;
  if (const auto* top_p = std::get_if<TopP>(&plan.recipe.decode->cutoff)) r.top_p = top_p->p;
  r.gate.last_asked = plan.gate && plan.reference == GateReference::kLastRetrieval ? 1 : 0;
  return r;
}

SelectionPlan CudaRetrieval::selection_plan_in(const MethodState& method, std::size_t number) const {
  const Plan& plan = method.plan();
  const bool by_prompt = plan.recipe.norm && number < layers_.selecting().size();
  SelectionPlan r =
      selection_plan_of(plan, by_prompt ? method.rules(layers_.selecting()[number]).budget : plan.rules.budget);
  r.units.tokens = view_.unit_tokens;  // entry_tokens stay pages: the window is the same
  return r;
}

CudaRetrieval::Needs CudaRetrieval::needs_of(const MethodState& method, std::int32_t length, bool decodes,
                                             const Fit& fit) {
  const Plan& plan = method.plan();
  if (!plan.recipe.norm) return needs_of(plan, fit);
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

namespace {

// Whether a selection's candidates may be of the group or entry that its step completes: for this step where entries are
// larger than what leaves the window as one, for the next where the window is short.
bool may_select_newest(const CudaRetrievalNeeds::Keys& keys, const SelectionPlan& r) {
  return keys.entries.tokens > r.units.entry_tokens ||
         (r.schedule == SlotSchedule::kSpeculative && keys.entries.kind != EntryKind::kNone &&
          r.region.recent < r.units.entry_tokens + r.units.select_tokens);
}

RetrievalUses uses_of(const Plan& plan, const SelectionPlan& r) {
  RetrievalUses u;
  const bool selects = r.schedule != SlotSchedule::kNone;
  u.add(RetrievalUse::kSelects, selects);
  u.add(RetrievalUse::kSpeculative, r.schedule == SlotSchedule::kSpeculative);
  u.add(RetrievalUse::kKeeps, r.schedule == SlotSchedule::kKept);
  u.add(RetrievalUse::kFused, selects && r.scores.by == SlotScore::kIndex);
  u.add(RetrievalUse::kUnfused, selects && r.scores.by != SlotScore::kIndex);
  u.add(RetrievalUse::kLastAsked, r.gate.last_asked != 0);
  u.add(RetrievalUse::kMassGate, plan.mass_gate.has_value());
  u.add(RetrievalUse::kWholeAttention, r.scores.whole_attention != 0);
  u.add(RetrievalUse::kPoolsLayers, r.pools_layer != 0);
  u.add(RetrievalUse::kPrunes, r.top_p < 1);
  u.add(RetrievalUse::kBudgetByPrompt, plan.recipe.norm.has_value());
  return u;
}

}  // namespace

CudaRetrieval::Needs CudaRetrieval::needs_of(const Plan& plan, const Fit& fit, std::int32_t budget) {
  MNEME_CHECK(host_reason(plan) == nullptr, "{}: no kernel has {}", plan.recipe.name, host_reason(plan));
  const SelectionPlan r = selection_plan_of(plan, budget);
  Needs n;
  n.uses = uses_of(plan, r);
  const bool selects = n.uses.has(RetrievalUse::kSelects);
  if (plan.lists) {
    n.keys.list_tokens = std::min(plan.lists->clusters.tokens, plan.lists->partition.smallest);
  } else if (attends_by_token(plan) || (n.uses.has(RetrievalUse::kUnfused) && has_page_entries(plan))) {
    n.keys.by_token = attends_by_token(plan);
    if (selects) {
      n.keys.entries = entries_of(plan), n.keys.select_tokens = r.units.select_tokens;
      n.keys.fused_entries = device_form(plan) == DeviceForm::kFused &&
                             !(std::holds_alternative<Box>(plan.recipe.decode->index) && scores_boxes_unfused());
    }
  }
  n.keys.by_query_head = selects && plan.pool.per_query_head && plan.shape.group() > 1;
  n.two_parts = attends_in_two_parts(plan);
  n.keys.none = !selects && !n.two_parts && !n.keys.by_token;
  n.uses.add(RetrievalUse::kNewest, may_select_newest(n.keys, r));
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
  if (n.uses.has(RetrievalUse::kBudgetByPrompt))
    spares = std::clamp(kMaxKvSlots - fixed - n_selected, 0, spares);  // rather than refuse
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
         ring_pages >= other.ring_pages && uses.hold(other.uses);
}

void CudaRetrievalNeeds::add(const CudaRetrievalNeeds& other) {
  if (dense.empty()) dense = other.dense, keys = other.keys, two_parts = other.two_parts, ring_pages = other.ring_pages;
  if (other.keys.none && !keys.none) return add(other.beside(keys));
  if (keys.none && !other.keys.none) *this = beside(other.keys);
  MNEME_CHECK(goes_with(other), "state of methods that cannot share it");
  ring_pages = std::max(ring_pages, other.ring_pages);
  n_slots = std::max(n_slots, other.n_slots), max_listed = std::max(max_listed, other.max_listed);
  uses.add(other.uses);
}

}  // namespace mneme
