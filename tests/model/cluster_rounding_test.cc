// Clusters of a prompt depend neither on chunks nor on threads nor on the rest of the batch.
#include <gtest/gtest.h>

#include <cstring>

#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "tests/model/method_shape.h"
#include "tests/model/sequence_runner.h"
#include "tests/model/test_models.h"

namespace mneme {
namespace {

struct Read {
  std::vector<std::vector<std::int32_t>> units;
  std::vector<std::byte> keys;
};

// A prompt in chunks, by default rounding.
Read read_prompt(const Model& model, std::span<const std::int32_t> tokens, std::size_t chunk, int n_threads) {
  ThreadPool threads(n_threads);
  Recipe recipe =
      make_recipe("louiskv", {.budget = 96, .sink = 4, .recent = 24, .dense_layers = std::vector<std::int32_t>{}});
  apply_overrides("unit=cluster:4,block=64,segment=4-16", recipe);
  MethodState method(compile(recipe, method_shape(model.config(), DType::kF16)));
  SequenceRunner runner(model, DType::kF16, {.pool = &threads, .rounding = Rounding::kFast});
  SequenceCache cache(runner.pool);
  for (std::size_t at = 0; at < tokens.size();) {
    const std::size_t n = std::min(chunk, tokens.size() - at);
    cache.extend(static_cast<std::int32_t>(n));
    const SequenceRows rows{.cache = &cache,
                            .n_rows = static_cast<std::int32_t>(n),
                            .method = &method,
                            .phase = SequencePhase::kPrefill,
                            .prefill_left = static_cast<std::int32_t>(tokens.size() - at - n)};
    runner.forward.run({.tokens = tokens.subspan(at, n), .sequences = std::span(&rows, 1)});
    method.commit(cache);
    at += n;
  }
  Read read;
  const auto n_layers = static_cast<std::int32_t>(model.config().n_layers);
  for (std::int32_t l = 0; l < n_layers; ++l) {
    for (const UnitTable& table : method.layer(l).tables)
      for (std::int32_t u = 0; u < table.size(); ++u) {
        read.units.emplace_back();
        for (std::int32_t i = 0; i < table.n_tokens(u); ++i) read.units.back().push_back(table.token(u, i));
      }
    std::vector<KvRun> runs;
    cache.append_runs(l, 0, 0, cache.length(), runs);
    const std::size_t bytes = method_shape(model.config(), DType::kF16).attention().token_bytes();
    for (const KvRun& run : runs) read.keys.insert(read.keys.end(), run.kv, run.kv + run.n_tokens * bytes);
  }
  return read;
}

TEST(ClusterRounding, ChunksAndThreadsChangeNoClusterAndNoKey) {
  ThreadPool threads(1);
  for (const DType weights : {DType::kBF16, DType::kQ8_0}) {
    ModelConfig config = small_config();
    config.hidden = 256;
    config.ffn = 512;
    config.head_dim = 32;
    const auto model = Model::random(config, weights, {}, 11, {.pool = &threads, .rounding = Rounding::kFast});
    const std::vector<std::int32_t> tokens = random_tokens(300, 50, 3);
    const Read whole = read_prompt(*model, tokens, 300, 1);
    EXPECT_GT(whole.units.size(), 100u);
    for (const auto& [chunk, n_threads] : {std::pair{300, 3}, {64, 1}, {5, 2}, {1, 1}}) {
      const Read pieces = read_prompt(*model, tokens, chunk, n_threads);
      EXPECT_TRUE(pieces.keys == whole.keys) << chunk << " rows a chunk, " << n_threads << " threads";
      EXPECT_EQ(pieces.units, whole.units) << chunk << " rows a chunk, " << n_threads << " threads";
    }
  }
}

}  // namespace
}  // namespace mneme
