// Recipes that no fused selection covers, on the device, compared with the CPU: units of any size, every index, pool
// and schedule.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "tests/model/cuda/cuda_beside_cpu.h"
#include "tests/model/cuda/cuda_forms.h"
#include "tests/model/cuda/cuda_on_device.h"

namespace mneme {
namespace {

class CudaUnfusedTest : public CudaModelTest {
 protected:
  std::shared_ptr<const Plan> plan_of(const Model& model, const Form& form, DType type = DType::kBF16) {
    return compile(form.recipe(), method_shape(model.config(), type));
  }
};

// Random selections do not depend on the model, so every step has the CPU's logits.
TEST_F(CudaUnfusedTest, RandomUnitsOfAnySizeAreTheCpus) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(1500, model->config().vocab, 6);
  for (const KvStore store : {KvStore::kDevice, KvStore::kHost})
    for (const char* overrides :
         {"unit=page:16", "unit=page:8,recent=8", "unit=page:64,sink=0", "unit=token", "unit=page:1,recent=0",
          "unit=page:48,sink=48,recent=96", "unit=page:32,pool=none", "unit=token,pool=none"}) {
      SCOPED_TRACE(::testing::Message() << overrides << (store == KvStore::kHost ? ", host" : ", device"));
      const auto plan = plan_of(*model, {"random", overrides});
      Both both(*model, DType::kBF16, store, cpu);
      Pair a = both.start(plan);
      ASSERT_LE(both.step(tokens, {{&a, 300}}), kTolerance);
      for (int i = 0; i < 70; ++i) ASSERT_LE(both.step(tokens, {{&a, 1, SequencePhase::kDecode}}), kTolerance) << i;
      ASSERT_LE(both.step(tokens, {{&a, 400}}), kTolerance);
      for (int i = 0; i < 40; ++i) ASSERT_LE(both.step(tokens, {{&a, 1, SequencePhase::kDecode}}), kTolerance) << i;
      const LayerStats &here = a.on_device.stats().layers[2], &there = a.on_host.stats().layers[2];
      EXPECT_EQ(here.attended_tokens, there.attended_tokens);
      EXPECT_EQ(here.selected_units, there.selected_units);
    }
}

// Windows that begin and end anywhere.
TEST_F(CudaUnfusedTest, WindowsOfAnySizeAreTheCpus) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 128), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(900, model->config().vocab, 6);
  for (const KvStore store : {KvStore::kDevice, KvStore::kHost})
    for (const char* overrides : {"sink=5", "sink=1,budget=131", "sink=0,budget=127"}) {
      SCOPED_TRACE(::testing::Message() << overrides << (store == KvStore::kHost ? ", host" : ", device"));
      Both both(*model, DType::kBF16, store, cpu);
      Pair a = both.start(plan_of(*model, {"window", overrides}));
      both.step(tokens, {{&a, 500}});
      for (int i = 0; i < 70; ++i) ASSERT_LE(both.step(tokens, {{&a, 1, SequencePhase::kDecode}}), kTolerance) << i;
      EXPECT_EQ(a.on_device.stats().layers[2].attended_tokens, a.on_host.stats().layers[2].attended_tokens);
    }
}

// Selections may differ where two scores are nearly equal, and a random model diverges afterwards: most steps must have
// the CPU's logits, and none may differ entirely.
TEST_F(CudaUnfusedTest, SelectsAsTheCpu) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  const auto alone = Model::random(cuda_config(Architecture::kLlama, 4, 4, 128), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = kept_runs(1500, model->config().vocab, 6);
  for (const Form& form : {Form{"quest", "unit=page:16"},
                           Form{"quest", "unit=page:16,index=cuboid,sink=0,recent=0"},
                           Form{"quest", "unit=page:16,pool=maxQ"},
                           Form{"quest", "unit=page:64,sink=64,pool=meanQ,index=centroid"},
                           Form{"freekv", "unit=page:16,tau=0.7"},
                           Form{"freekv", "unit=page:32,index=cuboid,tau=0.7"},
                           Form{"freekv", "unit=page:32,index=keys,tau=0.7"},
                           Form{"freekv", "unit=page:16,gate=mass,eps=0.2"},
                           Form{"freekv", "unit=page:32,index=one_bit,group=64,tau=0.7"},
                           Form{"freekv", "unit=page:16,index=one_bit,levels=meanabs,tau=-1"},
                           Form{"fier", "pool=meanQ"},
                           Form{"fier", "schedule=boundary,tau=0.7,max_reuse=11"},
                           Form{"louiskv", "unit=page:16,index=box,tau=0.7,max_reuse=11"},
                           Form{"oracle", "schedule=boundary,tau=0.7,max_reuse=7"},
                           Form{"oracle", "unit=page:16,pool=maxS"},
                           Form{"mneme", "eps=0.05"},
                           Form{"mneme", "unit=page:16,index=centroids:4,eps=0.05"},
                           Form{"freekv", "index=moments,tau=0.7"},
                           Form{"quest", "unit=page:32,index=sketch:12,pool=meanS,domain=attention"},
                           Form{"fier", "index=sketch:12"},
                           Form{"quest", "pool=none"},
                           Form{"fier", "pool=none"},
                           Form{"freekv", "unit=page:16,pool=none,tau=0.7"},
                           Form{"freekv", "index=keys,pool=none,gate=mass,eps=0.2"},
                           Form{"oracle", "unit=page:32,pool=none"}})
    for (const KvStore store : {KvStore::kDevice, KvStore::kHost})
      for (const Model* m : {model.get(), alone.get()}) {
        const DType type = m == model.get() ? DType::kBF16 : DType::kF16;
        SCOPED_TRACE(form.text() + ", " + store_name(store));
        Both both(*m, type, store, cpu);
        Pair a = both.start(plan_of(*m, form, type));
        std::vector<double> errors;
        const auto step = [&](std::int32_t n, SequencePhase phase) {
          errors.push_back(both.step(tokens, {{&a, n, phase}}));
        };
        step(290, SequencePhase::kPrefill);
        for (int i = 0; i < 60; ++i) step(1, SequencePhase::kDecode);
        step(400, SequencePhase::kPrefill);
        step(133, SequencePhase::kPrefill);
        for (int i = 0; i < 60; ++i) step(1, SequencePhase::kDecode);
        for (std::size_t i = 0; i < 25; ++i) ASSERT_LE(errors[i], kTolerance) << "within the budget, " << i;
        // Summaries of the same keys differ by rounding, and select another page now and then.
        const bool summarised = std::string_view(form.name) == "mneme";
        expect_close(errors, form.text(), summarised ? 2 * kTolerance : kTolerance);
        const LayerStats &here = a.on_device.stats().layers[2], &there = a.on_host.stats().layers[2];
        std::printf("  %lld and %lld corrections\n",
                    static_cast<long long>(here.corrections.empty() ? 0 : here.corrections[0]),
                    static_cast<long long>(there.corrections.empty() ? 0 : there.corrections[0]));
        EXPECT_EQ(here.attended_tokens, there.attended_tokens);
      }
}

}  // namespace
}  // namespace mneme
