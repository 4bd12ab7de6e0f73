// A rank's forward pass on the CPU. Every rank has all rows; each computes its KV heads with their query heads, its
// columns of the feed-forward layer and its part of the vocabulary, over the pages, index and selection of its heads.
//
//   a layer   two sums over the ranks: behind attention and behind the feed-forward layer
//   the head  logits of each rank's part of the vocabulary, gathered to all
//
// Sums are added in the order of the ranks, so residuals and logits have the same bits on every rank: samplers with one
// seed draw the same tokens, and nothing but the calls has to be told to the others.
#pragma once

#include <memory>

#include "src/model/model.h"
#include "src/parallel/collective.h"

namespace mneme {

class RankForward {
 public:
  // Requires  `part` was loaded from rank_checkpoint() of this rank; all outlive the object.
  RankForward(const Model& part, const CpuContext& context, Collective& ranks);
  ~RankForward();

  // As Forward::run. Errors  kDevice: as Collective's; ranks whose steps are not the same.
  ConstTensorView run(const ForwardInput& input);
  void set_audit(std::int32_t every);
  void set_observer(DecodeObserver* observer);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Of tokens, rows, phases and lengths: what all ranks must have in common in a step.
std::uint64_t step_hash(const ForwardInput& input);

}  // namespace mneme
