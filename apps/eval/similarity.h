// How queries move from step to step, and how much of the truth an index finds: the figures that methods argue with.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/attention/decode_tap.h"
#include "src/blocks/unit_index.h"
#include "src/kernels/topk.h"
#include "src/recipes/compile.h"

namespace mneme::eval {

struct SimilarityOptions {
  std::int32_t recall_every = 8;                        // steps of a sequence between two at which recall is measured
  std::vector<std::int32_t> budgets = {64, 256, 1024};  // tokens that an index may choose
  std::int32_t top = 64;                                // the true tokens that are looked for
  float boundary = 0.7f;                                // mean cosine of a layer's heads below which a segment ends
};

// Sees the decode steps of sequences that attend everything.
//
// Cosines   of a query head's vector with that of the step before, both after RoPE.
// Recall    per query head: of the `top` tokens with the largest true attention, the share among the tokens that an
//           index chooses by its scores for that head alone. Tokens are those that every index covers: up to the last
//           multiple of 256.
class SimilarityTap final : public DecodeTap {
 public:
  SimilarityTap(const MethodShape& shape, SimilarityOptions options);
  ~SimilarityTap() override;

  void see(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape) override;
  // Between contexts: sequences may now come back at the same places with other tokens.
  void forget_sequences();

  const MethodShape& shape() const { return shape_; }
  const SimilarityOptions& options() const { return options_; }
  const std::vector<float>& cosines(std::int32_t layer, std::int32_t head) const {
    return cosines_[static_cast<std::size_t>(layer * shape_.n_heads + head)];
  }
  // What a gate with this pooling would have compared with tau, layers from `first_layer` on.
  std::vector<float> gate_values(GatePool pool, std::int32_t first_layer) const;

  struct Recall {
    std::string index;       // "box, pages of 16"
    double load_ratio = 0;   // bytes of index over bytes of keys
    std::vector<double> of;  // by budget; 0 to 1
    std::int64_t samples = 0;
  };
  std::vector<Recall> recalls() const;

  // Jaccard overlap of what a query head truly attends most (`top` tokens) at adjacent steps, measured where recall is:
  // steps of one segment, and steps with a boundary between them.
  struct Overlap {
    double within = 0, across = 0;  // means
    std::int64_t n_within = 0, n_across = 0;
  };
  const Overlap& overlap(std::int32_t layer) const { return overlaps_[static_cast<std::size_t>(layer)]; }

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

std::string similarity_tables(const SimilarityTap& tap);
nlohmann::json similarity_json(const SimilarityTap& tap);
std::string similarity_svg(const SimilarityTap& tap);

}  // namespace mneme::eval
