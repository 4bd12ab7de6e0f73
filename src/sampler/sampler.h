// Samples the next token from logits, reproducibly per request.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mneme/options.h"
#include "mneme/scores.h"
#include "src/base/rng.h"
#include "src/sampler/truncated_distribution.h"
#include "src/text/constraint/token_constraint.h"

namespace mneme {

// Natural logarithm of a token's probability under these logits; NaN and infinities as in Sampler::next.
float log_probability(std::span<const float> logits, std::int32_t token);

// The n likeliest tokens in descending order; fewer where fewer are possible.
// Ties  the smaller id first.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int n);

// All state that a request's next token depends on, except the logits. A copy continues exactly as the original (forks,
// sessions).
class Sampler {
 public:
  // Errors  kOption: a value out of range (the message has the name and the range).
  explicit Sampler(const SamplingOptions& options);

  // Counts prompt tokens, for the repetition penalty.
  void see_prompt(std::span<const std::int32_t> tokens);

  // From now on only tokens that this constraint allows; null: all. It advances with every sampled token.
  void constrain(std::shared_ptr<const TokenConstraint> constraint) { constraint_ = std::move(constraint); }

  struct SampledToken {
    std::int32_t token = -1;
    float logprob = 0.0f;  // of that token under the unmodified logits (log-softmax)
  };
  // Constraint, penalties, bias, temperature, top-k, top-p, min-p, draw (src/sampler/truncated_distribution.h has the
  // definitions); temperature 0: argmax.
  // Ties  the larger probability first, then the smaller id.
  // NaN   logits count as -inf; if all are NaN or -inf: token 0 (under a constraint, the first allowed one) with
  //       logprob -inf; if some are +inf, only they are possible.
  SampledToken next(std::span<const float> logits);

  // Whether next() depends only on the logits, the options' temperature, top_k, top_p and min_p, and one random number,
  // so that the device can sample instead.
  bool is_plain() const { return !penalises() && !constrained() && options_.logit_bias.empty(); }
  // That random number, in [0, 1), of the next draw; drew() advances past it, with the token that was drawn.
  double peek() const { return Rng(rng_).uniform(); }
  void drew(std::int32_t token) {
    if (options_.temperature > 0) static_cast<void>(rng_.uniform());
    if (constraint_ != nullptr) constraint_ = constraint_->after(token);
  }

  const SamplingOptions& options() const { return options_; }
  // Draws made so far, and the seed: what a saved session needs beside the tokens.
  std::uint64_t seed() const { return rng_.seed(); }
  std::uint64_t draws() const { return rng_.counter(); }
  void restore(std::uint64_t seed, std::uint64_t draws) { rng_ = Rng(seed, draws); }

 private:
  bool penalises() const;
  bool constrained() const { return constraint_ != nullptr && !constraint_->everything(); }
  void penalise(std::span<float> logits) const;
  void add_bias(std::span<float> logits) const;
  // Sets forbidden logits to -inf. Returns the first allowed token.
  std::int32_t forbid(std::span<float> logits);

  SamplingOptions options_;
  Rng rng_;
  std::unordered_map<std::int32_t, std::int32_t>
      answer_counts_;  // maintained only if a penalty needs them, like prompt_tokens_
  std::unordered_set<std::int32_t> prompt_tokens_;
  std::vector<float> plain_, penalised_;  // copies of the logits where they must be modified
  TruncatedDistribution truncated_;
  std::shared_ptr<const TokenConstraint> constraint_;
  std::vector<std::uint64_t> mask_;
};

}  // namespace mneme
