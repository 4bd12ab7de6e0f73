// One rank of a model as an engine's forward pass. Each rank has an engine of its own, with the pages of its KV heads;
// rank 0 leads (rank_link.h). Each step compares a hash of what the ranks are about to compute.
//
// A method may decide by KV head, as each rank has its own; one that decides for all heads of a layer together is
// refused.
#pragma once

#include <memory>
#include <utility>

#include "src/engine/forward_pass.h"
#include "src/engine/ranks/rank_link.h"
#include "src/model/ranks/rank_forward.h"

namespace mneme {

// Errors  kUnsupported: the plan decides over heads, or layers, that other ranks have.
void expect_ranks_do(const Plan& plan, RankSplit split);
// Why, as half a sentence; null: ranks run it.
const char* rank_refusal(const Plan& plan, RankSplit split);

class RankPass final : public ForwardPass {
 public:
  struct Options {
    int audit_every = 0;
    int ranks_here = 1;  // processes that share this machine's memory
    RankSplit split = RankSplit::kHeads;
  };
  // Requires  `part` is of rank_checkpoint(); `ranks` outlives the pass.
  RankPass(std::unique_ptr<Model> part, const CpuContext& context, Collective& ranks, Options options);
  RankPass(std::unique_ptr<Model> part, const CpuContext& context, Collective& ranks)
      : RankPass(std::move(part), context, ranks, {}) {}

  KvShape kv_shape(DType kv_dtype) const override { return model_->kv_shape(kv_dtype); }
  std::int64_t vocab() const override { return model_->config().vocab; }
  std::int64_t max_context() const override { return model_->max_context(); }
  std::size_t weight_bytes() const override { return model_->weight_bytes(); }
  std::int64_t kv_room_bytes(std::int64_t machine_bytes) const override {
    return machine_bytes / options_.ranks_here - weight_bytes();
  }
  RankLink* ranks() const override { return &link_; }
  // After an error the engine answers the requests with it; no step of this pass succeeds again.
  ConstTensorView run(const ForwardInput& input) override { return forward_.run(input); }
  void set_observer(DecodeObserver* observer) override { forward_.set_observer(observer); }
  void expect_method(const Plan& plan) const override { expect_ranks_do(plan, options_.split); }
  const Model* model() const override { return model_.get(); }

 private:
  std::unique_ptr<Model> model_;
  Forward forward_;
  Options options_;
  mutable RankLink link_;
};

}  // namespace mneme
