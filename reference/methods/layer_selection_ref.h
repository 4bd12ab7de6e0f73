// Specification of a method that selects for a whole layer, in prefill and decode: one layer of one sequence, in f64,
// without any reuse between rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "reference/methods/positions_ref.h"
#include "src/base/size32.h"
#include "src/kv/sequence_cache.h"
#include "src/selection/region/region.h"

namespace mneme {

class LayerSelectionRef {
 public:
  LayerSelectionRef(std::shared_ptr<const Plan> plan, RopeTable rope, std::int32_t layer)
      : plan_(std::move(plan)), rope_(std::move(rope)), layer_(layer) {}

  // Positions of the prompt's question; call before they are fed.
  void set_question_span(std::int32_t begin, std::int32_t end) { span_ = {begin, end}; }

  struct Selection {
    std::vector<double> weights;  // of the rows, in the probe
    std::vector<double> scores;   // by candidate, starting at first_unit
    std::int32_t first_unit = 0;
    std::vector<std::int32_t> units;  // the best n_units, or all candidates
    bool everything = false;
  };
  // Selection of the next rows [begin, end) of a sequence, stored in `cache`, as one prefill window or one step;
  // n_units are wanted.
  //   q  [rows, n_heads, D] post-RoPE
  Selection select(const SequenceCache& cache, std::int32_t begin, std::int32_t end, const float* q, bool prefill,
                   std::int32_t n_units);
  // Attention of those rows over the selection.   out  [rows, n_heads, D]
  void attend(const SequenceCache& cache, const Selection& selection, std::int32_t begin, std::int32_t end,
              const float* q, float* out);

  // Representative of unit u: KeyMatch::kMean  [n_heads * D], length 1; kBest  [top, n_kv_heads * D].
  // Requires  u < filed().
  const std::vector<double>& representative(std::int32_t u) const { return units_[u]; }
  // Mass of token t for query head h, up to now or until its unit was filed.
  double mass(std::int32_t h, std::int32_t t) const { return mass_[h][t]; }
  std::int32_t filed() const { return size32(units_); }

 private:
  // Whether scores are dot products with unscaled means, not cosines.
  bool dots() const { return std::get<Representative>(plan_->recipe.decode->index).similarity == Similarity::kDot; }
  std::vector<double> key(const SequenceCache& cache, std::int32_t kv_head, std::int32_t t) const;
  std::vector<double> remote(const float* q, std::int32_t position) const;  // all heads
  void file(const SequenceCache& cache, std::int32_t n_tokens);
  std::vector<double> mean_of_top(const SequenceCache& cache, std::int32_t begin) const;
  std::vector<double> top_keys(const SequenceCache& cache, std::int32_t begin) const;
  double cosine(const std::vector<double>& probe, std::int32_t u) const;  // probe: [n_heads * D], length 1

  std::shared_ptr<const Plan> plan_;
  RopeTable rope_;
  std::int32_t layer_;
  std::vector<std::vector<double>> prefill_rows_;  // remote queries of every prefill row
  std::vector<std::vector<double>> units_;         // by unit; those among the sinks are never scored
  std::vector<std::vector<double>> mass_;          // [n_heads][token]
  std::pair<std::int32_t, std::int32_t> span_{0, 0};
  std::vector<std::vector<double>> span_rows_;
  std::vector<double> question_;
};

}  // namespace mneme
