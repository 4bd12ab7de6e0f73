// Whole models on the device, for tests: their steps, the methods that they run under, and tokens for these.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "src/model/cuda/forward.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "tests/cuda/cuda_testing.h"
#include "tests/model/cuda/cuda_models.h"
#include "tests/model/method_shape.h"
#include "tests/model/sequence_runner.h"
#include "tests/test_threads.h"

namespace mneme {

class CudaModelTest : public CudaTest {
 protected:
  ThreadPool threads{std::min(available_cpus(), 8)};
  CpuContext cpu{.pool = &threads};
};

// One sequence's next tokens, here or there: the logits of all of them.
inline std::vector<float> step_of(auto&& forward, SequenceCache& cache, std::span<const std::int32_t> tokens,
                                  SequencePhase phase, MethodState* method, std::int32_t left = 0) {
  const SequenceRows rows{.cache = &cache,
                          .n_rows = static_cast<std::int32_t>(tokens.size()),
                          .want_logits = true,
                          .method = method,
                          .phase = phase,
                          .prefill_left = left};
  cache.extend(rows.n_rows);
  std::vector<float> out;
  SequenceRunner::append(forward.run({.tokens = tokens, .sequences = std::span(&rows, 1)}), out);
  return out;
}

struct OnDevice {
  CudaForward forward;
  std::unique_ptr<PagePool> pool;

  explicit OnDevice(const Model& m, std::int32_t max_rows = 256, std::int32_t max_sequences = 12,
                    DType kv_dtype = DType::kBF16, std::int64_t n_pages = 400)
      : OnDevice(m, {.max_rows = max_rows, .max_sequences = max_sequences, .max_context = m.max_context()}, kv_dtype,
                 n_pages) {}
  OnDevice(const Model& m, KvStore store)
      : OnDevice(m, {.max_rows = 512, .max_sequences = 12, .max_context = m.max_context(), .store = store}) {}
  explicit OnDevice(const Model& m, const CudaForwardOptions& options, DType kv_dtype = DType::kBF16,
                    std::int64_t n_pages = 400)
      : OnDevice(m, Stream::make(), options, first_layers(m.config().n_layers), kv_dtype, n_pages) {}
  OnDevice(const Model& m, const WeightPlacement& placement)
      : OnDevice(m, Stream::make(), {.max_rows = 256, .max_sequences = 12, .max_context = m.max_context()}, placement,
                 DType::kBF16, 400) {}

  std::vector<float> step(SequenceCache& cache, std::span<const std::int32_t> tokens, MethodState* method = nullptr) {
    return step_of(forward, cache, tokens, tokens.size() == 1 ? SequencePhase::kDecode : SequencePhase::kPrefill,
                   method);
  }

 private:
  OnDevice(const Model& m, const Stream& stream, const CudaForwardOptions& options, const WeightPlacement& placement,
           DType kv_dtype, std::int64_t n_pages)
      : forward(m, CudaWeights::load(m, stream, placement), Stream::make(), options),
        pool(forward.make_pool(m.kv_shape(kv_dtype), n_pages * m.kv_shape(kv_dtype).blocks_per_page())) {}
};

inline std::shared_ptr<const Plan> plan_for(const Model& model, const char* name, std::int32_t budget,
                                            const char* overrides) {
  RecipeOptions options{.budget = budget, .sink = 32, .recent = 64, .dense_layers = std::vector<std::int32_t>{0}};
  Recipe recipe = make_recipe(name, options);
  apply_overrides(overrides, recipe);
  return compile(recipe, method_shape(model.config()));
}

// Tokens that stay the same for a while, so that the queries of a layer turn now and then.
inline std::vector<std::int32_t> kept_runs(std::size_t n, std::int64_t vocab, std::uint64_t seed) {
  const std::vector<std::int32_t> drawn = random_tokens(n, vocab, seed);
  std::vector<std::int32_t> out;
  for (std::size_t i = 0; out.size() < n; ++i)
    out.insert(out.end(), 6 + static_cast<std::size_t>(drawn[i]) % 17, drawn[i]);
  out.resize(n);
  return out;
}

}  // namespace mneme
