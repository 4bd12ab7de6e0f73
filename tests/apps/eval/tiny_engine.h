// An engine over a tiny random model, for tests of what is measured and not of what is answered.
#pragma once

#include <memory>
#include <vector>

#include "src/engine/engine.h"
#include "tests/model/test_models.h"
#include "tests/test_threads.h"

namespace mneme::eval {

struct TinyEngine {
  TinyEngine() {
    ModelConfig c = small_config();
    c.n_heads = 4;
    c.max_context = 1024;
    auto threads = std::make_unique<ThreadPool>(kTestThreads);
    const CpuContext context{.pool = threads.get()};
    engine = std::make_unique<Engine>(Model::random(c, DType::kF32, {.context = 1024}, 3, context),
                                      EngineOptions{.context = 1024}, std::move(threads));
  }

  static std::vector<std::int32_t> random_tokens(std::size_t n, std::uint64_t seed) {
    return mneme::random_tokens(n, 50, seed);
  }

  // A kept sequence: a prompt, and n tokens that follow it, random ones, through the decode path.
  RequestId answer(std::vector<std::int32_t> prompt, std::int32_t n, std::shared_ptr<const Plan> plan) {
    const auto tail = random_tokens(n, 99);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    RequestInput input;
    input.prompt = std::move(prompt);
    input.max_tokens = 0;
    input.decode_prompt_tail = n;
    input.keep_sequence = true;
    input.method = std::move(plan);
    const RequestId id = engine->start({}, std::move(input));
    while (!engine->idle()) engine->step();
    return id;
  }

  std::unique_ptr<Engine> engine;
};

}  // namespace mneme::eval
