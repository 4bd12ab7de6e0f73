// Controls and audit on the device, compared with the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>

#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "tests/cuda/cuda_testing.h"
#include "tests/model/cuda/cuda_beside_cpu.h"
#include "tests/model/cuda/cuda_on_device.h"
#include "tests/model/method_shape.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

std::shared_ptr<const Plan> plan_of(const ModelConfig& config, const char* name, const char* overrides,
                                    const RecipeOptions& options, DType type = DType::kBF16) {
  Recipe recipe = make_recipe(name, options);
  apply_overrides(overrides, recipe);
  return compile(recipe, method_shape(config, type));
}

class CudaControlsTest : public CudaModelTest {};

// Random selections do not depend on the model, so every step has the CPU's logits.
TEST_F(CudaControlsTest, SamplesAsTheCpu) {
  for (const auto& [heads, kv_heads, head_dim, type] : {std::tuple{8, 2, 64, DType::kBF16}, {7, 1, 128, DType::kF16}}) {
    const auto model =
        Model::random(cuda_config(Architecture::kLlama, heads, kv_heads, head_dim), DType::kBF16, {}, 5, cpu);
    const std::vector<std::int32_t> tokens = random_tokens(1500, model->config().vocab, 6);
    for (const KvStore store : {KvStore::kDevice, KvStore::kHost})
      for (const char* overrides : {"dense=1", "seed=99,pool=maxQK"}) {
        SCOPED_TRACE(::testing::Message() << overrides << (store == KvStore::kHost ? ", host" : ", device"));
        const auto plan =
            plan_of(model->config(), "random", overrides, {.budget = 320, .sink = 32, .recent = 64}, type);
        Both both(*model, type, store, cpu);
        Pair a = both.start(plan), b = both.start(plan);
        const auto decode = [&](Pair& p, int n) {
          for (int i = 0; i < n; ++i)
            ASSERT_LE(both.step(tokens, {{&p, 1, SequencePhase::kDecode}}), kTolerance) << p.host.length();
        };
        ASSERT_LE(both.step(tokens, {{&a, 300}}), kTolerance);
        decode(a, 60);  // on the way the budget is crossed
        ASSERT_LE(both.step(tokens, {{&a, 500}}), kTolerance);
        decode(a, 40);
        Pair fork = a.fork();
        decode(a, 3);
        ASSERT_LE(both.step(tokens, {{&fork, 70}}), kTolerance);
        decode(fork, 3);
        for (int i = 0; i < 3; ++i)
          ASSERT_LE(both.step(tokens, {{&a, 1, SequencePhase::kDecode}, {&b, 150}, {&fork, 1, SequencePhase::kDecode}}),
                    kTolerance);
        for (int i = 0; i < 10; ++i)
          ASSERT_LE(both.step(tokens, {{&b, 1, SequencePhase::kDecode}, {&a, 1, SequencePhase::kDecode}}), kTolerance);
        for (std::size_t l = 0; l < 3; ++l) {
          const LayerStats &here = a.on_device.stats().layers[l], &there = a.on_host.stats().layers[l];
          EXPECT_EQ(here.attended_tokens, there.attended_tokens);
          EXPECT_EQ(here.selected_units, there.selected_units);
          EXPECT_EQ(here.selections, there.selections);
        }
      }
  }
}

// Selections may differ where two scores are nearly equal, and a random model diverges afterwards: most steps must have
// the CPU's logits, and none may differ entirely.
TEST_F(CudaControlsTest, SelectsByKeysAsTheCpu) {
  for (const auto& [heads, kv_heads, head_dim, type] : {std::tuple{8, 2, 64, DType::kBF16}, {4, 4, 128, DType::kF16}}) {
    const auto model =
        Model::random(cuda_config(Architecture::kLlama, heads, kv_heads, head_dim), DType::kBF16, {}, 5, cpu);
    const std::vector<std::int32_t> tokens = random_tokens(1500, model->config().vocab, 6);
    for (const KvStore store : {KvStore::kDevice, KvStore::kHost})
      for (const char* overrides : {"", "pool=maxQK,dense=1", "unit=page:32"}) {
        SCOPED_TRACE(::testing::Message() << overrides << (store == KvStore::kHost ? ", host" : ", device"));
        const auto plan =
            plan_of(model->config(), "oracle", overrides, {.budget = 256, .sink = 32, .recent = 64}, type);
        Both both(*model, type, store, cpu);
        Pair a = both.start(plan), b = both.start(plan);
        std::vector<double> errors;
        const auto step = [&](const std::vector<Both::Piece>& pieces) { errors.push_back(both.step(tokens, pieces)); };
        step({{&a, 200}});
        for (int i = 0; i < 80; ++i) step({{&a, 1, SequencePhase::kDecode}});
        step({{&a, 500}});
        for (int i = 0; i < 50; ++i) step({{&a, 1, SequencePhase::kDecode}});
        for (int i = 0; i < 3; ++i) step({{&a, 1, SequencePhase::kDecode}, {&b, 150}});
        for (int i = 0; i < 30; ++i) step({{&b, 1, SequencePhase::kDecode}, {&a, 1, SequencePhase::kDecode}});
        for (std::size_t i = 0; i < 50; ++i) ASSERT_LE(errors[i], kTolerance) << "within the budget, " << i;
        std::sort(errors.begin(), errors.end());
        std::printf("oracle %s: error of the median step %.4f, worst %.4f\n", overrides, errors[errors.size() / 2],
                    errors.back());
        EXPECT_LE(errors[errors.size() / 2], kTolerance);
        EXPECT_LE(errors.back(), 0.3);
        EXPECT_EQ(a.on_device.stats().layers[2].index_bytes_read, a.on_host.stats().layers[2].index_bytes_read);
        EXPECT_EQ(a.on_device.stats().layers[2].attended_tokens, a.on_host.stats().layers[2].attended_tokens);
      }
  }
}

