// Specification of decode attention under a method: recomputes everything from the keys at every step, in f64 where
// precision matters, one head after the other. The CPU and CUDA forms are tested against it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "src/kv/sequence_cache.h"
#include "src/ops/norm_rope/rope.h"
#include "src/recipes/compile.h"

namespace mneme {

// What one selection head attended.
struct ReferenceHead {
  std::vector<std::int32_t> units;   // selected, ascending
  std::vector<double> unit_scores;   // pooled scores of all candidates at the time of the selection
  std::int32_t first_unit = 0;       // first unit of unit_scores
  std::vector<std::int32_t> tokens;  // all attended tokens, ascending
  bool reselected = false;           // selected with this step's query
};

// One layer of one sequence, step after step.
class ReferenceLayer {
 public:
  ReferenceLayer(std::shared_ptr<const Plan> plan, std::int32_t layer, RopeTable rope = {})
      : plan_(std::move(plan)), layer_(layer), rope_(std::move(rope)) {}

  // Requires  the newest token's key and value are in the cache.
  //   q [n_heads, D]; out [n_heads, D]
  std::vector<ReferenceHead> step(const SequenceCache& cache, const float* q, float* out);

 private:
  using Tokens = std::vector<std::int32_t>;
  using Queries = std::vector<std::vector<double>>;
  // Candidates of a selection head and their scores.
  struct Selection {
    std::vector<Tokens> candidates;
    std::vector<double> scores;
    std::int32_t first_unit = 0;
    std::optional<double> fixed;  // pooled score of sinks and window, where the softmax is over them too
  };
  Region region(std::int32_t n) const;
  std::vector<Tokens> candidates(const SequenceCache& cache, const Region& region, std::int32_t kv_head) const;
  void see(std::int32_t n, const float* q);
  Queries probes(std::int32_t selection_head, const float* q) const;
  Selection select(const SequenceCache& cache, const Region& region, std::int32_t selection_head, const float* q) const;
  std::vector<double> pool_scores(const std::vector<std::vector<double>>& scores) const;
  std::vector<double> unit_scores(const SequenceCache& cache, std::int32_t kv_head, const Tokens& unit,
                                  const Queries& queries) const;
  std::vector<std::vector<double>> query_scores(const SequenceCache& cache, const Region& region,
                                                std::int32_t selection_head, const float* q) const;
  void hold(std::int32_t n, std::int32_t s, std::size_t n_units, Selection& selection);
  void keep_top_p(const SequenceCache& cache, std::int32_t s, const float* q, std::vector<bool>& taken) const;
  bool full_head(std::int32_t kv_head) const {
    const auto& heads = plan_->recipe.full_heads;
    return heads && !plan_->dense_layer(layer_) && heads->full[layer_ * heads->n_kv_heads + kv_head] != 0;
  }
  std::vector<double> fixed_scores(const SequenceCache& cache, const Region& region, std::int32_t kv_head,
                                   const Queries& queries) const;
  bool missing_too_much(const Selection& now, const Selection& speculative, std::size_t n_units) const;
  bool moved(std::int32_t first_head, std::int32_t n_heads, const float* q) const;
  bool reselect(std::int32_t n, std::int32_t kv_head, const float* q) const;
  Selection decide(const SequenceCache& cache, const Region& region, std::int32_t s, const float* q,
                   ReferenceHead& head) const;
  static void take_units(const Selection& selection, const Region& region, std::vector<bool>& taken,
                         ReferenceHead& head);
  void attend(const SequenceCache& cache, const Region& region, const std::vector<std::int32_t>& tokens, std::int32_t h,
              const float* q, float* out) const;
  void remember(std::int32_t n, bool selects, const std::vector<ReferenceHead>& heads, const float* q,
                std::vector<Selection> next);

  std::shared_ptr<const Plan> plan_;
  std::int32_t layer_;
  RopeTable rope_;
  std::vector<SeenToken> seen_;
  PartitionedTokens partition_;  // for units that are lists
  std::vector<float> last_query_;
  struct Held {
    std::vector<std::int32_t> units;
    std::int32_t step = -1;  // that may hold them
  };
  std::vector<Held> held_;        // by selection head, with hold=UNITS
  std::vector<Selection> ready_;  // by selection head: speculative or kept selections
  std::int32_t ready_for_ = -1, queried_for_ = -1, reused_ = 0;
};

}  // namespace mneme
