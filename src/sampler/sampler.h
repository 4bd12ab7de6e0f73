// Logits to the next token, reproducibly per request.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "mneme/options.h"
#include "src/base/rng.h"

namespace mneme {

// Everything that a request's next draw depends on, apart from its logits. A copy goes on exactly as the original (forks, sessions).
class Sampler {
 public:
  // Errors  kOption: a value out of its range (named, with the range).
  explicit Sampler(const SamplingOptions& options);

  // Counts tokens of the prompt, which the repetition penalty looks at.
  void see_prompt(std::span<const std::int32_t> tokens);

  struct Choice {
    std::int32_t token = -1;
    float logprob = 0.0f;  // of that token under the unmodified logits (log-softmax)
  };
  // Ties: the larger probability first, then the smaller id. NaN logits count as -inf; all NaN or -inf: token 0.
  Choice next(std::span<const float> logits);

  const SamplingOptions& options() const { return options_; }
  // Draws made so far, and the seed in use: what a saved session needs beside the tokens.
  std::uint64_t seed() const { return rng_.seed(); }
  std::uint64_t draws() const { return rng_.counter(); }
  void restore(std::uint64_t seed, std::uint64_t draws) { rng_ = Rng(seed, draws); }

 private:
  void penalise(std::vector<float>& logits) const;

  SamplingOptions options_;
  Rng rng_;
  std::unordered_map<std::int32_t, std::int32_t> answer_counts_;
  std::unordered_map<std::int32_t, std::int32_t> prompt_counts_;
  std::vector<float> work_;
  std::vector<std::int32_t> order_;
};

}  // namespace mneme
