// The plan of a method: a recipe compiled for a model's shape. compile() is the only code that inspects a recipe's
// variants; host and device read the plan.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/base/size32.h"
#include "src/offload/selection_plan.h"
#include "src/recipes/recipe.h"
#include "src/selection/cluster/partition.h"
#include "src/selection/index/unit_index.h"
#include "src/selection/pool/group_pool.h"
#include "src/selection/region/region.h"

namespace mneme {

// What a method knows of a model.
struct MethodShape {
  std::int32_t n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0;
  DType kv_dtype = DType::kBF16;
  std::int32_t sliding_window = 0;  // the model's own sliding window; 0: none
  std::vector<bool> windowed = {};  // which layers have it; empty: all of them
  // Every layer rotates queries and keys alike, and last: they can be turned to other positions.
  bool turns_positions = true;

  std::int32_t group() const { return n_heads / n_kv_heads; }
  std::int32_t window_of(std::int32_t layer) const { return windowed.empty() || windowed[layer] ? sliding_window : 0; }
  AttentionShape attention() const;
};

enum class UnitKind : std::uint8_t {
  kToken,
  kPage,  // RegionRules::unit_tokens consecutive tokens
  kList,  // clusters of the prompt, segments of the answer (ListPlan)
};

// One selection for all heads of a layer, by representatives of its units.
struct LayerSelection {
  std::int32_t top = 4;  // keys that represent a unit, at most as many as it has tokens
  KeyMatch match = KeyMatch::kMean;
  Similarity similarity = Similarity::kCosine;
  std::int32_t n_units = 0;  // selected per layer and step, on average
  std::optional<EntropyShare> entropy;

  // Whether every key of a unit of this size represents it, so that mass does not matter.
  bool every_key(std::int32_t unit_tokens) const { return match == KeyMatch::kBest && top == unit_tokens; }
  // Vectors of an entry, and their length: one over all query heads, or one per key over all KV heads.
  std::int32_t entry_rows() const { return match == KeyMatch::kMean ? 1 : top; }
  std::int64_t entry_width(const MethodShape& shape) const {
    return std::int64_t{match == KeyMatch::kMean ? shape.n_heads : shape.n_kv_heads} * shape.head_dim;
  }
  std::size_t entry_bytes(const MethodShape& shape) const { return std::size_t{2} * entry_rows() * entry_width(shape); }
};

// How list units are built.
struct ListPlan {
  PartitionRules partition;
  ClusterUnit clusters;
  bool copy = false;  // private copy of the units' keys and values
};

enum class ShareKind : std::uint8_t { kEven, kPyramid, kHeads, kPreference };

// What a method drops for good.
struct DropPlan {
  std::int32_t budget = 0, sink = 0, recent = 0;  // tokens
  Rank rank = Rank::kMass;
  float gamma = 0;  // of Rank::kMassVariance
  Stamps stamps;    // of Rank::kStamp
  std::int32_t smooth = 1;
  SmoothBy smooth_by = SmoothBy::kMean;
  DropScope scope = DropScope::kKvHead;
  DropWhen when = DropWhen::kPrefillEnd;
  ShareKind share = ShareKind::kEven;
  PyramidShare pyramid;
  HeadShare heads;
  PreferenceShare preference;
};

struct Plan {
  Recipe recipe;  // what was compiled, for its name and its text
  MethodShape shape;
  Attend attend = Attend::kEverything;
  bool everything = true;  // attend all stored tokens in every layer
  RegionRules rules;
  UnitKind unit = UnitKind::kToken;
  std::optional<ListPlan> lists;         // of UnitKind::kList
  std::vector<bool> dense;               // by layer; those with the model's own window are
  std::vector<std::uint8_t> full_heads;  // FullHeads::full; empty: none
  std::unique_ptr<UnitIndex> index;      // null: no selection
  SelectionPlan selection;               // read by kernels, too
  std::optional<PrefillWindow> window;   // windowed prefill
  std::optional<NormRule> norm;          // the prompt sets the budgets of its layers
  std::optional<DropPlan> drop;
  std::int32_t observed_rows = 0;  // rows at the end of a prefill whose attention `norm` and `drop` look at
  KeyBasis key_basis = KeyBasis::kPostRope;
  // Remapped position of a query for tokens outside of its window; absent: its own position.
  std::optional<std::int32_t> remote_position;

  std::optional<LayerSelection> layer_selection;

  const std::string& name() const { return recipe.name; }
  std::int32_t budget() const { return drop ? drop->budget : rules.budget; }
  bool selects() const { return index != nullptr || layer_selection; }
  bool drops() const { return drop.has_value(); }
  static constexpr std::int32_t kAllRows = std::numeric_limits<std::int32_t>::max();
  // Whether the KV head attends every token in any case.
  bool full_head(std::int32_t layer, std::int32_t kv_head) const {
    return !full_heads.empty() && full_heads[layer * shape.n_kv_heads + kv_head] != 0;
  }
  // Whether the layer attends, or may attend, less than all tokens.
  bool compressed(std::int32_t layer) const { return attend != Attend::kEverything && !dense[layer]; }
  bool dense_layer(std::int32_t layer) const { return everything || dense[layer]; }
  // Selections per layer: one, one per KV head, or one per query head.
  std::int32_t selection_heads() const {
    return layer_selection ? 1 : by_query_head() ? shape.n_heads : shape.n_kv_heads;
  }
  std::int32_t compressed_layers() const { return count32(std::count(dense.begin(), dense.end(), false)); }
  // Keys and values of a prompt depend on the method: a sequence is computed under it from the first token on, and
  // cannot change it.
  bool binds_sequence() const { return window.has_value() || key_basis == KeyBasis::kPreRope; }
  bool by_query_head() const { return selects() && selection.scores.pool == Pool::kNone; }
  bool speculative() const { return selection.schedule == ScheduleKind::kSpeculative; }
  bool keeps() const { return selection.schedule == ScheduleKind::kBoundary; }
  // What a head attends in a step in which it makes no selection with this step's query is an earlier selection.
  bool reuses() const { return speculative() || keeps(); }
  bool gated() const { return selection.gate.kind != GateKind::kNone; }
  bool cosine_gate() const { return selection.gate.kind == GateKind::kCosine; }
  bool mass_gate() const { return selection.gate.kind == GateKind::kMass; }
  // Gate decisions per layer and step.
  std::int32_t gates() const {
    if (mass_gate()) return selection_heads();
    return !cosine_gate() ? 0 : keeps() ? 1 : shape.n_kv_heads;
  }
  // Factor that turns pooled scores into logarithms of softmax weights, up to a common offset.
  float log_weight_scale() const { return pools_weights(selection.scores.pool) ? 1.0f : selection.scores.alpha; }
  // Selections are stored as rankings: units vary in size, or serve several steps.
  bool ranks() const { return lists.has_value() || keeps(); }
  // Index bytes per token and KV head in compressed layers. For lists an estimate, because sizes vary.
  double index_bytes_per_token() const;
};

// Reasons why a recipe cannot run on a model; empty: it can.
std::vector<std::string> check(const Recipe& recipe, const MethodShape& shape);

// Errors  kOption: the reasons of check().
std::shared_ptr<const Plan> compile(const Recipe& recipe, const MethodShape& shape);

}  // namespace mneme
