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

  // With rank=mass_var, by query head: sums of the squares, laid out as `values`, and the entropy of all rows and heads
  // over the tokens before the window.
  std::vector<float> squares;
  double entropy = 0;

  void clear() { values.clear(), squares.clear(), first.clear(), length.clear(), entropy = 0; }
  void add_row(std::size_t n) {
    first.push_back(values.size());
    length.push_back(n);
    values.resize(values.size() + n, 0.0f);
  }
  std::span<float> row(std::int32_t h) { return std::span(values).subspan(first[h], length[h]); }
  std::span<const float> squares_of(std::int32_t h) const { return std::span(squares).subspan(first[h], length[h]); }
};

// The rows that gave the mass; their keys are the last stored.
struct DropQueries {
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
  static bool each_step(const Plan& plan) { return plan.drops() && plan.drop->when == DropWhen::kOverBudget; }
  // Whether decide() uses the mass from the observed rows. With Plan::kAllRows it uses Pending::mass instead.
  static bool needs_mass(std::int32_t layer, const SequenceCache& cache, const Plan& plan);
  // Whether the norm rule's suffix is all that it needs.
  static bool needs_suffix_alone(const Plan& plan);
  static NormRule norm_rule(std::int32_t layer, const SequenceCache& cache, const Plan& plan);

  // Whether decide() looks at squares and entropy of the mass, by query head.
  static bool needs_moments(const Plan& plan) { return plan.drops() && plan.drop->rank == Rank::kMassVariance; }
  // Whether a layer's decision waits for all others': decide() is then called layer by layer, in one thread.
  static bool by_all_layers(const Plan& plan) { return plan.drops() && plan.drop->share == ShareKind::kPreference; }

  // Requires  mass where needs_mass(); per query head for the norm rule. Modifies mass.
  void decide(std::int32_t layer, const DropQueries& rows, LayerMass& mass);

 private:
  void rank_heads(std::int32_t layer, const DropQueries& rows, LayerMass& mass);
  void keep_by_rank(std::int32_t layer, const DropQueries& rows, LayerMass& mass, std::int32_t n_keep);
  void defer(std::int32_t layer, const DropQueries& rows, LayerMass& mass);
  void share_by_preference(const DropQueries& rows);
  static void count_kept(std::int32_t layer, const DropQueries& rows);
  void decide_by_stamps(std::int32_t layer, const DropQueries& rows, LayerMass& mass);
  void decide_by_norm(std::int32_t layer, const DropQueries& rows, LayerMass& mass);

  KeepScratch scratch_;
  std::vector<std::vector<float>> scores_;  // by KV head
  std::vector<std::int32_t> sinks_;         // by KV head: sinks stored
};

}  // namespace mneme
