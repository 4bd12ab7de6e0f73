// Decides which tokens to keep when a prefill ends, and after over-budget steps, from the attention that they received;
// shared by CPU and device. Decisions are pending in the sequence's MethodState until its commit().
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "src/kv/sequence_cache.h"
#include "src/methods/method_state.h"
#include "src/selection/mass/keep_rule.h"

namespace mneme {

// Attention mass from rows of a sequence to the stored tokens of one layer.
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
  std::span<float> row(std::int32_t h) { return std::span(values).subspan(first[h], length[h]); }
};

// The rows that gave the mass; their keys are the last stored.
struct DropRows {
  const SequenceCache* cache = nullptr;
  MethodState* method = nullptr;
  bool decodes = false;       // false: a prefill ends with them
  std::int32_t observed = 0;  // how many of the last rows gave the mass
  // Start of the norm rule's suffix, as a rank, if known already.
  std::optional<std::int32_t> suffix;
};

class DropDecider {
 public:
  // Whether decode steps drop too.
  static bool each_step(const Plan& plan) {
    return plan.drops() && plan.recipe.prefill_end->when == DropWhen::kOverBudget;
  }
  // Whether decide() uses the mass from the observed rows. With Plan::kAllRows it uses Pending::mass instead.
  static bool needs_mass(std::int32_t layer, const SequenceCache& cache, const Plan& plan);
  // Whether the norm rule's suffix is all that it needs.
  static bool needs_suffix_alone(const Plan& plan);
  static NormRule norm_rule(std::int32_t layer, const SequenceCache& cache, const Plan& plan);

  // Requires  mass where needs_mass(); per query head for the norm rule. Modifies mass.
  void decide(std::int32_t layer, const DropRows& rows, LayerMass& mass);

 private:
  void keep_by_rank(std::int32_t layer, const DropRows& rows, LayerMass& mass, std::int32_t n_keep);
  void decide_by_norm(std::int32_t layer, const DropRows& rows, LayerMass& mass);

  KeepScratch scratch_;
  std::vector<std::vector<float>> scores_;  // by KV head
};

}  // namespace mneme
