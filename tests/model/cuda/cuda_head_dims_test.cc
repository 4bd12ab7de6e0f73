// Heads of every size that attention is built for, under methods of every form, in both stores, compared with the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "src/ops/attention/attention_cuda.h"
#include "tests/model/cuda/cuda_beside_cpu.h"
#include "tests/model/cuda/cuda_on_device.h"

namespace mneme {
namespace {

struct Form {
  const char *name, *overrides;
};

class CudaHeadDimsTest : public CudaModelTest {
 protected:
  // Errors of the steps of a prompt, an answer beyond the budget, a second prompt and a second answer.
  std::vector<double> errors_of(const Model& model, const Form& form, KvStore store, DType type) {
    Recipe recipe =
        make_recipe(form.name, {.budget = 320, .sink = 32, .recent = 64, .dense_layers = std::vector<std::int32_t>{1}});
    apply_overrides(form.overrides, recipe);
    const auto plan = compile(recipe, method_shape(model.config(), type));
    const std::vector<std::int32_t> tokens = kept_runs(1500, model.config().vocab, 6);
    Both both(model, type, store, cpu);
    Pair a = both.start(plan);
    std::vector<double> errors;
    const auto step = [&](std::int32_t n, SequencePhase phase) {
      errors.push_back(both.step(tokens, {{&a, n, phase}}));
    };
    step(290, SequencePhase::kPrefill);
    for (int i = 0; i < 50; ++i) step(1, SequencePhase::kDecode);
    step(412, SequencePhase::kPrefill);
    for (int i = 0; i < 40; ++i) step(1, SequencePhase::kDecode);
    const LayerStats &here = a.on_device.stats().layers[2], &there = a.on_host.stats().layers[2];
    EXPECT_EQ(here.attended_tokens, there.attended_tokens);
    return errors;
  }
};

// As in cuda_unfused_test: selections may differ where two scores are nearly equal, and a random model diverges then.
TEST_F(CudaHeadDimsTest, MethodsSelectAsTheCpu) {
  for (const std::int32_t head_dim : attention_head_dims_cuda()) {
    if (head_dim == 64 || head_dim == 128) continue;  // every other test
    const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, head_dim), DType::kBF16, {}, 5, cpu);
    for (const Form& form :
         {Form{"window", "sink=5"}, Form{"freekv", "tau=0.7"}, Form{"quest", "unit=page:16"},
          Form{"quest", "unit=page:32,index=cuboid"}, Form{"fier", ""}, Form{"oracle", "unit=page:32"},
          Form{"louiskv", "unit=cluster:16,block=256,tau=-1,max_reuse=7"}, Form{"mneme", "eps=0.05"},
          Form{"actqkv", "sink=32,recent=64"}})
      for (const KvStore store : {KvStore::kDevice, KvStore::kHost}) {
        SCOPED_TRACE(::testing::Message() << "head_dim " << head_dim << ", " << form.name << " " << form.overrides
                                          << (store == KvStore::kHost ? ", host" : ", device"));
        std::vector<double> errors = errors_of(*model, form, store, DType::kBF16);
        for (std::size_t i = 0; i < 20; ++i) ASSERT_LE(errors[i], kTolerance) << "within the budget, " << i;
        std::sort(errors.begin(), errors.end());
        std::printf("head_dim %d, %s %s: error of the median step %.4f, worst %.4f\n", head_dim, form.name,
                    form.overrides, errors[errors.size() / 2], errors.back());
        const bool summarised = std::string_view(form.name) == "mneme";
        EXPECT_LE(errors[errors.size() / 2], summarised ? 2 * kTolerance : kTolerance);
        EXPECT_LE(errors.back(), 0.35);
      }
  }
}

// SmolLM2-135M's heads: with 3 KV heads and 7 selected pages arrays of a launch's scratch are no multiples of 8 bytes.
TEST_F(CudaHeadDimsTest, OddNumbersOfHeadsSelectAsTheCpu) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 9, 3, 64), DType::kBF16, {}, 5, cpu);
  for (const Form& form : {Form{"freekv", "tau=0.7"}, Form{"quest", "unit=page:16"}, Form{"fier", ""},
                           Form{"louiskv", "unit=cluster:16,block=256,tau=-1,max_reuse=7"}, Form{"mneme", "eps=0.05"},
                           Form{"mneme", "index=sketch:12,unit=token"}})
    for (const KvStore store : {KvStore::kDevice, KvStore::kHost}) {
      SCOPED_TRACE(::testing::Message() << form.name << " " << form.overrides
                                        << (store == KvStore::kHost ? ", host" : ", device"));
      std::vector<double> errors = errors_of(*model, form, store, DType::kBF16);
      for (std::size_t i = 0; i < 20; ++i) ASSERT_LE(errors[i], kTolerance) << "within the budget, " << i;
      std::sort(errors.begin(), errors.end());
      const bool summarised = std::string_view(form.name) == "mneme";
      EXPECT_LE(errors[errors.size() / 2], summarised ? 2 * kTolerance : kTolerance);
    }
}

// Methods that drop, and f16 keys.
TEST_F(CudaHeadDimsTest, MethodsDropAsTheCpu) {
  for (const std::int32_t head_dim : attention_head_dims_cuda()) {
    if (head_dim == 64 || head_dim == 128) continue;
    const auto model = Model::random(cuda_config(Architecture::kQwen3, 4, 4, head_dim), DType::kBF16, {}, 5, cpu);
    for (const Form& form : {Form{"full", ""}, Form{"snapkv", "sink=0,recent=32"}, Form{"h2o", "sink=0,recent=64"}}) {
      SCOPED_TRACE(::testing::Message() << "head_dim " << head_dim << ", " << form.name);
      Recipe recipe = make_recipe(form.name, {.budget = 320, .dense_layers = std::vector<std::int32_t>{1}});
      if (*form.overrides != 0) apply_overrides(form.overrides, recipe);
      const std::vector<std::int32_t> tokens = kept_runs(600, model->config().vocab, 6);
      Both both(*model, DType::kF16, KvStore::kDevice, cpu);
      Pair a = both.start(compile(recipe, method_shape(model->config(), DType::kF16)));
      std::vector<double> errors;
      errors.push_back(both.step(tokens, {{&a, 400}}));
      for (int i = 0; i < 40; ++i) {
        errors.push_back(both.step(tokens, {{&a, 1, SequencePhase::kDecode}}));
        a.on_device.commit(a.device), a.on_host.commit(a.host);
      }
      std::sort(errors.begin(), errors.end());
      EXPECT_LE(errors[errors.size() / 2], kTolerance);
    }
  }
}

}  // namespace
}  // namespace mneme
