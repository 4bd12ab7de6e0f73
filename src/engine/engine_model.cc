// The engine's side of the model room.
#include <utility>

#include "src/base/backend.h"
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/cuda/device.h"
#include "src/engine/engine.h"
#include "src/engine/forward_backend.h"
#include "src/model/shapes.h"

namespace mneme {
namespace {

class ModelForward final : public ForwardPass {
 public:
  ModelForward(std::unique_ptr<Model> model, const CpuContext& context, int audit_every)
      : model_(std::move(model)), forward_(*model_, context) {
    forward_.set_audit(audit_every);
  }

  KvShape kv_shape(DType kv_dtype) const override { return model_->kv_shape(kv_dtype); }
  KvWindows kv_windows() const override { return kv_windows_of(model_->config()); }
  std::int64_t vocab() const override { return model_->config().vocab; }
  std::int64_t max_context() const override { return model_->max_context(); }
  std::size_t weight_bytes() const override { return model_->weight_bytes(); }
  ConstTensorView run(const ForwardInput& input) override { return forward_.run(input); }
  void set_observer(DecodeObserver* observer) override { forward_.set_observer(observer); }
  std::string_view no_drafts_reason() const override {
    if (model_->config().delta.n_k_heads == 0) return {};
    return "the states of this model's linear attention cannot be taken back to before a draft that was wrong";
  }
  const Model* model() const override { return model_.get(); }

 private:
  std::unique_ptr<Model> model_;
  Forward forward_;
};

std::unique_ptr<ForwardPass> device_forward(std::unique_ptr<Model> model, const EngineOptions& options) {
  check_device_options(options);
  if (options.deterministic && model->config().delta.n_k_heads > 0)
    fail(
        ErrorKind::kOption,
        "--deterministic with --device cuda: expected a model without linear attention, found {}; leave it out, or use "
        "--device cpu",
        architecture_name(model->config().architecture));
  const ForwardBackend* backend = Backend<ForwardBackend>::find();
  if (!backend || device_count() == 0) fail(ErrorKind::kDevice, "--device cuda: {}", no_device_reason());
  return backend->make(std::move(model), options, nullptr, RankSplit::kHeads);
}

std::unique_ptr<ForwardPass> forward_of(std::unique_ptr<Model> model, const EngineOptions& options, ThreadPool* pool) {
  MNEME_CHECK(model != nullptr && pool != nullptr, "an engine needs a model and threads");
  if (options.device == Device::kCuda) return device_forward(std::move(model), options);
  if (options.gpu_layers != kAutoGpuLayers)
    fail(ErrorKind::kOption, "gpu_layers {}: layers are placed with --device cuda only", options.gpu_layers);
  const CpuContext context{.pool = pool, .rounding = options.deterministic ? Rounding::kFixed : Rounding::kFast};
  return std::make_unique<ModelForward>(std::move(model), context, options.audit_every);
}

}  // namespace

Engine::Engine(std::unique_ptr<Model> model, const EngineOptions& options, std::unique_ptr<ThreadPool> pool)
    // Braces: their arguments are evaluated in order, so that the pool is looked at before it is moved.
    : Engine{forward_of(std::move(model), options, pool.get()), options, std::move(pool)} {}

}  // namespace mneme
