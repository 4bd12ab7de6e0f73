// The specification of decode attention under a method: everything recomputed from the keys at every step, in f64 where
// it matters, one head after the other. Slow, and plainly right; the fast form and the CUDA form are tested against it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/cache/sequence_cache.h"
#include "src/kernels/rope.h"
#include "src/recipes/compile.h"

namespace mneme {

// What one selection head attended.
struct ReferenceHead {
  std::vector<std::int32_t> units;   // selected, ascending
  std::vector<double> unit_scores;   // pooled score of every candidate when the selection was made
  std::int32_t first_unit = 0;       // of unit_scores
  std::vector<std::int32_t> tokens;  // all attended tokens, ascending
  bool anew = false;                 // selected with this step's query
};

// One layer of one sequence, step after step.
class ReferenceLayer {
 public:
  ReferenceLayer(std::shared_ptr<const Plan> plan, std::int32_t layer, RopeTable rope = {})
      : plan_(std::move(plan)), layer_(layer), rope_(std::move(rope)) {}

  // The newest token's key and value are in the cache already.   q, query_below (of the layer below; may be null)
  // [n_heads, D]; out [n_heads, D].
  std::vector<ReferenceHead> step(const SequenceCache& cache, const float* q, const float* query_below, float* out);

 private:
  using Tokens = std::vector<std::int32_t>;
  // What a selection head may choose from, and how good it is.
  struct Choice {
    std::vector<Tokens> candidates;
    std::vector<double> scores;
    std::int32_t first_unit = 0;
  };
  Region region(std::int32_t n) const;
  std::vector<Tokens> candidates(const SequenceCache& cache, const Region& region, std::int32_t kv_head) const;
  void see(std::int32_t n, const float* q);
  Choice choose(const SequenceCache& cache, const Region& region, std::int32_t selection_head, const float* q) const;
  std::vector<double> unit_scores(const SequenceCache& cache, std::int32_t kv_head, const Tokens& unit,
                                  const std::vector<std::vector<double>>& queries) const;
  double missing(const Choice& now, const Choice& ahead, std::size_t n_units) const;
  bool moved(std::int32_t first_head, std::int32_t n_heads, const float* q) const;
  bool select_anew(std::int32_t n, std::int32_t kv_head, const float* q) const;

  std::shared_ptr<const Plan> plan_;
  std::int32_t layer_;
  RopeTable rope_;
  std::vector<SeenToken> seen_;
  PartitionedTokens partition_;  // where units are lists
  std::vector<float> last_query_;
  std::vector<Choice> ready_;  // by selection head: made ahead, or kept
  std::int32_t ready_for_ = -1, queried_for_ = -1, reused_ = 0;
};

}  // namespace mneme
