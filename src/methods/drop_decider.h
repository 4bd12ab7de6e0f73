// Which tokens stay when a prefill ends, and after over-budget steps, by the attention that they received: the half of
// it that is the same wherever that attention was measured. Decisions are pending in the sequence's MethodState until
// its commit().
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "src/attention/method_state.h"
#include "src/blocks/keep_rule.h"
#include "src/cache/sequence_cache.h"

namespace mneme {

// What rows of a sequence gave to the stored tokens of one layer.
struct LayerMass {
  enum class By : std::uint8_t { kQueryHead, kKvHead };
  By by = By::kQueryHead;
  // Row h, by rank: values [first[h], first[h] + length[h]).
  std::vector<float> values;
  std::vector<std::size_t> first, length;

  void clear() { values.clear(), first.clear(), length.clear(); }
  void add_row(std::size_t n) {
    first.push_back(values.size());
    length.push_back(n);
    values.resize(values.size() + n, 0.0f);
  }
  std::span<float> row(std::int32_t h) {
    return std::span(values).subspan(first[static_cast<std::size_t>(h)], length[static_cast<std::size_t>(h)]);
  }
};

// Rows that were seen, whose keys are the last that are stored.
struct DropRows {
  const SequenceCache* cache = nullptr;
  MethodState* method = nullptr;
  bool decodes = false;     // else a prefill ends with them
  std::int32_t tapped = 0;  // how many of the last ones gave the mass
  // The rank where the suffix of the norm rule begins, if somebody has found it already.
  std::optional<std::int32_t> suffix;
};

class DropDecider {
 public:
  // Whether rows that decode are decided about.
  static bool each_step(const Plan& plan) {
    return plan.drops() && plan.recipe.prefill_end->when == DropWhen::kOverBudget;
  }
  // Whether decide() looks at the mass that the tapped rows gave. With Plan::kAllRows it is Pending::mass instead.
  static bool needs_mass(std::int32_t layer, const SequenceCache& cache, const Plan& plan);
  // The norm rule's suffix of the newest tokens is all that it asks for.
  static bool needs_suffix_alone(const Plan& plan);
  static NormRule norm_rule(std::int32_t layer, const SequenceCache& cache, const Plan& plan);

  // Requires  mass as needs_mass() says; by query head where the norm decides. It is changed.
  void decide(std::int32_t layer, const DropRows& rows, LayerMass& mass);

 private:
  void keep_by_rank(std::int32_t layer, const DropRows& rows, LayerMass& mass, std::int32_t n_keep);
  void decide_by_norm(std::int32_t layer, const DropRows& rows, LayerMass& mass);

  KeepScratch scratch_;
  std::vector<float> scores_;
};

}  // namespace mneme
