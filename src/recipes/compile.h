// Compiles a recipe for a model's shape: the only code that inspects its variants.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/base/size32.h"
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

// How the scores of a GQA group become one row.
struct PoolPlan {
  std::optional<QueryPool> queries;  // pools the queries, then scores one row
  std::optional<GroupPool> scores;   // pool the rows of scores
  bool per_query_head = false;       // neither: every query head selects for itself
};

// What a head attends in a step in which it makes no selection with this step's query.
enum class Reuse : std::uint8_t {
  kNever,        // not applicable: it selects at every step
  kSpeculative,  // the selection made in the previous step, with that step's query; gate per KV head
  kKept,         // the selection that it attended in the previous step; gate per layer
};

// One selection for all heads of a layer, by representatives of its units.
struct LayerSelection {
  std::int32_t top = 4;  // keys that represent a unit, at most as many as it has tokens
  KeyMatch match = KeyMatch::kMean;
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

struct Plan {
  Recipe recipe;
  MethodShape shape;
  bool everything = true;  // attend all stored tokens in every layer
  RegionRules rules;
  std::optional<ListPlan> lists;     // absent: units are ranges of rules.unit_tokens
  std::vector<bool> dense;           // by layer; those with the model's own window are
  std::unique_ptr<UnitIndex> index;  // null: no selection
  PoolPlan pool;
  float alpha = 1.0f;
  Domain domain = Domain::kCandidates;
  bool by_size = false;  // units score as if they had that many tokens with their key
  Reuse reuse = Reuse::kNever;
  std::optional<CosineGate> gate;     // absent where nothing is reused, or with a mass gate
  std::optional<MassGate> mass_gate;  // Reuse::kSpeculative only
  GateReference reference = GateReference::kPrevious;
  std::int32_t max_reuse = 0;  // Reuse::kKept: steps that a selection is reused after its own; 0: no limit
  KeyBasis key_basis = KeyBasis::kPostRope;
  // Remapped position of a query for tokens outside of its window; absent: its own position.
  std::optional<std::int32_t> remote_position;

  std::optional<LayerSelection> layer_selection;

  bool selects() const { return index != nullptr || layer_selection; }
  bool drops() const { return recipe.prefill_end.has_value(); }
  // Rows at the end of a prefill whose attention is observed; 0: none.
  std::int32_t observed_rows() const;
  static constexpr std::int32_t kAllRows = std::numeric_limits<std::int32_t>::max();
  // Whether the layer attends, or may attend, less than all tokens.
  bool compressed(std::int32_t layer) const { return recipe.attend != Attend::kEverything && !dense[layer]; }
  bool dense_layer(std::int32_t layer) const { return everything || dense[layer]; }
  // Selections per layer: one, one per KV head, or one per query head.
  std::int32_t selection_heads() const {
    return layer_selection ? 1 : pool.per_query_head ? shape.n_heads : shape.n_kv_heads;
  }
  std::int32_t compressed_layers() const { return count32(std::count(dense.begin(), dense.end(), false)); }
  // Keys and values of a prompt depend on the method: a sequence is computed under it from the first token on, and
  // cannot change it.
  bool binds_sequence() const { return recipe.prefill_window.has_value() || key_basis == KeyBasis::kPreRope; }
  bool gated() const { return gate || mass_gate; }
  // Gate decisions per layer and step.
  std::int32_t gates() const {
    if (mass_gate) return selection_heads();
    return !gate ? 0 : reuse == Reuse::kKept ? 1 : shape.n_kv_heads;
  }
  // Factor that turns pooled scores into logarithms of softmax weights, up to a common offset.
  float log_weight_scale() const {
    return pool.scores == GroupPool::kMaxProb || pool.scores == GroupPool::kMeanProb ? 1.0f : alpha;
  }
  // Selections are stored as rankings: units vary in size, or serve several steps.
  bool ranks() const { return lists.has_value() || reuse == Reuse::kKept; }
  // Index bytes per token and KV head in compressed layers. For lists an estimate, because sizes vary.
  double index_bytes_per_token() const;
};

// Reasons why a recipe cannot run on a model; empty: it can.
std::vector<std::string> check(const Recipe& recipe, const MethodShape& shape);

// Errors  kOption: the reasons of check().
std::shared_ptr<const Plan> compile(const Recipe& recipe, const MethodShape& shape);

}  // namespace mneme
