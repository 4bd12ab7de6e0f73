#include "src/recipes/compile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/recipes/blocks/check_blocks.h"
#include "src/recipes/blocks/full_heads.h"
#include "src/recipes/device_form.h"
#include "src/selection/summary/summary_index.h"

namespace mneme {
namespace {

template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

struct PlannedIndex {
  EntryKind kind = EntryKind::kNone;
  std::unique_ptr<UnitIndex> index;
};

PlannedIndex make_index(const DecodeStage& stage) {
  const std::int32_t p = unit_tokens(stage.units.prompt);
  if (const auto* random = std::get_if<RandomScore>(&stage.score)) return {.index = make_random_index(random->seed)};
  const auto made = [](EntryKind kind, std::unique_ptr<UnitIndex> index) {
    return PlannedIndex{kind, std::move(index)};
  };
  return std::visit(
      Overloaded{[&](const NoIndex&) { return made(EntryKind::kNone, nullptr); },
                 [&](const RawKeys&) { return made(EntryKind::kKeys, make_raw_key_index(p)); },
                 [&](const Box& box) {
                   const bool min_max = box.kind == BoxKind::kMinMax;
                   return made(min_max ? EntryKind::kMinMaxBox : EntryKind::kCuboidBox, make_box_index(box.kind, p));
                 },
                 [&](const OneBit& bits) {
                   const bool min_max = bits.levels == OneBitLevels::kMinMax;
                   return made(min_max ? EntryKind::kOneBitMinMax : EntryKind::kOneBitMeanAbs,
                               make_one_bit_index(bits, p));
                 },
                 [&](const Representative&) { return made(EntryKind::kRepresentative, nullptr); },
                 [&](const Centroid&) { return made(EntryKind::kCentroid, make_centroid_index(p)); },
                 [&](const CentroidSet& set) { return made(EntryKind::kCentroidSet, make_centroids_index(set.k, p)); },
                 [&](const Sketch& sketch) { return made(EntryKind::kSketch, make_sketch_index(sketch.rank, p)); },
                 [&](const Moments&) { return made(EntryKind::kMoments, make_moments_index(p)); }},
      stage.index);
}

// A head has no more directions than channels: a sketch of more is one of them all, so that a default serves small heads.
void fit_to_head(const MethodShape& shape, Recipe& recipe) {
  if (!recipe.decode || shape.head_dim < 1) return;
  if (auto* sketch = std::get_if<Sketch>(&recipe.decode->index)) sketch->rank = std::min(sketch->rank, shape.head_dim);
}

RegionRules rules_of(const Recipe& r, const UnitIndex* index) {
  RegionRules rules{.budget = r.budget, .sink = r.sink, .recent = r.recent};
  if (r.decode) {
    rules.unit_tokens = unit_tokens(r.decode->units.prompt);
    rules.entry_tokens = index == nullptr ? rules.unit_tokens : index->entry_tokens();
    const auto* bits = std::get_if<OneBit>(&r.decode->index);
    if (bits != nullptr && bits->score_open_group) rules.entry_tokens = rules.unit_tokens;
  } else {
    rules.recent = r.budget - r.sink;  // no selection: the window takes the budget
  }
  return rules;
}

void check_layer_selection(const Recipe& r, std::vector<std::string>& reasons) {
  const DecodeStage& stage = *r.decode;
  const bool by_layer = std::holds_alternative<Representative>(stage.index);
  if (by_layer != (stage.pool == Pool::kConcat))
    reasons.push_back("index=representative and pool=concat need one another");
  if (!by_layer && std::holds_alternative<EntropyShare>(stage.cutoff))
    reasons.push_back("layers share a budget by the scores of index=representative: use cutoff=constant");
  if (!by_layer) return;
  if (!r.prefill_window)
    reasons.push_back("index=representative is made from windows of queries: use prefill=window:N");
  if (!std::holds_alternative<EveryStep>(stage.schedule))
    reasons.push_back("index=representative is scored with the current query: use schedule=every_step");
  if (r.recent < 1)
    reasons.push_back("index=representative needs recent tokens: their attention is what it is made of");
}

void check_positions(const Recipe& r, std::vector<std::string>& reasons) {
  if (r.prefill_window && r.prefill_window->rows < 1) reasons.push_back("a window of prefill has at least one row");
  const bool by_layer = r.decode && std::holds_alternative<Representative>(r.decode->index);
  if (r.prefill_window && r.decode && !by_layer)
    reasons.push_back("a windowed prefill selects for a whole layer: use index=representative, or prefill=exact");
  switch (r.positions) {
    case Positions::kAbsolute:
      return;
    case Positions::kInCache:
      if (r.decode)
        reasons.push_back("positions=in_cache would number every selected token again: use it without a selection");
      return;
    case Positions::kOneAngle:
      if (!r.prefill_window) reasons.push_back("positions=one_angle keeps keys before RoPE: use prefill=window:N");
      if (r.decode && r.recent < 1) reasons.push_back("positions=one_angle needs recent tokens to stand behind");
      return;
  }
}

const ClusterUnit* cluster_unit_of(const DecodeStage& stage) {
  return std::get_if<ClusterUnit>(&stage.units.prompt);
}

PartitionRules partition_of(const Recipe& r) {
  const auto& segments = std::get<SegmentUnit>(r.decode->units.output);
  return {.sink = r.sink,
          .recent = r.recent,
          .block = cluster_unit_of(*r.decode)->block,
          .smallest = segments.smallest,
          .largest = segments.largest,
          .cluster_segments = segments.clustered};
}

void check_units(const Recipe& r, std::vector<std::string>& reasons) {
  const DecodeStage& stage = *r.decode;
  const ClusterUnit* clusters = cluster_unit_of(stage);
  if (clusters == nullptr) {
    if (!(stage.units.prompt == stage.units.output) || std::holds_alternative<SegmentUnit>(stage.units.prompt))
      reasons.push_back("prompt and answer must have the same unit; segments go with unit=cluster:N");
    if (stage.order == Order::kUnit) reasons.push_back("order=unit copies lists: use unit=cluster:N");
    return;
  }
  if (!std::holds_alternative<SegmentUnit>(stage.units.output)) {
    reasons.push_back("clusters are of prompts; an answer goes by segments");
    return;
  }
  if (clusters->tokens < 1 || clusters->iterations < 1 || clusters->block < clusters->tokens || clusters->block > 65535)
    reasons.push_back(
        fmt::format("clusters of {} tokens in blocks of {}, {} iterations: expected at least 1 token, 1 "
                    "iteration, and blocks of one cluster to 65,535 tokens",
                    clusters->tokens, clusters->block, clusters->iterations));
  if (const char* reason = check_partition(partition_of(r))) reasons.push_back(reason);
  if (!std::holds_alternative<NoIndex>(stage.index) && !std::holds_alternative<Box>(stage.index) &&
      !std::holds_alternative<Centroid>(stage.index))
    reasons.push_back("a cluster is scored by one entry: use index=centroid, box or cuboid");
  if (std::holds_alternative<Speculative>(stage.schedule))
    reasons.push_back("segments form while decoding and cannot be selected speculatively: use schedule=boundary");
}

void plan_gate(const CosineGate& gate, SelectionPlan::Gate& to) {
  to.kind = GateKind::kCosine, to.pool = gate.pool, to.tau = gate.tau;
}

void plan_schedule(const Schedule& schedule, SelectionPlan& plan) {
  std::visit(Overloaded{[&](const EveryStep&) { plan.schedule = ScheduleKind::kEveryStep; },
                        [&](const Speculative& s) {
                          plan.schedule = ScheduleKind::kSpeculative;
                          if (const auto* cosine = std::get_if<CosineGate>(&s.gate)) plan_gate(*cosine, plan.gate);
                          if (const auto* mass = std::get_if<MassGate>(&s.gate))
                            plan.gate.kind = GateKind::kMass, plan.gate.eps = mass->eps,
                            plan.gate.of_attended = mass->of_attended;
                        },
                        [&](const Boundary& b) {
                          plan.schedule = ScheduleKind::kBoundary;
                          plan_gate(b.gate, plan.gate);
                          plan.gate.reference = b.reference, plan.gate.max_reuse = b.max_reuse;
                        }},
             schedule);
}

void plan_selection(const DecodeStage& stage, const MethodShape& shape, SelectionPlan& plan) {
  plan_schedule(stage.schedule, plan);
  plan.scores = {
      .pool = stage.pool, .alpha = stage.alpha == Alpha::kOne ? 1.0f : shape.attention().scale, .domain = stage.domain};
  if (const auto* set = std::get_if<CentroidSet>(&stage.index)) plan.scores.rank = set->k;
  if (const auto* sketch = std::get_if<Sketch>(&stage.index)) plan.scores.rank = sketch->rank;
  if (const auto* centroid = std::get_if<Centroid>(&stage.index)) plan.scores.by_size = centroid->by_size;
  if (const auto* random = std::get_if<RandomScore>(&stage.score)) plan.seed = random->seed;
  if (const auto* top_p = std::get_if<TopP>(&stage.cutoff)) plan.top_p = std::min(top_p->p, 1.0f);
  plan.scope = stage.select;
  plan.hold = stage.hold;
}

// One selection for all heads of a layer.
void plan_layer_selection(const DecodeStage& stage, Plan& plan) {
  const auto* index = std::get_if<Representative>(&stage.index);
  if (index == nullptr) return;
  const RegionRules& rules = plan.rules;
  plan.layer_selection = {.top = std::min(index->top, rules.unit_tokens),
                          .match = index->match,
                          .similarity = index->similarity,
                          .n_units = (rules.budget - rules.sink - rules.recent) / rules.unit_tokens,
                          .entropy = {}};
  if (const auto* entropy = std::get_if<EntropyShare>(&stage.cutoff)) plan.layer_selection->entropy = *entropy;
}

DropPlan make_drop(const Recipe& r) {
  const DropStage& stage = *r.prefill_end;
  DropPlan plan{.budget = r.budget,
                .sink = r.sink,
                .recent = r.recent,
                .rank = stage.rank,
                .gamma = stage.gamma,
                .stamps = stage.stamps,
                .smooth = stage.smooth,
                .smooth_by = stage.smooth_by,
                .scope = stage.scope,
                .when = stage.when};
  std::visit(Overloaded{[](const EvenShare&) {},
                        [&](const PyramidShare& s) { plan.share = ShareKind::kPyramid, plan.pyramid = s; },
                        [&](const HeadShare& s) { plan.share = ShareKind::kHeads, plan.heads = s; },
                        [&](const PreferenceShare& s) { plan.share = ShareKind::kPreference, plan.preference = s; }},
             stage.share);
  return plan;
}

// What the end of a prefill looks at and drops.
void plan_prefill_end(const Recipe& r, Plan& plan) {
  if (r.norm) plan.norm = norm_rule(*r.norm);
  if (r.prefill_end) plan.drop = make_drop(r);
  if (!r.norm && !r.prefill_end) return;
  const auto* last = std::get_if<LastRows>(&r.rows);
  plan.observed_rows = last == nullptr ? Plan::kAllRows : last->n;
}

void plan_decode(Plan& plan) {
  const DecodeStage& stage = *plan.recipe.decode;
  PlannedIndex made = make_index(stage);
  plan.index = std::move(made.index);
  plan_selection(stage, plan.shape, plan.selection);
  plan.selection.scores.index = made.kind;
  plan.unit = std::holds_alternative<PageUnit>(stage.units.prompt) ? UnitKind::kPage : UnitKind::kToken;
  if (const ClusterUnit* clusters = cluster_unit_of(stage)) {
    plan.unit = UnitKind::kList;
    plan.lists =
        ListPlan{.partition = partition_of(plan.recipe), .clusters = *clusters, .copy = stage.order == Order::kUnit};
  }
}

// Reasons why a drop stage cannot run.
void check_drop(const Recipe& r, std::vector<std::string>& reasons) {
  const DropStage& stage = *r.prefill_end;
  const auto* last = std::get_if<LastRows>(&r.rows);
  const bool each_step = stage.when == DropWhen::kOverBudget;
  if (r.decode) reasons.push_back("a method that drops attends all that is left: it selects nothing");
  check_rank(r, reasons);
  check_share(r, reasons);
  if (stage.smooth < 1 || stage.smooth % 2 == 0)
    reasons.push_back(fmt::format("smoothing over {} tokens: expected an odd number", stage.smooth));
  if (each_step && stage.rank == Rank::kMass && last != nullptr && last->n != 1)
    reasons.push_back("drop=over_budget looks at one row a step: use rows=1 or rows=all");
  if (r.norm) {
    if (each_step) reasons.push_back("budget=norm is set when a prefill ends: it goes with drop=prefill_end");
    if (stage.scope != DropScope::kLayer) reasons.push_back("budget=norm has one cut a layer: use scope=layer");
    if (stage.smooth != 1) reasons.push_back("budget=norm ranks without smoothing: use smooth=none");
  } else if (r.sink < 0 || r.recent < 0 || r.budget < 2 || std::int64_t{r.sink} + r.recent > r.budget) {
    reasons.push_back(
        fmt::format("budget {}, sink {}, recent {}: the budget must hold sink and recent, and at least two tokens",
                    r.budget, r.sink, r.recent));
  }
}

void check_norm(const Recipe& r, std::vector<std::string>& reasons) {
  if (!std::holds_alternative<LastRows>(r.rows)) reasons.push_back("budget=norm looks at the last rows: use rows=N");
  if (!r.decode && !r.prefill_end) reasons.push_back("budget=norm needs a method that selects or drops");
}

}  // namespace

AttentionShape MethodShape::attention() const {
  return {.group = group(),
          .head_dim = head_dim,
          .kv_dtype = kv_dtype,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

double Plan::index_bytes_per_token() const {
  if (layer_selection) return ratio(layer_selection->entry_bytes(shape), shape.n_kv_heads * rules.unit_tokens);
  if (index == nullptr) return 0;
  const auto entry = real(index->entry_bytes(shape.attention()));
  if (!lists) return entry / index->entry_tokens();
  // An entry and a size per unit, a position per token.
  return (entry + sizeof(std::int32_t)) / lists->clusters.tokens + sizeof(std::int32_t);
}

std::vector<std::string> check(const Recipe& r, const MethodShape& shape) {
  std::vector<std::string> reasons;
  if (r.attend == Attend::kEverything) {
    if (r.prefill_window || r.positions != Positions::kAbsolute)
      reasons.push_back("full attention knows neither windows of prefill nor positions of its own");
    return reasons;
  }
  const bool any_full = std::find(shape.windowed.begin(), shape.windowed.end(), false) != shape.windowed.end();
  if (shape.sliding_window > 0 && !any_full)
    reasons.push_back("the model's own attention is a sliding window; methods need layers with full attention");
  for (std::int32_t layer : r.dense_layers)
    if (layer < 0 || layer >= shape.n_layers)
      reasons.push_back(
          fmt::format("dense layer {} does not exist; the model has layers 0 to {}", layer, shape.n_layers - 1));
  check_positions(r, reasons);
  if (r.positions != Positions::kAbsolute && !shape.turns_positions)
    reasons.push_back(
        "this model cannot turn queries to other positions (layers without RoPE or with two, norms behind RoPE, or "
        "RoPE "
        "that scales a part of a head): use positions=absolute");
  if (r.norm) check_norm(r, reasons);
  check_full_heads(r, shape, reasons);
  if ((r.attend == Attend::kKept) != r.prefill_end.has_value())
    reasons.push_back("what is attended and what is dropped do not go together");
  if ((r.norm || r.prefill_end) && (r.prefill_window || r.positions != Positions::kAbsolute))
    reasons.push_back(
        "what the end of a prefill looks at needs an exact prefill: use prefill=exact, positions=absolute");
  if (r.prefill_end) {
    check_drop(r, reasons);
    return reasons;
  }
  if (!r.decode) {
    if (r.sink < 0 || r.sink >= r.budget)
      reasons.push_back(fmt::format("sink {} must be below the budget {}", r.sink, r.budget));
    return reasons;
  }
  check_layer_selection(r, reasons);
  const DecodeStage& stage = *r.decode;
  const bool random = std::holds_alternative<RandomScore>(stage.score);
  if (random != std::holds_alternative<NoIndex>(stage.index))
    reasons.push_back("index=none goes with the random control, and nothing else does");
  check_units(r, reasons);
  if (random && !std::holds_alternative<EveryStep>(stage.schedule))
    reasons.push_back("the random control uses no query and selects at every step: use schedule=every_step");
  if (std::holds_alternative<TokenUnit>(stage.units.prompt) &&
      (std::holds_alternative<Box>(stage.index) || std::holds_alternative<Centroid>(stage.index)))
    reasons.push_back("a unit of one token has no box or centroid: use unit=page:N, or index=keys with unit=token");
  check_summaries(r, reasons);
  check_domain(r, reasons);
  check_choice(r, reasons);
  const std::unique_ptr<UnitIndex> index = make_index(stage).index;
  const RegionRules rules = rules_of(r, index.get());
  if (const char* reason = check_region(rules)) {
    const std::int64_t least = least_budget(rules);
    reasons.push_back(fmt::format("budget {}, sink {}, recent {}, unit {}: {}{}", r.budget, r.sink, r.recent,
                                  unit_tokens(stage.units.prompt), reason,
                                  r.budget < least ? fmt::format(": at least {}", least) : ""));
  }
  return reasons;
}

std::shared_ptr<const Plan> compile(const Recipe& recipe, const MethodShape& shape) {
  const std::vector<std::string> reasons = check(recipe, shape);
  if (!reasons.empty()) fail(ErrorKind::kOption, "KV method '{}': {}", recipe.name, fmt::join(reasons, "; "));
  auto plan = std::make_shared<Plan>();
  plan->recipe = recipe;
  plan->shape = shape;
  fit_to_head(shape, plan->recipe);
  plan->attend = recipe.attend;
  plan->everything = recipe.attend != Attend::kRegions;
  plan->dense.assign(shape.n_layers, false);
  if (recipe.attend == Attend::kEverything) return plan;
  for (std::int32_t layer : recipe.dense_layers) plan->dense[layer] = true;
  for (std::int32_t layer = 0; layer < size32(shape.windowed); ++layer)
    if (shape.windowed[layer]) plan->dense[layer] = true;
  if (recipe.full_heads) plan->full_heads = recipe.full_heads->full;
  plan->window = recipe.prefill_window;
  plan_prefill_end(recipe, *plan);
  if (recipe.decode) plan_decode(*plan);
  if (!plan->everything) plan->rules = rules_of(recipe, plan->index.get());
  if (recipe.decode) plan_layer_selection(*recipe.decode, *plan);
  if (recipe.positions == Positions::kInCache) plan->remote_position = recipe.budget - 1;
  if (recipe.positions == Positions::kOneAngle) {
    plan->remote_position = plan->rules.recent - 1;
    plan->key_basis = KeyBasis::kPreRope;
  }
  set_slot_region(*plan, plan->rules.budget, plan->selection);
  return plan;
}

}  // namespace mneme
