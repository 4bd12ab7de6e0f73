// Selection for all heads of a layer: units by the cosine of their representatives with a probe, as many as the layer's
// share of the budget. Prefill windows and decode steps select alike.
//
//   1. file    units that have left the window get their representative, from the mass that they received in it
//   2. probe   a window's queries become one vector, weighted by distance from the mean; a step's query is the probe
//   3. select  cosine with every candidate, the layer's share, the units with the highest scores
//   4. mass    the attention of rows to their local tokens is accumulated, for later representatives
//
// A unit is represented by one vector, or by several of which the best counts (KeyMatch).
//
// Source  ActQKV (Xiao et al. 2025), section 3; InfLLM (Xiao et al. 2024) for filing and representatives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/methods/method_state.h"
#include "src/ops/simd/cpu_context.h"
#include "src/selection/region/region.h"
#include "src/selection/topk/topk.h"

namespace mneme {

// Queries of rows [first, first + n), rotated for the remote part.
struct ProbeQueries {
  const float* q = nullptr;  // row i: q + i * stride, [n_heads, D]
  std::int64_t stride = 0;
  std::int32_t first = 0, n = 0;
};

// Rows and their local tokens.
struct LocalQueries {
  const float* q = nullptr;  // rotated for the local part; row i: q + i * stride, [n_heads, D]
  std::int64_t stride = 0;
  const float* lse = nullptr;  // of their attention: [KV heads, lse_rows, G], the first of these rows at lse
  std::int64_t lse_rows = 0;
  std::int32_t first = 0, n = 0;                 // positions
  std::int32_t from = 0;                         // the local tokens are [from, first + n)
  std::span<const std::span<const KvRun>> runs;  // by KV head: the local tokens
};

class LayerSelector {
 public:
  explicit LayerSelector(const CpuContext& context) : context_(context) {}

  // Files the units that have left the window of a row at position n_tokens - 1.
  void file_units(MethodState& method, std::int32_t layer, const SequenceCache& cache, std::int32_t n_tokens);
  // The probe of a window, [n_heads * D], valid until the next call. Adds its rows to the layer's moments, unless they
  // are counted.
  std::span<const float> probe(MethodState& method, std::int32_t layer, const ProbeQueries& rows);
  // Selects from the region's candidates into `units`. slot: the window's index in its chunk; kDecode: a decode step.
  static constexpr std::int32_t kDecode = -1;
  void select(MethodState& method, std::int32_t layer, const Region& region, std::span<const float> probe,
              std::int32_t slot, std::vector<std::int32_t>& units);
  // For audits: Spearman's rank correlation of the last select()'s scores with the true attention of `rows` to the
  // candidates' tokens (each query head's share over all candidates, summed over rows and heads). Reads all keys. NaN
  // where undefined.
  double rank_correlation(const MethodState& method, std::int32_t layer, const SequenceCache& cache,
                          const Region& region, const ProbeQueries& rows);
  // Accumulates the attention of rows to their local tokens; rows that are counted already are skipped.
  void add_mass(MethodState& method, std::int32_t layer, const LocalQueries& rows);
  // After add_mass: stores the queries of the prompt's question and, with its last one, forms one vector.
  void see_question(MethodState& method, std::int32_t layer, const ProbeQueries& rows);

  // Scores of the last select(), by candidate.
  std::span<const float> scores() const { return scores_; }
  // Weights of the rows in the last probe().
  std::span<const float> weights() const { return weights_; }

 private:
  // Cosine of entries [begin, end) with q / |q|, times |q|.
  void score(const Plan& plan, const LayerMemory& memory, std::int32_t begin, std::int32_t end, const float* q,
             float* scores);

  CpuContext context_;
  TopkScratch topk_;
  std::vector<float> mean_, m2_, centre_, weight_, bias_, weights_, probe_, scores_, question_scores_;
  std::vector<float> folded_, row_scores_;
  std::vector<std::byte*> entries_;
};

}  // namespace mneme
