// An engine of a small model whose layers keep a state in place of keys and values, and what its answers are alone.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "src/engine/engine.h"
#include "tests/engine/kept_request.h"
#include "tests/model/test_models.h"
#include "tests/test_threads.h"

namespace mneme {

inline constexpr std::int64_t kHybridVocab = 50;

inline std::unique_ptr<Engine> hybrid_engine(std::int64_t memory = 16 << 20, int max_batched_tokens = 100,
                                             bool deterministic = true, KvAdmission admission = KvAdmission::kReserve) {
  EngineOptions options;
  options.max_batched_tokens = max_batched_tokens;
  options.deterministic = deterministic;
  options.kv_memory_bytes = memory;
  options.kv_admission = admission;
  auto threads = std::make_unique<ThreadPool>(kTestThreads);
  auto model =
      Model::random(small_config(Architecture::kQwen35), DType::kBF16, {}, 11, {threads.get(), Rounding::kFixed});
  return std::make_unique<Engine>(std::move(model), options, std::move(threads));
}

inline std::vector<std::int32_t> random_prompt_of(std::size_t n, std::uint64_t seed) {
  return random_tokens(n, kHybridVocab, seed);
}

inline void compute_all(Engine& engine) {
  while (!engine.idle()) {
    engine.step();
    engine.check_invariants();
  }
}

inline std::vector<std::int32_t> sequence_of(const Engine& engine, RequestId id) {
  const auto t = engine.tokens(id);
  return {t.begin(), t.end()};
}

// The prompt and its answer.
inline std::vector<std::int32_t> hybrid_alone(const std::vector<std::int32_t>& prompt, int max_tokens = 20) {
  const auto engine = hybrid_engine();
  const RequestId id = engine->start({}, kept_request(prompt, nullptr, max_tokens));
  compute_all(*engine);
  return sequence_of(*engine, id);
}

}  // namespace mneme
