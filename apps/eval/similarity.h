// Measures the assumptions of methods: similarity of queries between steps, and recall of each index.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/methods/decode_observer.h"
#include "src/recipes/compile.h"
#include "src/selection/index/unit_index.h"
#include "src/selection/topk/topk.h"

namespace mneme::eval {

struct SimilarityOptions {
  std::int32_t recall_every = 8;                        // steps between two recall measurements of a sequence
  std::vector<std::int32_t> budgets = {64, 256, 1024};  // tokens that an index may select
  std::int32_t top = 64;                                // true top tokens that recall counts
  float boundary = 0.7f;                                // mean cosine of a layer's heads below which a segment ends
};

// Observes decode steps of sequences with full attention.
//
// Cosines   of a query head's vector with that of the step before, both after RoPE.
// Recall    per query head: of the `top` tokens with the largest true attention, the share among the tokens that an
//           index selects by its scores for that head alone. Tokens are those that every index covers: up to the last
//           multiple of 256.
class SimilarityObserver final : public DecodeObserver {
 public:
  SimilarityObserver(const MethodShape& shape, SimilarityOptions options);
  ~SimilarityObserver() override;

  void see(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape) override;
  // Call between contexts: sequence slots are reused with other tokens.
  void forget_sequences();

  const MethodShape& shape() const { return shape_; }
  const SimilarityOptions& options() const { return options_; }
  const std::vector<float>& cosines(std::int32_t layer, std::int32_t head) const {
    return cosines_[layer * shape_.n_heads + head];
  }
  // Values that a gate with this pooling would compare with tau, of layers from `first_layer` on.
  std::vector<float> gate_values(GatePool pool, std::int32_t first_layer) const;

  struct Recall {
    std::string index;       // "box, pages of 16"
    double load_ratio = 0;   // bytes of index over bytes of keys
    std::vector<double> of;  // by budget; 0 to 1
    std::int64_t samples = 0;
  };
  std::vector<Recall> recalls() const;

  // Jaccard overlap of the `top` most attended tokens of a query head at adjacent steps, where recall is measured:
  // within a segment, and across a boundary.
  struct Overlap {
    double within = 0, across = 0;  // means
    std::int64_t n_within = 0, n_across = 0;
  };
  const Overlap& overlap(std::int32_t layer) const { return overlaps_[layer]; }

 private:
  struct Case;
  struct Sequence;
  std::vector<std::vector<std::int32_t>> true_tokens(std::int32_t layer, std::int32_t kv_head, const DecodeRow& row,
                                                     const AttentionShape& shape, std::int32_t n_tokens);
  void measure_overlap(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape, Sequence& sequence,
                       bool boundary);
  void measure_recall(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape, Sequence& sequence);
  void measure_case(Case& c, const HeadKeys& keys, const float* q, const AttentionShape& shape, std::int32_t n_tokens,
                    const std::vector<std::vector<std::int32_t>>& truth);

  MethodShape shape_;
  SimilarityOptions options_;
  std::vector<std::vector<float>> cosines_;              // by layer and query head
  std::array<std::vector<std::vector<float>>, 3> gate_;  // by GatePool, layer
  std::vector<Case> cases_;
  std::vector<Overlap> overlaps_;  // by layer
  std::map<const SequenceCache*, Sequence> sequences_;
  ScoreScratch score_scratch_;
  TopkScratch topk_scratch_;
};

// Nearest-rank percentile, 0 <= share <= 1; 0 of nothing.
float percentile(std::vector<float> values, double share);

std::string similarity_tables(const SimilarityObserver& observer);
nlohmann::json similarity_json(const SimilarityObserver& observer);
std::string similarity_svg(const SimilarityObserver& observer);

}  // namespace mneme::eval
