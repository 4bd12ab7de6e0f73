// The shipped model with a device's moods: it may fail from one step on, and refuses some methods.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "src/base/error.h"
#include "src/engine/engine.h"
#include "src/engine/forward_pass.h"
#include "src/engine/session/running_model.h"
#include "src/server/server_options.h"

namespace mneme::server_test {

// What the test and the pass tell each other; outlives the server.
struct PassLog {
  std::atomic<bool> fails = false;              // the next step and, as a device does, every later one
  std::atomic<int> steps = 0, steps_after = 0;  // that were computed, and that were asked for after one had failed
};
inline constexpr const char* kDeviceWords = "waiting for the device: an illegal memory access was encountered";

class TestPass final : public ForwardPass {
 public:
  TestPass(std::unique_ptr<Model> model, const CpuContext& context, PassLog& log)
      : model_(std::move(model)), forward_(*model_, context), log_(log) {}

  KvShape kv_shape(DType kv_dtype) const override { return model_->kv_shape(kv_dtype); }
  std::int64_t vocab() const override { return model_->config().vocab; }
  std::int64_t max_context() const override { return model_->max_context(); }
  const Model* model() const override { return model_.get(); }
  ConstTensorView run(const ForwardInput& input) override {
    if (failed_) ++log_.steps_after;
    if (log_.fails) {
      failed_ = true;
      fail(ErrorKind::kDevice, "{}", kDeviceWords);
    }
    ++log_.steps;
    return forward_.run(input);
  }
  // As a device does that has no form of some recipes.
  void expect_method(const Plan& plan) const override {
    if (plan.dense_layer(1)) fail(ErrorKind::kUnsupported, "no dense layer 1 on this device");
  }

 private:
  std::unique_ptr<Model> model_;
  Forward forward_;
  PassLog& log_;
  bool failed_ = false;
};

// The model of `options`, on one thread, under a TestPass.
inline RunningModel start_test_pass(const server::ServerOptions& options, PassLog& log) {
  RunningModel running = start_model(Checkpoint::open(options.model), nullptr, options.engine, {});
  auto threads = std::make_unique<ThreadPool>(1);
  const CpuContext context{.pool = threads.get()};
  auto model = Model::load(Checkpoint::open(options.model), {.context = options.engine.context}, context);
  running.engine = std::make_unique<Engine>(std::make_unique<TestPass>(std::move(model), context, log),
                                            running.engine->options(), std::move(threads));
  return running;
}

}  // namespace mneme::server_test
