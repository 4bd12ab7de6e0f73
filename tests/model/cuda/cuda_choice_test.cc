// Selections that are more than a KV head's best units of a step, on the device, compared with the CPU: one selection a
// layer, units held from the step before, the tokens that hold enough of the attention, lists at every step.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/model/cuda/cuda_beside_cpu.h"
#include "tests/model/cuda/cuda_forms.h"
#include "tests/model/cuda/cuda_on_device.h"

namespace mneme {
namespace {

constexpr Form kForms[] = {{"quest", "unit=page:16,select=layer"},
                           {"quest", "unit=page:32,select=layer,pool=maxQK"},
                           {"fier", "select=layer"},
                           {"oracle", "unit=page:32,select=layer,pool=meanQK"},
                           {"mneme", "schedule=every_step,select=layer,pool=meanS"},
                           {"quest", "unit=page:32,hold=2"},
                           {"quest", "unit=page:16,hold=3,index=cuboid"},
                           {"quest", "unit=page:16,hold=3,select=layer,pool=maxS"},
                           {"fier", "hold=24"},
                           {"oracle", "hold=16"},
                           {"quest", "unit=page:16,cutoff=top_p:0.8"},
                           {"quest", "unit=page:32,cutoff=top_p:0.8"},
                           {"freekv", "cutoff=top_p:0.8,tau=0.7"},
                           {"fier", "cutoff=top_p:0.8"},
                           {"fier", "cutoff=top_p:0.8,pool=none"},
                           {"fier", "cutoff=top_p:1"},
                           {"fier", "open_group=score,recent=2"},
                           {"fier", "open_group=score,group=128,recent=0"},
                           {"louiskv", "schedule=every_step,unit=cluster:16,block=256"},
                           {"louiskv", "unit=cluster:16,block=256,answer=clusters,tau=0.7"}};

class CudaSelectionTest : public CudaModelTest {};

TEST_F(CudaSelectionTest, SelectsAsTheCpu) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  const auto alone = Model::random(cuda_config(Architecture::kLlama, 4, 4, 128), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = kept_runs(1500, model->config().vocab, 6);
  for (const Form& form : kForms)
    for (const KvStore store : {KvStore::kDevice, KvStore::kHost})
      for (const Model* m : {model.get(), alone.get()}) {
        const DType type = m == model.get() ? DType::kBF16 : DType::kF16;
        SCOPED_TRACE(form.text() + ", " + store_name(store) + (m == model.get() ? "" : ", no groups"));
        Both both(*m, type, store, cpu);
        Pair a = both.start(compile(form.recipe(), method_shape(m->config(), type)));
        std::vector<double> errors;
        const auto step = [&](std::int32_t n, SequencePhase phase) {
          errors.push_back(both.step(tokens, {{&a, n, phase}}));
        };
        step(290, SequencePhase::kPrefill);
        for (int i = 0; i < 60; ++i) step(1, SequencePhase::kDecode);
        step(400, SequencePhase::kPrefill);
        for (int i = 0; i < 60; ++i) step(1, SequencePhase::kDecode);
        for (std::size_t i = 0; i < 25; ++i) ASSERT_LE(errors[i], kTolerance) << "within the budget, " << i;
        const bool summarised = std::string_view(form.name) == "mneme";
        expect_close(errors, form.text(), summarised ? 2 * kTolerance : kTolerance);
        const LayerStats &here = a.on_device.stats().layers[2], &there = a.on_host.stats().layers[2];
        // Which tokens hold the last thousandth of a share differs with rounding.
        const bool prunes = std::string_view(form.overrides).find("top_p") != std::string_view::npos;
        EXPECT_NEAR(static_cast<double>(here.attended_tokens), static_cast<double>(there.attended_tokens),
                    prunes ? 0.02 * static_cast<double>(there.attended_tokens) : 0.0);
      }
}

// Sequences of one step with and without them.
TEST_F(CudaSelectionTest, RowsOfOneStepMayDiffer) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = kept_runs(1200, model->config().vocab, 6);
  for (const KvStore store : {KvStore::kDevice, KvStore::kHost}) {
    SCOPED_TRACE(store_name(store));
    Both both(*model, DType::kBF16, store, cpu);
    std::vector<Pair> pairs;
    for (const char* overrides : {"unit=page:32", "unit=page:32,hold=2", "unit=page:32,select=layer,pool=meanS",
                                  "unit=page:32,cutoff=top_p:0.8"}) {
      Recipe recipe = make_recipe("quest", {.budget = 256, .sink = 32, .recent = 32});
      apply_overrides(overrides, recipe);
      pairs.push_back(both.start(compile(recipe, method_shape(model->config()))));
    }
    std::vector<std::vector<double>> errors(pairs.size());
    const auto keep = [&] {
      for (std::size_t i = 0; i < pairs.size(); ++i) errors[i].push_back(both.errors[i]);
    };
    for (int i = 0; i < 4; ++i) {
      std::vector<Both::Piece> pieces;
      for (Pair& p : pairs) pieces.push_back({&p, 100});
      both.step(tokens, pieces);
    }
    for (int i = 0; i < 40; ++i) {
      std::vector<Both::Piece> pieces;
      for (Pair& p : pairs) pieces.push_back({&p, 1, SequencePhase::kDecode});
      both.step(tokens, pieces);
      keep();
    }
    for (std::size_t i = 0; i < pairs.size(); ++i) expect_close(errors[i], "plan " + std::to_string(i));
  }
}

}  // namespace
}  // namespace mneme
