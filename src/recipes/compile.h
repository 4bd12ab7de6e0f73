// A recipe made ready for one model: the only place that looks into its variants.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/blocks/partition.h"
#include "src/blocks/region.h"
#include "src/blocks/unit_index.h"
#include "src/recipes/recipe.h"

namespace mneme {

// What a method may know of a model.
struct MethodShape {
  std::int32_t n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0;
  DType kv_dtype = DType::kBF16;
  std::int32_t sliding_window = 0;  // of the model's own attention; 0: none

  std::int32_t group() const { return n_heads / n_kv_heads; }
  AttentionShape attention() const;
};

// How the group's scores become one row.
struct PoolPlan {
  std::optional<QueryPool> queries;  // pool the queries first, then score one row
  std::optional<GroupPool> scores;   // pool the rows of scores
  bool per_query_head = false;       // neither: every query head decides for itself
};

// Which selection a head attends where it does not make one with this step's query.
enum class Reuse : std::uint8_t {
  kNever,  // it always makes one
  kAhead,  // one made in the step before, with that step's query; the gate is asked KV head by KV head
  kKept,   // the one that it attended in the step before; the gate is asked once a layer
};

// One decision for all heads of a layer, by representatives of its units.
struct LayerChoice {
  std::int32_t top = 4;  // keys that represent a unit: at most as many as it has
  KeyMatch match = KeyMatch::kMean;
  std::int32_t n_units = 0;  // selected in a layer and step, on average
  std::optional<EntropyShare> entropy;

  // Every key of a unit of so many tokens stands for it, whatever attention it received.
  bool every_key(std::int32_t unit_tokens) const { return match == KeyMatch::kBest && top == unit_tokens; }
  // Vectors of an entry, and their length: one of all query heads, or one a key of all KV heads.
  std::int32_t entry_rows() const { return match == KeyMatch::kMean ? 1 : top; }
  std::int64_t entry_width(const MethodShape& shape) const {
    return std::int64_t{match == KeyMatch::kMean ? shape.n_heads : shape.n_kv_heads} * shape.head_dim;
  }
  std::size_t entry_bytes(const MethodShape& shape) const {
    return static_cast<std::size_t>(entry_rows() * entry_width(shape)) * 2;
  }
};

// How the list units of a plan come about.
struct ListPlan {
  PartitionRules partition;
  ClusterUnit clusters;
  bool copy = false;  // keys and values of units in a private copy
};

struct Plan {
  Recipe recipe;
  MethodShape shape;
  bool everything = true;  // attend all tokens that are stored, in every layer
  RegionRules rules;
  std::optional<ListPlan> lists;     // absent: units are stretches of rules.unit_tokens
  std::vector<bool> dense;           // by layer
  std::unique_ptr<UnitIndex> index;  // null: nothing is selected
  PoolPlan pool;
  float alpha = 1.0f;
  bool by_size = false;  // units score as many tokens as they have
  Probe probe = Probe::kCurrentQuery;
  Reuse reuse = Reuse::kNever;
  std::optional<CosineGate> gate;     // absent where nothing is reused, or by mass
  std::optional<MassGate> mass_gate;  // Reuse::kAhead alone
  GateReference reference = GateReference::kPrevious;
  std::int32_t max_reuse = 0;  // Reuse::kKept: steps that a selection may serve after its own; 0: no limit
  KeyBasis key_basis = KeyBasis::kTurned;
  // Where a query stands for what is not in its window; absent: where it is.
  std::optional<std::int32_t> far_position;

  std::optional<LayerChoice> layer_choice;

  bool selects() const { return index != nullptr || layer_choice; }
  bool drops() const { return recipe.prefill_end.has_value(); }
  // Of the rows of a prefill, how many at its end are looked at; 0: none.
  std::int32_t tap_rows() const;
  static constexpr std::int32_t kAllRows = std::numeric_limits<std::int32_t>::max();
  // Reads less than everything in this layer, or may.
  bool compressed(std::int32_t layer) const {
    return recipe.attend != Attend::kEverything && !dense[static_cast<std::size_t>(layer)];
  }
  bool dense_layer(std::int32_t layer) const { return everything || dense[static_cast<std::size_t>(layer)]; }
  // Selections that a layer keeps: one, one a KV head, or one a query head.
  std::int32_t selection_heads() const {
    return layer_choice ? 1 : pool.per_query_head ? shape.n_heads : shape.n_kv_heads;
  }
  std::int32_t compressed_layers() const {
    return static_cast<std::int32_t>(std::count(dense.begin(), dense.end(), false));
  }
  // Keys and values of a prompt depend on the method: a sequence is computed under it from the first token on, and
  // stays with it.
  bool binds_sequence() const { return recipe.prefill_window.has_value() || key_basis == KeyBasis::kRaw; }
  bool gated() const { return gate || mass_gate; }
  // Decisions that the gate makes in a layer and step.
  std::size_t gates() const {
    if (mass_gate) return static_cast<std::size_t>(selection_heads());
    return !gate ? 0 : reuse == Reuse::kKept ? 1 : static_cast<std::size_t>(shape.n_kv_heads);
  }
  // What pooled scores times this are logarithms of, up to a common factor: what units weigh in a softmax.
  float log_weight_scale() const {
    return pool.scores == GroupPool::kMaxProb || pool.scores == GroupPool::kMeanProb ? 1.0f : alpha;
  }
  // Selections are kept as rankings: units are of several sizes, or serve several steps.
  bool ranks() const { return lists.has_value() || reuse == Reuse::kKept; }
  // Index bytes a token of one KV head takes, compressed layers. Lists: about that, their sizes vary.
  double index_bytes_per_token() const;
};

// Why a recipe cannot be run on a model; empty: it can.
std::vector<std::string> check(const Recipe& recipe, const MethodShape& shape);

// Errors  kOption: what check() says.
std::shared_ptr<const Plan> compile(const Recipe& recipe, const MethodShape& shape);

}  // namespace mneme
