// Methods that read prompts in windows, or see what is far from elsewhere, on the device against those on the CPU.
#include <gtest/gtest.h>

#include <cmath>

#include "src/model/cuda/forward.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "tests/cuda/cuda_testing.h"
#include "tests/model/cuda/cuda_beside_cpu.h"
#include "tests/model/cuda/cuda_models.h"
#include "tests/model/cuda/cuda_on_device.h"
#include "tests/model/cuda/step_delays.h"
#include "tests/model/method_shape.h"
#include "tests/model/sequence_runner.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

struct Setting {
  const char *method, *overrides;
  RecipeOptions options;
};
const Setting kSettings[] = {
    {"streaming_llm", "prefill=window:32", {.budget = 100, .sink = 4}},
    {"streaming_llm", "prefill=window:256", {.budget = 300, .sink = 40}},
    {"streaming_llm", "prefill=exact", {.budget = 100, .sink = 4}},
    {"streaming_llm", "positions=absolute", {.budget = 97, .sink = 0}},
    {"streaming_llm", "positions=one_angle", {.budget = 100, .sink = 4}},
    {"streaming_llm", "positions=one_angle,dense=1", {.budget = 129, .sink = 33}},
    {"streaming_llm", "dense=0", {.budget = 100, .sink = 4}},
    {"window", "prefill=window:100", {.budget = 256, .sink = 32}},
};
// That select: few pages, many, in windows of several sizes, as many in every layer or shared.
const Setting kSelecting[] = {
    {"actqkv", "", {.budget = 256, .sink = 32, .recent = 64}},
    {"actqkv", "prefill=window:32,cutoff=constant", {.budget = 256, .sink = 32, .recent = 64}},
    {"actqkv", "dense=1", {.budget = 512, .sink = 64, .recent = 128}},
    {"actqkv", "prefill=window:64,cutoff_in=all", {.budget = 320, .sink = 32, .recent = 64}},
};

class CudaWindowsTest : public CudaModelTest {};

// What is selected need not be what the CPU selects where two scores are nearly the same, and after that a random model
// goes its own way: so most steps must have the CPU's logits, and none may be something else altogether.
TEST_F(CudaWindowsTest, SelectsAsTheCpu) {
  for (const auto& [heads, kv_heads, head_dim, type] : {std::tuple{8, 2, 64, DType::kBF16}, {4, 4, 128, DType::kF16}}) {
    const auto model =
        Model::random(cuda_config(Architecture::kLlama, heads, kv_heads, head_dim), DType::kBF16, {}, 5, cpu);
    const std::vector<std::int32_t> tokens = random_tokens(2000, model->config().vocab, 6);
    for (const KvStore store : {KvStore::kDevice, KvStore::kHost})
      for (const Setting& s : kSelecting) {
        SCOPED_TRACE(::testing::Message() << s.method << " " << s.overrides << ", D " << head_dim
                                          << (store == KvStore::kHost ? ", host" : ", device"));
        Recipe recipe = make_recipe(s.method, s.options);
        apply_overrides(s.overrides, recipe);
        const auto plan = compile(recipe, method_shape(model->config(), type));
        Both both(*model, type, store, cpu);
        std::vector<double> errors;
        const auto step = [&](const std::vector<Both::Piece>& pieces) { errors.push_back(both.step(tokens, pieces)); };
        const auto decode = [&](Pair& p, int n) {
          for (int i = 0; i < n; ++i) step({{&p, 1, SequencePhase::kDecode}});
        };
        Pair b = both.start(plan);
        step({{&b, 200}});
        decode(b, 360);
        for (std::size_t i = 0; i < 50; ++i) ASSERT_LE(errors[i], kTolerance) << "within the budget, " << i;
        Pair a = both.start(plan);
        for (const std::int32_t n : {40, 57, 500, 31, 300, 1}) {
          step({{&a, n}});
          if (n == 500) decode(a, 40);
        }
        Pair fork = a.fork();
        decode(a, 20);
        step({{&fork, 170}});
        decode(fork, 10);
        step({{&a, 190}});
        Pair c = both.start(plan);
        for (int i = 0; i < 5; ++i)
          step({{&a, 1, SequencePhase::kDecode}, {&c, 90}, {&fork, 1, SequencePhase::kDecode}});
        for (int i = 0; i < 10; ++i) step({{&c, 1, SequencePhase::kDecode}, {&b, 1, SequencePhase::kDecode}});
        std::sort(errors.begin(), errors.end());
        const auto at = [&](double share) {
          return errors[static_cast<std::size_t>(share * static_cast<double>(errors.size() - 1))];
        };
        std::printf("%s %s: error of the median step %.4f, 90%% %.4f, worst %.4f\n", s.method, s.overrides, at(0.5),
                    at(0.9), at(1));
        EXPECT_LE(at(0.5), kTolerance);
        EXPECT_LE(at(1), 0.3);
        // The moments of all prompts' queries, wherever they were computed.
        const ChannelMoments &here = a.on_device.layer(2).memory->moments, &there = a.on_host.layer(2).memory->moments;
        ASSERT_EQ(here.count(), there.count());
        double difference = 0, size = 0;
        for (std::int64_t i = 0; i < std::ssize(here.means()); ++i)
          difference += std::abs(here.mean(i) - there.mean(i)), size += std::abs(there.mean(i));
        EXPECT_LE(difference, 0.05 * size);
        EXPECT_EQ(a.on_device.stats().layers[2].prefill_tokens, a.on_host.stats().layers[2].prefill_tokens);
      }
  }
}

