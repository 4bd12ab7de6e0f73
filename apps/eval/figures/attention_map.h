// How few tokens hold the attention, and how well an index estimates its scores; observed at decode steps.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "src/methods/decode_observer.h"
#include "src/recipes/compile.h"
#include "src/selection/index/unit_index.h"

namespace mneme::eval {

struct AttentionMapOptions {
  std::int32_t every = 8;      // tokens of a sequence between two observed steps
  double mass = 0.9;           // share of the attention that is looked for
  std::int32_t points = 4000;  // pairs of scores that are kept
};

// Observes decode steps of sequences with full attention.
//
// Sparsity  share of a sequence's tokens that hold the mass, by layer and query head: a mean over steps.
// Scores    of one-bit keys in groups of 32 (FIER) against exact ones, both scaled by 1/sqrt(D), of the first query head
//           of every KV head: pairs, and their correlation by layer and KV head.
class AttentionMapObserver final : public DecodeObserver {
 public:
  AttentionMapObserver(const MethodShape& shape, AttentionMapOptions options);
  ~AttentionMapObserver() override;

  void see(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape) override;

  const MethodShape& shape() const { return shape_; }
  // NaN before the first step.
  double share(std::int32_t layer, std::int32_t head) const;
  double correlation(std::int32_t layer, std::int32_t kv_head) const;
  const std::vector<std::pair<float, float>>& pairs() const { return pairs_; }  // exact, estimated
  std::int64_t steps() const { return steps_; }

 private:
  struct Sums {
    double n = 0, x = 0, y = 0, xx = 0, yy = 0, xy = 0;
  };
  void measure_share(std::int32_t layer, std::int32_t kv_head, const std::vector<float>& scores, std::int32_t n,
                     const AttentionShape& shape);
  void measure_scores(std::int32_t layer, std::int32_t kv_head, const DecodeRow& row, const std::vector<float>& exact,
                      std::int32_t n, const AttentionShape& shape);

  MethodShape shape_;
  AttentionMapOptions options_;
  std::vector<std::pair<double, std::int64_t>> shares_;  // by layer and query head: sum, count
  std::vector<Sums> sums_;                               // by layer and KV head
  std::vector<std::pair<float, float>> pairs_;
  std::unique_ptr<UnitIndex> index_;
  ScoreScratch scratch_;
  std::int64_t steps_ = 0;
};

}  // namespace mneme::eval
