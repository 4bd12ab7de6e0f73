// One rank of a model as an engine's forward pass. Each rank has an engine of its own, with the pages of its KV heads;
// all make the same calls, and as every rank has the same logits, their schedulers and samplers decide alike. Each step
// compares a hash of what the ranks are about to compute.
//
// A method may decide by KV head, as each rank has its own; one that decides for all heads of a layer together is
// refused.
#pragma once

#include <memory>

#include "src/engine/forward_pass.h"
#include "src/model/ranks/rank_forward.h"

namespace mneme {

class RankPass final : public ForwardPass {
 public:
  // Requires  as RankForward; `ranks` outlives the pass.
  RankPass(std::unique_ptr<Model> part, const CpuContext& context, Collective& ranks, int audit_every = 0);

  KvShape kv_shape(DType kv_dtype) const override { return model_->kv_shape(kv_dtype); }
  std::int64_t vocab() const override { return model_->config().vocab; }
  std::int64_t max_context() const override { return model_->max_context(); }
  std::size_t weight_bytes() const override { return model_->weight_bytes(); }
  // After an error the engine answers the requests with it; no step of this pass succeeds again.
  ConstTensorView run(const ForwardInput& input) override { return forward_.run(input); }
  void set_observer(DecodeObserver* observer) override { forward_.set_observer(observer); }
  // Errors  kUnsupported: the plan decides over all heads of a layer.
  void expect_method(const Plan& plan) const override;
  const Model* model() const override { return model_.get(); }

 private:
  std::unique_ptr<Model> model_;
  RankForward forward_;
};

// Why ranks do not run a plan, as half a sentence; null: they do.
const char* rank_refusal(const Plan& plan);

}  // namespace mneme
