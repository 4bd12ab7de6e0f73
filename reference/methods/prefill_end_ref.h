// Specification of drops when a prefill ends and in over-budget steps after it: computed from all keys and queries, in
// f64; between calls it keeps only the state that the method defines.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/kv/sequence_cache.h"
#include "src/recipes/compile.h"

namespace mneme {

// One layer of one sequence, pass after pass.
class ReferencePrefillEnd {
 public:
  ReferencePrefillEnd(std::shared_ptr<const Plan> plan, std::int32_t layer)
      : plan_(std::move(plan)), layer_(layer), heads_(plan_->shape.n_kv_heads) {}

  struct Queries {
    const float* q = nullptr;  // [n_rows, n_heads, D]
    std::int32_t n_rows = 0;
    bool decodes = false;
    std::int32_t prefill_left = 0;
  };
  struct Page {
    std::vector<std::int32_t> positions;
    std::int32_t step = 0;  // that stamped it last
    bool pinned = false;
  };
  struct Head {
    std::vector<std::int32_t> stored;  // positions, ascending
    std::vector<Page> pages;           // of rank=stamp
    std::vector<double> mass;          // of each stored token, from all rows
    std::vector<double> scores;        // of the tokens stored at the last decision; empty: no decision yet
    std::vector<std::int32_t> ranked;  // positions of `scores`
  };

  // Requires  `whole` stores every token of the sequence, those of the rows last.
  void see(const SequenceCache& whole, const Queries& rows);
  // Where layers share a budget by preference: after all of them have seen a pass, drops what they decided together.
  static void share_layers(std::span<ReferencePrefillEnd> layers);
  const std::vector<Head>& heads() const { return heads_; }
  std::int32_t budget() const { return budget_; }  // set by the norm rule; 0: none yet

 private:
  std::vector<double> probabilities(const SequenceCache& whole, const float* q, std::int32_t query_head,
                                    std::int32_t position) const;
  void decide(const SequenceCache& whole, bool decodes);
  std::int32_t pyramid_budget() const;
  std::vector<std::int32_t> head_budgets(std::int32_t n_keep) const;
  // (stored tokens of head m): what keep_by_rank ranks them by, summed over the heads that the decision covers.
  std::vector<double> rank_scores(std::int32_t m) const;
  void keep_by_rank(std::int32_t n_keep);
  void measure_preference();
  void make_pages(Head& head, std::int32_t step);
  void keep_by_stamps(std::int32_t step, bool decodes);
  double score_of(std::int32_t kv_head, std::int32_t t) const;
  void keep_by_norm();
  std::vector<double> smoothed(const std::vector<double>& scores) const;
  void keep(Head& head, const std::vector<bool>& stays);

  std::shared_ptr<const Plan> plan_;
  std::int32_t layer_;
  std::vector<Head> heads_;
  std::vector<std::vector<double>> received_;             // [query head][stored token]: from the observed rows
  std::vector<std::vector<std::vector<double>>> by_row_;  // the same, row by row
  bool deferred_ = false;
  double preference_ = 0;
  std::int32_t prompt_end_ = 0;
  struct SeenQuery {
    std::int32_t position;
    std::vector<float> q;
  };
  std::vector<SeenQuery> prefill_;
  std::int32_t budget_ = 0;
};

}  // namespace mneme