// A control and a method that selects by boxes in one step: each gives what it gives alone.
TEST_F(CudaControlsTest, RunsInOneStepWithOtherMethods) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 128), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(1500, model->config().vocab, 6);
  const RecipeOptions options{.budget = 256, .sink = 32, .recent = 64, .dense_layers = std::vector<std::int32_t>{0}};
  Both both(*model, DType::kBF16, KvStore::kHost, cpu);
  std::vector<Pair> all;
  for (const auto& [name, overrides] :
       {std::pair{"random", ""}, {"freekv", "unit=page:32"}, {"oracle", "unit=page:32"}, {"window", ""}})
    all.push_back(both.start(plan_of(model->config(), name, overrides, options)));
  for (Pair& p : all) both.step(tokens, {{&p, 500}});
  std::vector<double> errors;
  for (int i = 0; i < 40; ++i) {
    std::vector<Both::Piece> pieces;
    for (std::size_t p = 0; p < 3; ++p) pieces.push_back({&all[p], 1, SequencePhase::kDecode});
    errors.push_back(both.step(tokens, pieces));
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_LE(errors[errors.size() / 2], kTolerance);
  EXPECT_LE(errors.back(), 0.3);
  for (std::size_t l = 1; l < 3; ++l) {
    const LayerStats &here = all[0].on_device.stats().layers[l], &there = all[0].on_host.stats().layers[l];
    EXPECT_EQ(here.replaced_units, there.replaced_units);
  }
}

struct Audited {
  const char *method, *overrides;
  std::int64_t head_dim;
  KvStore store;
  bool same_sets;  // what is attended does not depend on scores
};

std::string words_of(const Audited& c) {
  return std::string(c.method) + (*c.overrides == '\0' ? "" : " ") + c.overrides + ", D " + std::to_string(c.head_dim) +
         (c.store == KvStore::kHost ? ", host" : ", device");
}

void PrintTo(const Audited& c, std::ostream* out) {
  *out << words_of(c);
}

class CudaAuditTest : public CudaControlsTest, public ::testing::WithParamInterface<Audited> {};

// Sums over audited steps as the CPU's: the same number of them, recall and mass about the same. A selection of another
// token or page here and there moves the means by little.
TEST_P(CudaAuditTest, AuditsAsTheCpu) {
  const Audited& c = GetParam();
  std::printf("%s\n", words_of(c).c_str());
  std::fflush(stdout);
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, c.head_dim), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(1500, model->config().vocab, 6);
  const auto plan = plan_of(model->config(), c.method, c.overrides, {.budget = 320, .sink = 32, .recent = 64});
  Both both(*model, DType::kBF16, c.store, cpu, 3);
  Pair a = both.start(plan), b = both.start(plan);
  both.step(tokens, {{&a, 310}}), both.step(tokens, {{&b, 350}}), both.step(tokens, {{&b, 350}});
  for (int i = 0; i < 40; ++i) both.step(tokens, {{&a, 1, SequencePhase::kDecode}});  // the budget is crossed
  for (int i = 0; i < 30; ++i) both.step(tokens, {{&b, 1, SequencePhase::kDecode}, {&a, 1, SequencePhase::kDecode}});
  for (Pair* p : {&a, &b})
    for (std::size_t l = 0; l < 3; ++l) {
      const LayerStats &here = p->on_device.stats().layers[l], &there = p->on_host.stats().layers[l];
      ASSERT_EQ(here.audit.samples, there.audit.samples) << "layer " << l;
      const auto n = static_cast<double>(there.audit.samples);
      if (n == 0) continue;
      EXPECT_GE(n, 10);
      const double bound = c.same_sets ? 0.005 : 0.03;
      EXPECT_NEAR(here.audit.recall / n, there.audit.recall / n, bound) << "layer " << l;
      EXPECT_NEAR(here.audit.mass / n, there.audit.mass / n, bound) << "layer " << l;
      EXPECT_NEAR(here.audit.error / n, there.audit.error / n, bound + 0.005) << "layer " << l;
      EXPECT_LE(here.audit.mass, n * 1.01);
      std::printf("  %c, layer %d: recall %.4f (%.4f), mass %.4f (%.4f), error %.4f (%.4f)\n", p == &a ? 'a' : 'b',
                  static_cast<int>(l), here.audit.recall / n, there.audit.recall / n, here.audit.mass / n,
                  there.audit.mass / n, here.audit.error / n, there.audit.error / n);
    }
  std::fflush(stdout);
}

