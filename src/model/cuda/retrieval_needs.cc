// Requirements of a method on the device, and checks of what the device supports.
#include <algorithm>

#include "src/base/error.h"
#include "src/model/cuda/retrieval.h"
#include "src/selection/cluster/kmeans_cuda.h"

namespace mneme {
namespace {

bool of_tokens(const Plan& plan) {
  return plan.recipe.decode && plan.recipe.decode->units == Units(TokenUnit{});
}

// Whether local and remote part are attended separately: by rotated queries, or up to the token.
bool in_two_parts(const Plan& plan) {
  return plan.recipe.prefill_window || plan.remote_position;
}

// Reason why the device cannot run a method with windowed prefill and a selection; null: it can.
const char* missing_by_layer(const Plan& plan) {
  const DecodeStage& d = *plan.recipe.decode;
  const auto* index = std::get_if<Representative>(&d.index);
  if (index == nullptr) return "it remaps positions and selects pages by KV head";
  if (d.units != Units(PageUnit{kPageTokens})) return "its units must be pages of 32 tokens (--kv unit=page:32)";
  if (!plan.layer_selection->every_key(kPageTokens))
    return "every key of a page must represent it (--kv match=best,top=32): the mass of local tokens is not "
           "accumulated on the device";
  if (plan.key_basis != KeyBasis::kPreRope) return "keys must be stored pre-RoPE (--kv positions=one_angle)";
  if (plan.recipe.sink % kPageTokens != 0 || plan.recipe.recent % kPageTokens != 0)
    return "sink and recent must be multiples of 32";
  if (plan.shape.head_dim != 64 && plan.shape.head_dim != 128) return "pages are selected with heads of 64 or 128";
  if (plan.layer_selection->entropy && plan.layer_selection->entropy->in_prefill)
    return "its layers share a budget in prefill too";
  return nullptr;
}

const char* missing_for_lists(const Plan& plan) {
  const DecodeStage& d = *plan.recipe.decode;
  const auto* centroid = std::get_if<Centroid>(&d.index);
  if (plan.shape.head_dim != 64 && plan.shape.head_dim != 128) return "clusters are selected with heads of 64 or 128";
  if (centroid == nullptr || centroid->by_size)
    return "clusters must be selected by the means of their keys, whatever their sizes (--kv index=centroid)";
  if (!std::holds_alternative<Boundary>(d.schedule))
    return "clusters are selected at boundaries (--kv schedule=boundary)";
  if (plan.lists->copy) return "its clusters have a copy of their own (--kv order=token has none)";
  if (plan.lists->partition.block > kMaxKmeansTokens)
    return "clusters are found in blocks of up to 8,192 tokens (--kv block=8192)";
  return nullptr;
}

const char* missing_for_tokens(const Plan& plan) {
  const DecodeStage& d = *plan.recipe.decode;
  if (plan.shape.head_dim != 64 && plan.shape.head_dim != 128) return "tokens are selected with heads of 64 or 128";
  if (!std::holds_alternative<OneBit>(d.index) && !std::holds_alternative<RawKeys>(d.index))
    return "tokens must be selected by their 1-bit keys or by their keys (--kv index=one_bit or index=keys)";
  if (std::holds_alternative<Boundary>(d.schedule)) return "single tokens are not selected at boundaries";
  return nullptr;
}

const char* missing_for_pages(const Plan& plan) {
  const DecodeStage& d = *plan.recipe.decode;
  if (d.units != Units(PageUnit{kPageTokens}))
    return "its units must be pages of 32 tokens (--kv unit=page:32), tokens with 1-bit keys (--kv "
           "unit=token,index=one_bit), or clusters (--kv unit=cluster:N,index=centroid,schedule=boundary)";
  if (std::holds_alternative<NoIndex>(d.index) || std::holds_alternative<RawKeys>(d.index)) return nullptr;
  const auto* box = std::get_if<Box>(&d.index);
  if (box == nullptr || box->kind != BoxKind::kMinMax)
    return "pages must be selected by min-max boxes (--kv index=box), or by their keys (index=keys)";
  return nullptr;
}

// Reason why the device cannot run a method; null: it can.
const char* missing_for(const Plan& plan) {
  const Recipe& r = plan.recipe;
  if (r.attend != Attend::kRegions) return nullptr;  // all stored tokens are attended
  if (in_two_parts(plan)) {
    return r.decode ? missing_by_layer(plan) : nullptr;
  }
  if (!of_tokens(plan) && !plan.lists && (r.sink % kPageTokens != 0 || r.recent % kPageTokens != 0))
    return "sink and recent must be multiples of 32";
  if (!r.decode) return nullptr;
  const DecodeStage& d = *r.decode;
  const char* units = plan.lists        ? missing_for_lists(plan)
                      : of_tokens(plan) ? missing_for_tokens(plan)
                                        : missing_for_pages(plan);
  if (units != nullptr) return units;
  if (std::holds_alternative<RawKeys>(d.index) && !std::holds_alternative<EveryStep>(d.schedule))
    return "what is selected by its keys is selected at every step (--kv schedule=every_step)";
  if (d.probe != Probe::kCurrentQuery) return "its probe is the layer below";
  const bool alone = plan.shape.group() == 1 && d.pool == Pool::kNone;  // every query head is a KV head
  if (!alone && (d.pool == Pool::kNone || d.pool == Pool::kMaxQ || d.pool == Pool::kMeanQ || d.pool == Pool::kConcat))
    return "scores must be pooled by KV head (--kv pool=meanS, maxS, meanQK or maxQK)";
  if (!std::holds_alternative<ConstantCut>(d.cutoff)) return "its layers share a budget";
  return nullptr;
}

SlotScore score_of(const DecodeStage& d) {
  return std::holds_alternative<RandomScore>(d.score) ? SlotScore::kRandom
         : std::holds_alternative<RawKeys>(d.index)   ? SlotScore::kKeys
                                                      : SlotScore::kIndex;
}

SlotGate gate_of(GatePool pool) {
  return pool == GatePool::kMean ? SlotGate::kMean : pool == GatePool::kMax ? SlotGate::kMax : SlotGate::kAny;
}

}  // namespace

void CudaRetrieval::expect(const Plan& plan, std::span<const Plan* const> beside) {
  if (const char* reason = missing_for(plan))
    fail(ErrorKind::kUnsupported, "KV method {} on device cuda: {}; such methods run with --device cpu",
         plan.recipe.name, reason);
  if (beside.empty() || plan.recipe.attend != Attend::kRegions) return;
  Needs needs = needs_of(plan, 0);
  for (const Plan* other : beside)
    if (other->recipe.attend == Attend::kRegions) needs.add(needs_of(*other, 0));
}

SlotRules CudaRetrieval::rules_of(const Plan& plan, std::int32_t budget) {
  SlotRules r{.budget = budget, .sink = plan.rules.sink, .recent = plan.rules.recent};
  if (plan.lists) {
    // As many tokens as the smallest window leaves: a segment of the largest size has just left it.
    r.unit_tokens = r.entry_tokens = 1;
    r.n_select = std::max(0, r.budget - r.sink - std::max(1, r.recent - plan.lists->partition.largest + 1));
  } else if (of_tokens(plan)) {
    r.unit_tokens = 1, r.entry_tokens = plan.rules.entry_tokens;
    r.n_select = std::max(0, r.budget - r.sink - std::max(r.recent, 1));
  } else {
    // With two-part attention the table has pages for all local tokens, and attention masks the others.
    if (in_two_parts(plan) && !plan.layer_selection)
      r.sink = whole_pages(r.sink), r.recent = whole_pages(r.recent) + kPageTokens;
    r.recent = std::max(r.recent, kPageTokens);
    r.n_select = std::max(0, (r.budget - r.sink - r.recent) / kPageTokens);
  }
  // A budget set by the prompt may be below sinks and window, which are everything until there are more tokens. The
  // window of lists may temporarily be shorter than `recent`; the budget then selects more.
  if (plan.recipe.norm && !plan.lists) r.budget = std::max(r.budget, r.sink + r.recent);
  if (!plan.recipe.decode) return r;
  r.fetch = plan.recipe.decode->unit_fetch;
  if (plan.layer_selection) {
    const std::int32_t k = plan.layer_selection->n_units;
    r.n_select = plan.layer_selection->entropy ? EntropyCut::most(k) : k;
    r.schedule = SlotSchedule::kEveryStep;
    return r;
  }
  r.schedule = plan.reuse == Reuse::kSpeculative ? SlotSchedule::kSpeculative
               : plan.reuse == Reuse::kKept      ? SlotSchedule::kKept
                                                 : SlotSchedule::kEveryStep;
  r.score = score_of(*plan.recipe.decode);
  if (const auto* random = std::get_if<RandomScore>(&plan.recipe.decode->score)) r.seed = random->seed;
  r.pool = plan.pool.scores.value_or(GroupPool::kMean);
  r.alpha = plan.alpha;
  if (plan.gate) r.gate = gate_of(plan.gate->pool), r.tau = plan.gate->tau;
  if (plan.mass_gate) r.gate = SlotGate::kMass, r.eps = plan.mass_gate->eps;
  r.max_reuse = plan.max_reuse;
  r.last_asked = plan.gate && plan.reference == GateReference::kLastRetrieval ? 1 : 0;
  return r;
}

SlotRules CudaRetrieval::rules_in(const MethodState& method, std::size_t number) const {
  const Plan& plan = method.plan();
  const bool by_prompt = plan.recipe.norm && number < selecting_.size();
  SlotRules r = rules_of(plan, by_prompt ? method.rules(selecting_[number]).budget : plan.rules.budget);
  r.unit_tokens = view_.unit_tokens;  // entry_tokens stay pages: the window is the same
  r.turnover = options_.turnover, r.correction = options_.correction;
  return r;
}

CudaRetrieval::Needs CudaRetrieval::needs_of(const MethodState& method, std::int32_t length, bool decodes,
                                             float spare) {
  const Plan& plan = method.plan();
  if (!plan.recipe.norm) return needs_of(plan, spare);
  std::int32_t most = 0;
  for (std::int32_t l = 0; l < plan.shape.n_layers; ++l) {
    if (!plan.compressed(l)) continue;
    const std::int32_t set = method.layer(l).budget;
    most = std::max(most, set > 0 ? set : decodes ? length : 0);
  }
  if (most <= plan.rules.budget) return needs_of(plan, spare);
  constexpr std::int32_t kStep = 512;  // so that not every prompt reallocates
  return needs_of(plan, spare, (most + kStep - 1) / kStep * kStep);
}

CudaRetrieval::Needs CudaRetrieval::needs_of(const Plan& plan, float spare, std::int32_t budget) {
  expect(plan);
  const SlotRules r = rules_of(plan, budget);
  Needs n;
  n.selects = r.schedule != SlotSchedule::kNone, n.speculative = r.schedule == SlotSchedule::kSpeculative;
  n.keeps = r.schedule == SlotSchedule::kKept;
  n.last_asked = r.last_asked != 0, n.by_mass = r.gate == SlotGate::kMass;
  n.controls = r.score != SlotScore::kIndex;
  n.by_prompt = plan.recipe.norm.has_value();
  n.fetch = r.fetch;
  if (plan.lists) {
    n.keys.list_tokens = std::min(plan.lists->clusters.tokens, plan.lists->partition.smallest);
  } else if (of_tokens(plan)) {
    if (const auto* bits = std::get_if<OneBit>(&plan.recipe.decode->index))
      n.keys = {.group_tokens = bits->group, .mean_abs = bits->levels == OneBitLevels::kMeanAbs};
    n.keys.by_key = n.controls;
  }
  n.two_parts = in_two_parts(plan);
  n.keys.none = !n.selects && !n.two_parts;
  n.newest = n.speculative && n.keys.group_tokens > 0 && r.recent <= n.keys.group_tokens;
  n.keys.by_layer = plan.layer_selection.has_value();
  if (plan.key_basis == KeyBasis::kPreRope) n.ring_pages = pages_of_tokens(plan.rules.recent) + 1;
  for (std::int32_t l = 0; l < plan.shape.n_layers; ++l) n.dense.push_back(plan.dense_layer(l));
  // Sinks, window, selection and spare slots; and everything attended before a selection exists.
  const std::int32_t unit = r.unit_tokens, window = unit == 1 ? std::max(r.recent, r.entry_tokens) : r.recent,
                     fixed = (r.sink + window) / unit, all = (r.budget + unit - 1) / unit;
  // The window of a truncated sequence may be shorter.
  const std::int32_t n_selected = plan.lists ? r.budget - r.sink : r.n_select;
  auto spares = static_cast<std::int32_t>(spare * static_cast<float>(n_selected));
  if (n.by_prompt) spares = std::clamp(kMaxKvSlots - fixed - n_selected, 0, spares);  // rather than refuse
  n.n_slots = std::max(fixed + (n.selects ? n_selected + spares : 0), all);
  n.max_listed = std::max(all, fixed + n_selected) + 1;
  return n;
}

CudaRetrieval::Needs CudaRetrieval::Needs::beside(const Keys& others) const {
  Needs n = *this;
  if (others.of_tokens()) n.n_slots *= kPageTokens, n.max_listed *= kPageTokens;
  n.keys = others;
  return n;
}

bool CudaRetrieval::Needs::holds(const Needs& other) const {
  if (other.keys.none && !keys.none) return holds(other.beside(keys));
  return goes_with(other) && keys == other.keys && n_slots >= other.n_slots && max_listed >= other.max_listed &&
         fetch >= other.fetch && selects >= other.selects && speculative >= other.speculative && keeps >= other.keeps &&
         by_mass >= other.by_mass && newest >= other.newest && by_prompt >= other.by_prompt &&
         controls >= other.controls && last_asked >= other.last_asked && ring_pages >= other.ring_pages;
}

void CudaRetrieval::Needs::add(const Needs& other) {
  if (dense.empty()) dense = other.dense, keys = other.keys, two_parts = other.two_parts, ring_pages = other.ring_pages;
  if (other.keys.none && !keys.none) return add(other.beside(keys));
  if (keys.none && !other.keys.none) *this = beside(other.keys);
  if (keys != other.keys)
    fail(
        ErrorKind::kUnsupported,
        "KV methods on device cuda that run at the same time must select units of one kind: pages, tokens by 1-bit "
        "keys of the same groups and levels, tokens by their keys, or clusters and segments of the same smallest size");
  if (two_parts != other.two_parts || (ring_pages > 0) != (other.ring_pages > 0))
    fail(ErrorKind::kUnsupported,
         "KV methods on device cuda that run at the same time must agree on where tokens stand (--kv positions) and "
         "whether prefill is windowed");
  if (dense != other.dense)
    fail(ErrorKind::kUnsupported,
         "KV methods on device cuda that run at the same time must have the same dense layers (--dense-layers)");
  ring_pages = std::max(ring_pages, other.ring_pages);
  n_slots = std::max(n_slots, other.n_slots), max_listed = std::max(max_listed, other.max_listed);
  fetch = std::max(fetch, other.fetch);
  selects = selects || other.selects, speculative = speculative || other.speculative,
  last_asked = last_asked || other.last_asked;
  by_prompt = by_prompt || other.by_prompt;
  by_mass = by_mass || other.by_mass, newest = newest || other.newest;
  controls = controls || other.controls, keeps = keeps || other.keeps;
}

}  // namespace mneme
