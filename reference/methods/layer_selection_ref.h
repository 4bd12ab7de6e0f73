// The specification of a method that decides for a whole layer, in prefill and decode: one layer of one sequence, in
// f64, everything kept and nothing shared.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/attention/positions_ref.h"
#include "src/blocks/region.h"
#include "src/cache/sequence_cache.h"

namespace mneme {

class LayerChoiceRef {
 public:
  LayerChoiceRef(std::shared_ptr<const Plan> plan, RopeTable rope, std::int32_t layer)
      : plan_(std::move(plan)), rope_(std::move(rope)), layer_(layer) {}

  // Positions of the prompt's question, before they come.
  void set_question_span(std::int32_t begin, std::int32_t end) { span_ = {begin, end}; }

  struct Choice {
    std::vector<double> weights;  // of the rows in the probe
    std::vector<double> scores;   // by candidate, from first_unit on
    std::int32_t first_unit = 0;
    std::vector<std::int32_t> units;  // selected: the best n_units, or all of them
    bool everything = false;
  };
  // The next rows [begin, end) of a sequence, whose keys and values `cache` holds, as one window of prefill or one
  // step: what they select when `n_units` are wanted.   q  [rows, n_heads, D] after RoPE
  Choice choose(const SequenceCache& cache, std::int32_t begin, std::int32_t end, const float* q, bool prefill,
                std::int32_t n_units);
  // Then: their attention over it.   out  [rows, n_heads, D]
  void attend(const SequenceCache& cache, const Choice& choice, std::int32_t begin, std::int32_t end, const float* q,
              float* out);

  // What stands for unit u: KeyMatch::kMean  [n_heads * D], length 1; kBest  [top, n_kv_heads * D].
  // Requires  it is filed.
  const std::vector<double>& representative(std::int32_t u) const { return units_[static_cast<std::size_t>(u)]; }
  // Mass of token t for query head h when its unit was filed, or so far.
  double mass(std::int32_t h, std::int32_t t) const {
    return mass_[static_cast<std::size_t>(h)][static_cast<std::size_t>(t)];
  }
  std::int32_t filed() const { return static_cast<std::int32_t>(units_.size()); }

 private:
  std::vector<double> key(const SequenceCache& cache, std::int32_t kv_head, std::int32_t t) const;
  std::vector<double> far(const float* q, std::int32_t position) const;  // of all heads
  void file(const SequenceCache& cache, std::int32_t n_tokens);
  std::vector<double> mean_of_top(const SequenceCache& cache, std::int32_t begin) const;
  std::vector<double> top_keys(const SequenceCache& cache, std::int32_t begin) const;
  double cosine(const std::vector<double>& probe, std::int32_t u) const;  // probe: [n_heads * D], length 1

  std::shared_ptr<const Plan> plan_;
  RopeTable rope_;
  std::int32_t layer_;
  std::vector<std::vector<double>> prefill_rows_;  // far queries of every row of prefill
  std::vector<std::vector<double>> units_;         // by unit; those among the sinks are never scored
  std::vector<std::vector<double>> mass_;          // [n_heads][token]
  std::pair<std::int32_t, std::int32_t> span_{0, 0};
  std::vector<std::vector<double>> span_rows_;
  std::vector<double> question_;
};

}  // namespace mneme