// Prompts in chunks of every size, answers that cross the budget, a second turn, forks.
TEST_F(CudaWindowsTest, HasTheCpusLogits) {
  for (const auto& [heads, kv_heads, head_dim, type] : {std::tuple{8, 2, 64, DType::kBF16}, {5, 5, 128, DType::kF16}}) {
    const auto model =
        Model::random(cuda_config(Architecture::kLlama, heads, kv_heads, head_dim), DType::kBF16, {}, 5, cpu);
    const std::vector<std::int32_t> tokens = random_tokens(1600, model->config().vocab, 6);
    for (const KvStore store : {KvStore::kDevice, KvStore::kHost})
      for (const Setting& s : kSettings) {
        SCOPED_TRACE(::testing::Message() << s.method << " " << s.overrides << ", D " << head_dim
                                          << (store == KvStore::kHost ? ", host" : ", device"));
        Recipe recipe = make_recipe(s.method, s.options);
        apply_overrides(s.overrides, recipe);
        const auto plan = compile(recipe, method_shape(model->config(), type));
        Both both(*model, type, store, cpu);
        Pair a = both.start(plan);
        const auto decode = [&](Pair& p, int n) {
          for (int i = 0; i < n; ++i)
            ASSERT_LE(both.step(tokens, {{&p, 1, SequencePhase::kDecode}}), kTolerance) << p.host.length();
        };
        // The smallest prompt, and an answer past the budget.
        Pair b = both.start(plan);
        ASSERT_LE(both.step(tokens, {{&b, 1}}), kTolerance);
        decode(b, 330);
        for (const std::int32_t n : {40, 57, 1, 200, 31, 300}) {
          ASSERT_LE(both.step(tokens, {{&a, n}}), kTolerance) << a.host.length();
          if (n == 57) decode(a, 40);
        }
        decode(a, 35);
        Pair fork = a.fork();
        decode(a, 3);
        ASSERT_LE(both.step(tokens, {{&fork, 70}}), kTolerance) << "a fork";
        decode(fork, 3);
        decode(a, 3);
        ASSERT_LE(both.step(tokens, {{&a, 90}}), kTolerance) << "a second turn";
        decode(a, 3);
        // Together: answers, and a prompt beside them.
        Pair c = both.start(plan);
        for (int i = 0; i < 3; ++i)
          ASSERT_LE(both.step(tokens, {{&a, 1, SequencePhase::kDecode}, {&c, 60}, {&fork, 1, SequencePhase::kDecode}}),
                    kTolerance);
        for (int i = 0; i < 3; ++i)
          ASSERT_LE(both.step(tokens, {{&c, 1, SequencePhase::kDecode}, {&b, 1, SequencePhase::kDecode}}), kTolerance);
        const LayerStats &here = a.on_device.stats().layers[2], &there = a.on_host.stats().layers[2];
        EXPECT_EQ(here.attended_tokens, there.attended_tokens);
        EXPECT_EQ(here.prefill_tokens, there.prefill_tokens);
        EXPECT_EQ(here.prefill_rows, there.prefill_rows);
      }
  }
}

