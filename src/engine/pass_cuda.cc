// The engine's forward pass on a CUDA device.
#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/backend.h"
#include "src/base/error.h"
#include "src/cuda/device.h"
#include "src/engine/forward_backend.h"
#include "src/engine/kv_method.h"
#include "src/engine/kv_plan.h"
#include "src/engine/kv_residency.h"
#include "src/engine/memory_limit.h"
#include "src/engine/ranks/rank_pass.h"
#include "src/model/cuda/forward.h"
#include "src/model/cuda/ranks/device_collective.h"
#include "src/model/ranks/rank_forward.h"
#include "src/model/shapes.h"
#include "src/model/weight_placement.h"
#include "src/recipes/compile.h"

namespace mneme {
namespace {

// "auto" is decided once it is known what the device has room for.
KvStore store_of(const EngineOptions& o) {
  return o.kv_store == KvResidency::kHost ? KvStore::kHost : KvStore::kDevice;
}

CudaForwardOptions forward_options(const Model& model, const EngineOptions& o, DeviceCollective* ranks = nullptr,
                                   RankSplit split = RankSplit::kHeads) {
  // Values out of range are plan_kv's to refuse.
  const std::int64_t context = o.context > 0 ? std::min(o.context, model.max_context()) : model.max_context();
  return {.max_rows = std::max(o.max_batched_tokens, o.max_sequences),
          .max_sequences = std::max(o.max_sequences, 1),
          .max_context = context,
          .store = store_of(o),
          .kv_dtype = kv_dtype_of(o),
          .grow_slots = true,
          .audit_every = o.audit_every,
          .batch_invariant = o.deterministic,
          .ranks = ranks,
          .split = split};
}

// Room for the matrices of layers: what is free beside the embedding and the head, a step's activations, and what keys
// and values need on the device at least (those of a prompt's layer twice and of a dense layer where they lie in host
// memory).
std::int64_t layer_room(const Model& model, const EngineOptions& o, const CudaForwardOptions& forward) {
  const KvShape shape = model.kv_shape(kv_dtype_of(o));
  const std::int64_t all = blocks_of(shape, forward.max_context) * static_cast<std::int64_t>(shape.page_bytes());
  const bool on_device = o.kv_store == KvResidency::kDevice;
  const std::int64_t kv = on_device ? std::max(o.kv_memory_bytes, all) : 3 * all / model.config().n_layers + all / 8;
  return static_cast<std::int64_t>(device_info(0).free_bytes) - kReservedDeviceBytes - outer_weight_bytes(model) -
         activation_estimate(model.config(), forward.max_rows, forward.max_sequences) - kv;
}

WeightPlacement placement_of(const Model& model, const EngineOptions& o) {
  const std::int64_t n_layers = model.config().n_layers;
  if (o.gpu_layers != kAutoGpuLayers) return first_layers(std::min<std::int64_t>(o.gpu_layers, n_layers));
  return fitting_layers(layer_weight_bytes(model), layer_room(model, o, forward_options(model, o)));
}

std::unique_ptr<DeviceCollective> collective_of(const Model& model, const EngineOptions& o, Collective* ranks) {
  if (ranks == nullptr) return nullptr;
  const std::size_t bytes = CudaForward::rank_message_bytes(model.config(), forward_options(model, o), ranks->size());
  return make_device_collective(*ranks, bytes);
}

std::optional<RankRange> head_rows_of(const Model& model, const Collective* ranks, RankSplit split) {
  if (ranks == nullptr || split == RankSplit::kLayers) return std::nullopt;
  return vocabulary_range(model.config().vocab, ranks->rank(), ranks->size());
}

class CudaPass final : public ForwardPass {
 public:
  CudaPass(std::unique_ptr<Model> model, const EngineOptions& options, Stream stream, Collective* ranks,
           RankSplit split)
      : model_(std::move(model)),
        link_(ranks == nullptr ? nullptr : std::make_unique<RankLink>(*ranks, split)),
        collective_(collective_of(*model_, options, ranks)),
        forward_(
            *model_,
            CudaWeights::load(*model_, stream, placement_of(*model_, options), {}, head_rows_of(*model_, ranks, split)),
            Stream::make(), forward_options(*model_, options, collective_.get(), split)),
        batch_invariant_(options.deterministic),
        host_(store_of(options) == KvStore::kHost) {
    if (options.kv_store != KvResidency::kAuto || host_) return;
    // On the device a method fetches nothing: 16 sequences of 32K tokens (llama-3.1-8b, one H200, freekv) take 9.0 ms a
    // step in place of 11.4.
    const DType dtype = kv_dtype_of(options);
    const auto plan = compile(recipe_of(options.kv), method_shape_of(model_->config(), dtype));
    const CudaForwardOptions forward = forward_options(*model_, options);
    const std::int64_t wanted = wanted_kv_bytes(model_->kv_shape(dtype), options, forward.max_context, kv_windows()) +
                                wanted_index_bytes(*plan, forward.max_context, options.max_sequences);
    host_ = wanted > forward_.room_bytes();
    if (link_ != nullptr) host_ = link_->least(host_ ? 0 : 1) == 0;
    if (host_) forward_.set_store(KvStore::kHost);
  }

