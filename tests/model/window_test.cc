// Windowed prefill in a whole model: without a selection, N rows at a time give what one row at a time gives.
#include <gtest/gtest.h>

#include <cmath>

#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "tests/model/method_shape.h"
#include "tests/model/sequence_runner.h"
#include "tests/model/test_models.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

class ModelWindow : public testing::TestWithParam<const char*> {
 protected:
  // Logits of every token; phase and size of the pieces as said.
  std::vector<float> feed(std::span<const std::int32_t> tokens, std::size_t n_prefill, std::size_t chunk) {
    Recipe recipe = make_recipe("streaming_llm", {.budget = 48, .sink = 4});
    apply_overrides(GetParam(), recipe);
    const auto plan = compile(recipe, method_shape(model->config(), DType::kF16));
    MethodState method(plan);
    SequenceRunner runner(*model, DType::kF16, fixed);
    SequenceCache cache(runner.pool);
    cache.set_key_basis(plan->key_basis);
    std::vector<float> out;
    for (std::size_t at = 0; at < tokens.size();) {
      const bool prefill = at < n_prefill;
      const std::size_t n = prefill ? std::min(chunk, n_prefill - at) : 1;
      cache.extend(static_cast<std::int32_t>(n));
      const SequenceRows rows{.cache = &cache,
                              .n_rows = static_cast<std::int32_t>(n),
                              .method = &method,
                              .phase = prefill ? SequencePhase::kPrefill : SequencePhase::kDecode};
      SequenceRunner::append(
          runner.forward.run_all_logits({.tokens = tokens.subspan(at, n), .sequences = std::span(&rows, 1)}), out);
      at += n;
    }
    return out;
  }

  ThreadPool threads{kTestThreads};
  CpuContext fixed{.pool = &threads, .rounding = Rounding::kFixed};
  std::unique_ptr<Model> model = Model::random(small_config(), DType::kBF16, {}, 11, fixed);
};

TEST_P(ModelWindow, PrefillIsDecodeRowByRow) {
  const std::vector<std::int32_t> tokens = random_tokens(150, 50, 3);
  const std::vector<float> one_by_one = feed(tokens, 0, 1);
  for (const auto& [n_prefill, chunk] :
       {std::pair<std::size_t, std::size_t>{150, 150}, {150, 32}, {100, 64}, {97, 1}}) {
    const std::vector<float> got = feed(tokens, n_prefill, chunk);
    double error = 0, size = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(std::isfinite(got[i])) << "logit " << i;
      error = std::max(error, double{std::abs(got[i] - one_by_one[i])});
      size = std::max(size, double{std::abs(one_by_one[i])});
    }
    EXPECT_LE(error, 0.003 * size) << n_prefill << " tokens by prefill, " << chunk << " at a time";
    EXPECT_GT(size, 0);
  }
}

// Where every key stands for its unit, a state goes on without what tokens received, as a device leaves it: the same
// bits, in prompts, answers and once more from its bytes.
TEST(ModelWindowState, GoesOnWithoutWhatTokensReceived) {
  ThreadPool threads{kTestThreads};
  const CpuContext fixed{.pool = &threads, .rounding = Rounding::kFixed};
  const auto model = Model::random(small_config(), DType::kBF16, {}, 11, fixed);
  const auto plan = compile(make_recipe("actqkv", {.budget = 160, .sink = 32, .recent = 32}),
                            method_shape(model->config(), DType::kF16));
  const std::vector<std::int32_t> tokens = random_tokens(500, 50, 3);
  SequenceRunner runner(*model, DType::kF16, fixed);
  const auto step = [&](SequenceCache& cache, MethodState& method, std::int32_t n, SequencePhase phase) {
    const auto piece = std::span(tokens).subspan(cache.length(), n);
    cache.extend(n);
    const SequenceRows rows{.cache = &cache, .n_rows = n, .method = &method, .phase = phase};
    std::vector<float> out;
    SequenceRunner::append(runner.forward.run_all_logits({.tokens = piece, .sequences = std::span(&rows, 1)}), out);
    return out;
  };
  SequenceCache a(runner.pool);
  a.set_key_basis(plan->key_basis);
  MethodState whole(plan);
  step(a, whole, 300, SequencePhase::kPrefill);
  const auto restored = [&](const MethodState& from, std::int32_t length) {
    ByteWriter bytes;
    from.write(bytes);
    const std::vector<std::byte> all = std::move(bytes).take();
    ByteReader in(all, "a state");
    MethodState state(plan);
    state.read(in, length);
    return state;
  };
  MethodState without(whole);
  for (std::int32_t l = 0; l < 2; ++l) {
    LayerMemory& memory = *without.layer(l).memory;
    memory.units.truncate(0);
    memory.mass = MassWindow(plan->shape.n_heads);
    memory.mass.skip(memory.seen);
  }
  without = restored(without, a.length());
  SequenceCache b = a.fork();
  for (int i = 0; i < 40; ++i)
    ASSERT_EQ(step(b, without, 1, SequencePhase::kDecode), step(a, whole, 1, SequencePhase::kDecode)) << i;
  without = restored(without, b.length());
  ASSERT_EQ(step(b, without, 70, SequencePhase::kPrefill), step(a, whole, 70, SequencePhase::kPrefill));
  for (int i = 0; i < 10; ++i)
    ASSERT_EQ(step(b, without, 1, SequencePhase::kDecode), step(a, whole, 1, SequencePhase::kDecode)) << i;
}

INSTANTIATE_TEST_SUITE_P(Positions, ModelWindow,
                         testing::Values("prefill=window:32", "prefill=window:32,positions=absolute",
                                         "prefill=window:32,positions=one_angle",
                                         "prefill=window:32,positions=one_angle,dense=1"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

}  // namespace
}  // namespace mneme