// A device by itself: prompts of several sequences one after the other, then answers of all of them together; logits.
std::vector<float> answers_of(const Model& model, const std::shared_ptr<const Plan>& plan, KvStore store,
                              std::int32_t delay_us, std::size_t n, bool together) {
  Stream stream = Stream::make();
  StepDelays delays(delay_us);
  CudaForward forward(model, CudaWeights::load(model, stream), Stream::make(),
                      {.max_rows = 512, .max_sequences = 12, .max_context = model.max_context(), .store = store});
  forward.observe(&delays);
  const KvShape shape = model.kv_shape(DType::kBF16);
  const auto pool = forward.make_pool(shape, 400 * shape.blocks_per_page());
  std::vector<SequenceCache> caches;
  std::vector<MethodState> methods;
  for (std::size_t i = 0; i < n; ++i) {
    caches.emplace_back(*pool).set_key_basis(plan->key_basis);
    methods.emplace_back(plan);
  }
  std::vector<float> out;
  const auto step = [&](std::size_t first, std::size_t last, std::int32_t rows) {
    std::vector<SequenceRows> all;
    std::vector<std::int32_t> fed;
    for (std::size_t i = first; i < last; ++i) {
      const std::vector<std::int32_t> tokens = random_tokens(2000, model.config().vocab, 30 + i);
      const auto at = tokens.begin() + caches[i].length();
      fed.insert(fed.end(), at, at + rows);
      caches[i].extend(rows);
      all.push_back({.cache = &caches[i],
                     .n_rows = rows,
                     .want_logits = true,
                     .method = &methods[i],
                     .phase = rows == 1 ? SequencePhase::kDecode : SequencePhase::kPrefill});
    }
    SequenceRunner::append(forward.run({.tokens = fed, .sequences = all}), out);
  };
  for (std::size_t i = 0; i < n; ++i)
    for (int piece = 0; piece < 3; ++piece) step(i, i + 1, 120 + 10 * static_cast<std::int32_t>(i));
  for (int t = 0; t < 40; ++t) {
    if (together) {
      step(0, n, 1);
    } else {
      for (std::size_t i = 0; i < n; ++i) step(i, i + 1, 1);
    }
  }
  return out;
}

// Selections and recalls that begin later change nothing; many rows at once are what each is alone.
TEST_F(CudaWindowsTest, NeitherDelaysNorNeighboursChangeAnything) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  for (const Setting& s : {kSettings[0], kSettings[4], kSelecting[0], kSelecting[2]})
    for (const KvStore store : {KvStore::kDevice, KvStore::kHost}) {
      SCOPED_TRACE(::testing::Message() << s.method << " " << s.overrides
                                        << (store == KvStore::kHost ? ", host" : ", device"));
      Recipe recipe = make_recipe(s.method, s.options);
      apply_overrides(s.overrides, recipe);
      const auto plan = compile(recipe, method_shape(model->config(), DType::kBF16));
      const std::vector<float> want = answers_of(*model, plan, store, 0, 2, true);
      for (const std::int32_t delay_us : {50, 400})
        ASSERT_TRUE(answers_of(*model, plan, store, delay_us, 2, true) == want) << "up to " << delay_us << " us";
      const std::vector<float> alone = answers_of(*model, plan, store, 0, 10, false),
                               together = answers_of(*model, plan, store, 0, 10, true);
      const auto vocab = static_cast<std::size_t>(model->config().vocab);
      std::vector<double> errors;
      for (std::size_t at = 0; at < alone.size(); at += vocab)
        errors.push_back(relative_error(std::span(together).subspan(at, vocab), std::span(alone).subspan(at, vocab)));
      std::sort(errors.begin(), errors.end());
      EXPECT_LE(errors[errors.size() / 2], kTolerance);
      EXPECT_LE(errors.back(), plan->selects() ? 0.3 : kTolerance);
    }
}

}  // namespace
}  // namespace mneme
