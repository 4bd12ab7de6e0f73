// Recipes that no kernel has: the device's GEMMs around the CPU's attention, compared with the CPU alone.
#include <gtest/gtest.h>

#include "src/recipes/device_form.h"
#include "tests/model/cuda/cuda_beside_cpu.h"
#include "tests/model/cuda/cuda_forms.h"
#include "tests/model/cuda/cuda_on_device.h"

namespace mneme {
namespace {

constexpr Form kForms[] = {{"louiskv", "unit=cluster:16,block=256,index=box"},
                           {"louiskv", "unit=cluster:16,block=256,index=cuboid,schedule=every_step"},
                           {"louiskv", "unit=cluster:16,block=256,pool=maxQ"},
                           {"louiskv", "unit=cluster:16,block=256,pool=none"},
                           {"louiskv", "unit=cluster:16,block=256,domain=attention"},
                           {"clusterkv", "unit=cluster:16,segment=32-32"},
                           {"mneme", "unit=page:128,sink=0,recent=128"},
                           {"infllm", ""},
                           {"q_llm", ""},
                           {"actqkv", "match=mean,top=4"},
                           {"actqkv", "match=best,top=8"},
                           {"actqkv", "unit=page:16"},
                           {"actqkv", "positions=absolute"}};

class CudaHostAttentionTest : public CudaModelTest {};

TEST_F(CudaHostAttentionTest, AttendsAsTheCpu) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = kept_runs(1500, model->config().vocab, 6);
  for (const Form& form : kForms)
    for (const KvStore store : {KvStore::kDevice, KvStore::kHost}) {
      SCOPED_TRACE(form.text() + ", " + store_name(store));
      const auto plan = compile(form.recipe(), method_shape(model->config()));
      ASSERT_EQ(device_form(*plan), DeviceForm::kHost);
      Both both(*model, DType::kBF16, store, cpu);
      Pair a = both.start(plan);
      std::vector<double> errors;
      const auto step = [&](Pair& p, std::int32_t n, SequencePhase phase) {
        errors.push_back(both.step(tokens, {{&p, n, phase}}));
      };
      step(a, 290, SequencePhase::kPrefill);
      for (int i = 0; i < 40; ++i) step(a, 1, SequencePhase::kDecode);
      step(a, 400, SequencePhase::kPrefill);
      Pair fork = a.fork();
      for (int i = 0; i < 20; ++i) step(a, 1, SequencePhase::kDecode);
      for (int i = 0; i < 10; ++i) step(fork, 1, SequencePhase::kDecode);
      for (std::size_t i = 0; i < 25; ++i) ASSERT_LE(errors[i], kTolerance) << "within the budget, " << i;
      expect_close(errors, form.text());
      const LayerStats &here = a.on_device.stats().layers[2], &there = a.on_host.stats().layers[2];
      EXPECT_EQ(here.attended_tokens, there.attended_tokens);
      EXPECT_EQ(here.prefill_tokens, there.prefill_tokens);
    }
}

// A marked question counts in windows of the prompt, and where the recipe says so in answers.
TEST_F(CudaHostAttentionTest, ScoresWithAMarkedQuestion) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = kept_runs(1500, model->config().vocab, 6);
  for (const Form& form : {Form{"actqkv", ""}, Form{"actqkv", "question_in=all"}, Form{"q_llm", ""}})
    for (const KvStore store : {KvStore::kDevice, KvStore::kHost}) {
      SCOPED_TRACE(form.text() + ", " + store_name(store));
      Both both(*model, DType::kBF16, store, cpu);
      Pair a = both.start(compile(form.recipe(), method_shape(model->config())));
      a.on_device.set_question_span(20, 60), a.on_host.set_question_span(20, 60);
      std::vector<double> errors;
      for (const std::int32_t n : {100, 380, 200}) errors.push_back(both.step(tokens, {{&a, n}}));
      for (int i = 0; i < 30; ++i) errors.push_back(both.step(tokens, {{&a, 1, SequencePhase::kDecode}}));
      expect_close(errors, form.text());
      EXPECT_FALSE(a.on_device.layer(2).memory->question.empty());
    }
}

TEST_F(CudaHostAttentionTest, SomeHeadsAttendEverything) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = kept_runs(1500, model->config().vocab, 6);
  for (const char* name : {"window", "freekv"}) {
    Recipe recipe = make_recipe(name, {.budget = 256, .sink = 32, .recent = 64});
    recipe.full_heads = FullHeads{.n_layers = 3, .n_kv_heads = 2, .full = {1, 0, 0, 0, 0, 1}};
    Both both(*model, DType::kBF16, KvStore::kHost, cpu);
    Pair a = both.start(compile(recipe, method_shape(model->config())));
    std::vector<double> errors;
    errors.push_back(both.step(tokens, {{&a, 500}}));
    for (int i = 0; i < 30; ++i) errors.push_back(both.step(tokens, {{&a, 1, SequencePhase::kDecode}}));
    expect_close(errors, name);
    EXPECT_EQ(a.on_device.stats().layers[2].attended_tokens, a.on_host.stats().layers[2].attended_tokens);
  }
}

// Sequences of the host, of the device and of neither in one step, and a prompt beside them.
TEST_F(CudaHostAttentionTest, SharesAStepWithTheDevice) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = kept_runs(1200, model->config().vocab, 6);
  for (const KvStore store : {KvStore::kDevice, KvStore::kHost}) {
    SCOPED_TRACE(store_name(store));
    Both both(*model, DType::kBF16, store, cpu);
    std::vector<Pair> pairs;
    for (const Form& form : {Form{"freekv", ""}, Form{"actqkv", "match=mean,top=4"}, Form{"full", ""},
                             Form{"louiskv", "unit=cluster:16,block=256,index=box"}})
      pairs.push_back(both.start(compile(form.name == std::string_view("full") ? make_recipe("full") : form.recipe(),
                                         method_shape(model->config()))));
    std::vector<double> errors;
    for (std::size_t i = 0; i < pairs.size(); ++i)
      for (int piece = 0; piece < 4; ++piece) {
        std::vector<Both::Piece> pieces{{&pairs[i], 100}};
        for (std::size_t j = 0; j < i; ++j) pieces.push_back({&pairs[j], 1, SequencePhase::kDecode});
        errors.push_back(both.step(tokens, pieces));
      }
    for (int i = 0; i < 20; ++i) {
      std::vector<Both::Piece> pieces;
      for (Pair& p : pairs) pieces.push_back({&p, 1, SequencePhase::kDecode});
      errors.push_back(both.step(tokens, pieces));
    }
    expect_close(errors, "together");
  }
}

}  // namespace
}  // namespace mneme
