// What the engine asks of a model. Tests give it one whose next token is a pure function of what the pages hold.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "src/methods/stats/method_stats.h"
#include "src/model/model.h"
#include "src/sampler/sampler.h"

namespace mneme {

class RankLink;

class ForwardPass {
 public:
  virtual ~ForwardPass() = default;

  virtual KvShape kv_shape(DType kv_dtype) const = 0;
  // Layers that read no more than a window of what their pages hold; of a part of a model none.
  virtual KvWindows kv_windows() const { return {}; }
  virtual std::int64_t vocab() const = 0;
  virtual std::int64_t max_context() const = 0;
  virtual std::size_t weight_bytes() const { return 0; }
  // Memory for keys and values, of a machine (or control group) that has machine_bytes.
  virtual std::int64_t kv_room_bytes(std::int64_t machine_bytes) const { return machine_bytes - weight_bytes(); }
  // Where they lie, if all of them are in memory.
  virtual std::unique_ptr<PagePool> make_pool(const KvShape& shape, std::int64_t n_blocks) {
    return std::make_unique<PagePool>(shape, n_blocks);
  }
  // As Forward::run. May throw; then nothing of this step counts.
  virtual ConstTensorView run(const ForwardInput& input) = 0;
  // As Forward::set_observer; what has no attention shows nothing.
  virtual void set_observer(DecodeObserver*) {}
  // Whether run_sampling() may be called: tokens are then selected where the logits are.
  virtual bool samples_on_device() const { return false; }
  // As run, with the token of each sampler (one for each row of logits; all is_plain()) in place of the logits.
  // Samplers stay as they are. Valid until the next call.
  virtual std::span<const Sampler::SampledToken> run_sampling(const ForwardInput&, std::span<const Sampler* const>) {
    return {};
  }
  // Errors  kUnsupported: sequences under this plan cannot be run here.
  virtual void expect_method(const Plan& /*plan*/) const {}
  // Why several decode rows of a sequence cannot be computed as each would be in a step of its own; empty: they can.
  virtual std::string_view no_drafts_reason() const { return "this forward pass computes one row of an answer a step"; }
  virtual MethodMemory method_memory() const { return {}; }
  // Rows of a prompt in a step begin at a multiple of so many tokens; then a step has rows of answers or of one prompt,
  // never both. 1: anywhere, beside others.
  virtual std::int32_t prompt_alignment() const { return 1; }
  // How the ranks of one model are told the engine's calls; null: one rank has all of it.
  virtual RankLink* ranks() const { return nullptr; }
  // The model behind it, where there is one.
  virtual const Model* model() const { return nullptr; }
};

}  // namespace mneme