INSTANTIATE_TEST_SUITE_P(Methods, CudaAuditTest,
                         ::testing::Values(Audited{"random", "", 64, KvStore::kHost, true},
                                           Audited{"random", "dense=1", 128, KvStore::kDevice, true},
                                           Audited{"streaming_llm", "", 64, KvStore::kDevice, true},
                                           Audited{"streaming_llm", "positions=one_angle", 128, KvStore::kHost, true},
                                           Audited{"streaming_llm", "positions=absolute", 64, KvStore::kHost, true},
                                           Audited{"quest", "unit=page:32", 128, KvStore::kHost, false},
                                           Audited{"freekv", "unit=page:32,tau=0.5", 64, KvStore::kHost, false},
                                           Audited{"freekv", "unit=token,index=one_bit", 128, KvStore::kDevice, false},
                                           Audited{"fier", "", 64, KvStore::kHost, false},
                                           Audited{"fier", "", 128, KvStore::kDevice, false},
                                           Audited{"oracle", "", 64, KvStore::kHost, false},
                                           Audited{"oracle", "", 128, KvStore::kDevice, false},
                                           Audited{"louiskv", "tau=0.5", 64, KvStore::kHost, false},
                                           Audited{"louiskv", "tau=0.5", 128, KvStore::kDevice, false},
                                           Audited{"actqkv", "", 64, KvStore::kHost, false},
                                           Audited{"actqkv", "", 128, KvStore::kDevice, false}));

// Audited steps give the same results.
TEST_F(CudaControlsTest, AuditsChangeNothing) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(1200, model->config().vocab, 6);
  for (const auto& [name, overrides] : {std::pair{"freekv", "unit=page:32,tau=0.5"}, {"louiskv", "tau=0.5"}}) {
    const auto plan = plan_of(model->config(), name, overrides, {.budget = 320, .sink = 32, .recent = 64});
    const auto answers = [&](std::int32_t audit) {
      OnDevice on(*model,
                  {.max_rows = 512,
                   .max_sequences = 2,
                   .max_context = model->max_context(),
                   .store = KvStore::kHost,
                   .audit_every = audit},
                  DType::kBF16, 100);
      SequenceCache cache(*on.pool);
      MethodState method(plan);
      std::vector<float> out;
      for (int i = 0; i < 62; ++i) {
        const auto piece =
            std::span<const std::int32_t>(tokens).subspan(static_cast<std::size_t>(cache.length()), i < 2 ? 400 : 1);
        const std::vector<float> logits = on.step(cache, piece, &method);
        out.insert(out.end(), logits.begin(), logits.end());
      }
      EXPECT_EQ(method.stats().layers[2].audit.samples > 0, audit > 0);
      return out;
    };
    const std::vector<float> want = answers(0);
    ASSERT_TRUE(answers(1) == want) << name;
    ASSERT_TRUE(answers(4) == want) << name;
  }
}

// Index bytes read, as the CPU counts them if every KV head selects at every step.
TEST_F(CudaControlsTest, CountsIndexBytesAsTheCpu) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(1200, model->config().vocab, 6);
  for (const auto& [name, overrides] : {std::pair{"quest", "unit=page:32"},
                                        {"fier", ""},
                                        {"freekv", "unit=page:32,tau=2"},
                                        {"freekv", "unit=page:32,tau=-1"},
                                        {"freekv", "unit=token,index=one_bit,tau=-1"},
                                        {"louiskv", "tau=2"},
                                        {"actqkv", ""},
                                        {"random", ""}}) {
    SCOPED_TRACE(::testing::Message() << name << " " << overrides);
    const auto plan = plan_of(model->config(), name, overrides, {.budget = 320, .sink = 32, .recent = 64});
    Both both(*model, DType::kBF16, KvStore::kHost, cpu);
    Pair a = both.start(plan);
    both.step(tokens, {{&a, 500}}), both.step(tokens, {{&a, 300}});
    for (int i = 0; i < 70; ++i) both.step(tokens, {{&a, 1, SequencePhase::kDecode}});
    for (std::size_t l = 0; l < 3; ++l)
      EXPECT_EQ(a.on_device.stats().layers[l].index_bytes_read, a.on_host.stats().layers[l].index_bytes_read) << l;
  }
}

}  // namespace
}  // namespace mneme
