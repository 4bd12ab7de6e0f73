// One decision for all heads of a layer: units by the cosine of their representatives with a probe, and as many of them
// as the layer is given. Windows of prefill and steps of decode choose alike.
//
//   1. file    units that have left the window get their representative, by the attention that they received in it
//   2. probe   a window's queries become one vector, by how unlike each is to all before; a step's query is one
//   3. choose  cosine with every candidate, the layer's share, the units that score highest
//   4. mass    the attention that rows gave to tokens near them is added up, for representatives to come
//
// What stands for a unit is one vector, or several of which the best counts (KeyMatch).
//
// Source  ActQKV (Xiao et al. 2025), section 3; InfLLM (Xiao et al. 2024) for files and representatives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/attention/method_state.h"
#include "src/blocks/region.h"
#include "src/kernels/cpu_context.h"
#include "src/kernels/topk.h"

namespace mneme {

// Queries of rows at [first, first + n), as they see what is far.
struct ProbeRows {
  const float* q = nullptr;  // row i: q + i * stride, [n_heads, D]
  std::int64_t stride = 0;
  std::int32_t first = 0, n = 0;
};

// Rows and the tokens near them.
struct NearRows {
  const float* q = nullptr;  // as these rows see what is near: row i: q + i * stride, [n_heads, D]
  std::int64_t stride = 0;
  const float* lse = nullptr;  // of their attention: [KV heads, lse_rows, G], the first of these rows at lse
  std::int64_t lse_rows = 0;
  std::int32_t first = 0, n = 0;                 // positions
  std::int32_t from = 0;                         // the nearest tokens are [from, first + n)
  std::span<const std::span<const KvRun>> runs;  // by KV head: those tokens
};

class LayerChooser {
 public:
  explicit LayerChooser(const CpuContext& context) : context_(context) {}

  // Files what has left the window of a row at position n_tokens - 1.
  void file_units(MethodState& method, std::int32_t layer, const SequenceCache& cache, std::int32_t n_tokens);
  // The probe of a window, [n_heads * D]; until the next call. Its rows count in the layer's moments, if they do not
  // yet.
  std::span<const float> probe(MethodState& method, std::int32_t layer, const ProbeRows& rows);
  // Selects into `units` from the region's candidates. slot: the window's number in its chunk; kDecode: a step.
  static constexpr std::int32_t kDecode = -1;
  void choose(MethodState& method, std::int32_t layer, const Region& region, std::span<const float> probe,
              std::int32_t slot, std::vector<std::int32_t>& units);
  // Spearman's rank correlation of the scores of the last choose() with the attention that `rows` truly give to the
  // candidates' tokens, every query head's share of what all candidates get, summed over rows and heads. For audits:
  // reads all keys. NaN where it is not defined.
  double rank_correlation(const MethodState& method, std::int32_t layer, const SequenceCache& cache,
                          const Region& region, const ProbeRows& rows);
  // Adds the attention that rows gave to tokens near them; rows that count already are left out.
  void add_mass(MethodState& method, std::int32_t layer, const NearRows& rows);
  // After add_mass: keeps the queries of the prompt's question and, with its last one, makes one vector of them.
  void see_question(MethodState& method, std::int32_t layer, const ProbeRows& rows);

  // Scores of the last choose(), by candidate.
  std::span<const float> scores() const { return scores_; }
  // What the probe's rows weighed in the last probe().
  std::span<const float> weights() const { return weights_; }

 private:
  // The cosines of entries [begin, end) with q / |q|, times |q|.
  void score(const Plan& plan, const LayerMemory& memory, std::int32_t begin, std::int32_t end, const float* q,
             float* scores);

  CpuContext context_;
  TopkScratch topk_;
  std::vector<float> mean_, m2_, centre_, weight_, bias_, weights_, probe_, scores_, question_scores_;
  std::vector<float> folded_, row_scores_;
  std::vector<std::byte*> entries_;
};

}  // namespace mneme
