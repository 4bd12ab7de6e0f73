// Logits to the next token, reproducibly per request.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mneme/options.h"
#include "src/base/rng.h"
#include "src/sampler/survivors.h"
#include "src/sampler/token_constraint.h"

namespace mneme {

// Natural logarithm of a token's probability under these logits, what is NaN or infinite taken as Sampler::next takes
// it.
float log_probability(std::span<const float> logits, std::int32_t token);

struct TokenLogprob {
  std::int32_t token = -1;
  float logprob = 0.0f;
};
// The n likeliest tokens, the likeliest first; fewer where there are fewer that are possible.
// Ties  the smaller id first.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int n);

// Everything that a request's next draw depends on, apart from its logits. A copy goes on exactly as the original
// (forks, sessions).
class Sampler {
 public:
  // Errors  kOption: a value out of its range (named, with the range).
  explicit Sampler(const SamplingOptions& options);

  // Counts tokens of the prompt, which the repetition penalty looks at.
  void see_prompt(std::span<const std::int32_t> tokens);

  // From now on only tokens that this allows; null: all. It moves on with every token that is chosen.
  void constrain(std::shared_ptr<const TokenConstraint> constraint) { constraint_ = std::move(constraint); }

  struct Choice {
    std::int32_t token = -1;
    float logprob = 0.0f;  // of that token under the unmodified logits (log-softmax)
  };
  // Constraint, penalties, bias, temperature, top-k, top-p, min-p, draw (src/sampler/survivors.h has the definitions);
  // temperature 0: the largest. Ties: the larger probability first, then the smaller id. NaN logits count as -inf; all
  // NaN or -inf: token 0 (under a constraint, the first that it allows) with logprob -inf; where some are +inf, they
  // alone are possible.
  Choice next(std::span<const float> logits);

  // next() looks at nothing but the logits, the options' temperature, top_k, top_p and min_p, and one number: whoever
  // has the logits may choose in its place.
  bool is_plain() const { return !penalises() && constraint_ == nullptr && options_.logit_bias.empty(); }
  // That number, in [0, 1), of the next draw; and that it has been made.
  double peek() const { return Rng(rng_).uniform(); }
  void drew() {
    if (options_.temperature > 0) static_cast<void>(rng_.uniform());
  }

  const SamplingOptions& options() const { return options_; }
  // Draws made so far, and the seed in use: what a saved session needs beside the tokens.
  std::uint64_t seed() const { return rng_.seed(); }
  std::uint64_t draws() const { return rng_.counter(); }
  void restore(std::uint64_t seed, std::uint64_t draws) { rng_ = Rng(seed, draws); }

 private:
  bool penalises() const;
  void penalise(std::span<float> logits) const;
  void add_bias(std::span<float> logits) const;
  // What the constraint forbids becomes -inf. Returns the first token that it allows.
  std::int32_t forbid(std::span<float> logits);

  SamplingOptions options_;
  Rng rng_;
  std::unordered_map<std::int32_t, std::int32_t>
      answer_counts_;  // kept only where a penalty looks at them, as the next
  std::unordered_set<std::int32_t> prompt_tokens_;
  std::vector<float> plain_, penalised_;  // room for the logits where they must be changed
  Survivors survivors_;
  std::shared_ptr<const TokenConstraint> constraint_;
  std::vector<std::uint64_t> mask_;
};

}  // namespace mneme