  KvShape kv_shape(DType kv_dtype) const override { return model_->kv_shape(kv_dtype); }
  std::int64_t vocab() const override { return model_->config().vocab; }
  std::int64_t max_context() const override { return model_->max_context(); }
  std::size_t weight_bytes() const override { return forward_.weights().bytes() + forward_.weights().host_bytes(); }
  std::int64_t kv_room_bytes(std::int64_t machine_bytes) const override {
    return host_ ? std::max<std::int64_t>(machine_bytes - kReservedHostBytes, 0) : forward_.room_bytes();
  }
  std::unique_ptr<PagePool> make_pool(const KvShape& shape, std::int64_t n_blocks) override {
    return forward_.make_pool(shape, n_blocks);
  }
  ConstTensorView run(const ForwardInput& input) override { return forward_.run(input); }
  std::int32_t prompt_alignment() const override { return batch_invariant_ ? kInvariantRows : 1; }
  void expect_method(const Plan& plan) const override {
    if (batch_invariant_) expect_invariant(plan);
    if (link_ != nullptr) expect_ranks_do(plan, link_->split());
  }
  RankLink* ranks() const override { return link_.get(); }
  KvWindows kv_windows() const override { return link_ == nullptr ? kv_windows_of(model_->config()) : KvWindows{}; }
  bool samples_on_device() const override { return true; }
  std::span<const Sampler::SampledToken> run_sampling(const ForwardInput& input,
                                                      std::span<const Sampler* const> samplers) override {
    rules_.clear();
    for (const Sampler* s : samplers) {
      const SamplingOptions& o = s->options();
      rules_.push_back({o.temperature, o.top_k, o.top_p, o.min_p, s->peek()});
    }
    sampled_.clear();
    for (const TokenSample& c : forward_.sample(input, rules_))
      sampled_.push_back({.token = c.token, .logprob = c.logprob});
    return sampled_;
  }
  MethodMemory method_memory() const override {
    const CudaForward::MethodBytes bytes = forward_.method_bytes();
    return {.slots = bytes.slots, .index = bytes.index, .dense_layers = bytes.dense_layers};
  }
  const Model* model() const override { return model_.get(); }

 private:
  // What a prompt leaves under these follows how it is cut into chunks.
  static void expect_invariant(const Plan& plan) {
    const char* const why = plan.drops()  ? "drops tokens"
                            : plan.norm   ? "takes its budget from a norm of the prompt's attention"
                            : plan.window ? "reads prompts in windows"
                            : plan.attend == Attend::kRegions && plan.shape.sliding_window > 0
                                ? "keeps cache slots beside layers with a sliding window"
                                : nullptr;
    if (why != nullptr)
      fail(
          ErrorKind::kOption,
          "--deterministic with --device cuda: '{}' {}; expected full attention, a method that selects (freekv, mneme, "
          "fier, quest, louiskv), or --device cpu",
          plan.name(), why);
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<RankLink> link_;                // null: the model is whole
  std::unique_ptr<DeviceCollective> collective_;  // as well
  CudaForward forward_;
  bool batch_invariant_;
  bool host_;
  std::vector<SamplingRule> rules_;
  std::vector<Sampler::SampledToken> sampled_;
};

std::unique_ptr<ForwardPass> make_cuda_pass(std::unique_ptr<Model> model, const EngineOptions& options,
                                            Collective* ranks, RankSplit split) {
  use_device(0);
  return std::make_unique<CudaPass>(std::move(model), options, Stream::make(), ranks, split);
}

}  // namespace

MNEME_REGISTER_BACKEND(forward_cuda, ForwardBackend, {.make = &make_cuda_pass});

}  // namespace mneme
