#include "src/engine/cuda_pass.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/device/device.h"
#include "src/engine/kv_plan.h"
#include "src/engine/memory_limit.h"
#include "src/model/cuda_forward.h"
#include "src/recipes/recipes.h"

namespace mneme {
namespace {

// "auto" is decided once it is known what the device has room for, where what is stored is attended: by full attention,
// and by methods that drop.
KvStore store_of(const EngineOptions& o) {
  if (o.kv_store == "host") return KvStore::kHost;
  if (o.kv_store == "device") return KvStore::kDevice;
  if (o.kv_store != "auto")
    fail(ErrorKind::kOption, "kv_store: expected auto, device or host, found \"{}\"", o.kv_store);
  return make_recipe(o.kv.method, {}).attend == Attend::kRegions ? KvStore::kHost : KvStore::kDevice;
}

CudaForwardOptions forward_options(const Model& model, const EngineOptions& o) {
  // Values out of range are plan_kv's to refuse.
  const std::int64_t context = o.context > 0 ? std::min(o.context, model.max_context()) : model.max_context();
  return {.max_rows = std::max(o.max_batched_tokens, o.max_sequences),
          .max_sequences = std::max(o.max_sequences, 1),
          .max_context = context,
          .store = store_of(o),
          .audit_every = o.audit_every};
}

class CudaPass final : public ForwardPass {
 public:
  CudaPass(std::unique_ptr<Model> model, const EngineOptions& options, Stream stream)
      : model_(std::move(model)),
        forward_(*model_, CudaWeights::load(*model_, stream), Stream::make(), forward_options(*model_, options)),
        host_(store_of(options) == KvStore::kHost) {
    if (options.kv_store != "auto" || host_) return;
    const KvShape shape = model_->kv_shape(kv_dtype_of(options));
    const std::int64_t context = forward_options(*model_, options).max_context;
    const auto wanted = options.kv_memory_bytes > 0
                            ? options.kv_memory_bytes
                            : blocks_of(shape, context) * static_cast<std::int64_t>(shape.page_bytes());
    host_ = wanted > forward_.room_bytes();
    if (host_) forward_.set_store(KvStore::kHost);
  }

  KvShape kv_shape(DType kv_dtype) const override { return model_->kv_shape(kv_dtype); }
  std::int64_t vocab() const override { return model_->config().vocab; }
  std::int64_t max_context() const override { return model_->max_context(); }
  std::size_t weight_bytes() const override { return forward_.weights().bytes(); }
  std::int64_t kv_room_bytes(std::int64_t machine_bytes) const override {
    return host_ ? std::max<std::int64_t>(machine_bytes - kHostBytesAside, 0) : forward_.room_bytes();
  }
  std::unique_ptr<PagePool> make_pool(const KvShape& shape, std::int64_t n_blocks) override {
    return forward_.make_pool(shape, n_blocks);
  }
  ConstTensorView run(const ForwardInput& input) override { return forward_.run(input); }
  bool chooses() const override { return true; }
  std::span<const Sampler::Choice> run_choosing(const ForwardInput& input,
                                                std::span<const Sampler* const> samplers) override {
    rules_.clear();
    for (const Sampler* s : samplers) {
      const SamplingOptions& o = s->options();
      rules_.push_back({o.temperature, o.top_k, o.top_p, o.min_p, s->peek()});
    }
    choices_.clear();
    for (const TokenChoice& c : forward_.choose(input, rules_))
      choices_.push_back({.token = c.token, .logprob = c.logprob});
    return choices_;
  }
  void expect_method(const Plan& plan, std::span<const Plan* const> beside) const override {
    CudaForward::expect_method(plan, beside);
  }
  void expect_question(const Plan& plan) const override { CudaForward::expect_question(plan); }
  MethodMemory method_memory() const override {
    const CudaRetrieval* r = forward_.retrieval();
    if (r == nullptr) return {};
    return {.slots = r->slot_bytes(), .index = r->index_bytes(), .dense_layers = r->dense_bytes()};
  }
  const Model* model() const override { return model_.get(); }

 private:
  std::unique_ptr<Model> model_;
  CudaForward forward_;
  bool host_;
  std::vector<DrawRule> rules_;
  std::vector<Sampler::Choice> choices_;
};

}  // namespace

std::unique_ptr<ForwardPass> cuda_pass(std::unique_ptr<Model> model, const EngineOptions& options) {
  if (device_count() == 0) fail(ErrorKind::kDevice, "--device cuda: {}", no_device_reason());
  use_device(0);
  return std::make_unique<CudaPass>(std::move(model), options, Stream::make());
}

}  // namespace mneme
