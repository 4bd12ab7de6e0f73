#include "src/sampler/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/sampler/fast_exp.h"

namespace mneme {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void expect_range(bool inside, const char* name, const char* range, double found) {
  if (!inside) fail(ErrorKind::kOption, "{}: expected {}, found {}", name, range, found);
}

// NaN is out of every range.
const SamplingOptions& checked(const SamplingOptions& o) {
  const auto d = [](float v) { return double{v}; };
  expect_range(o.temperature >= 0 && o.temperature < kInfinity, "temperature", "a number from 0", d(o.temperature));
  expect_range(o.top_k >= 0, "top_k", "0 (all) or a number of tokens", o.top_k);
  expect_range(o.top_p >= 0 && o.top_p <= 1, "top_p", "a number from 0 to 1", d(o.top_p));
  expect_range(o.min_p >= 0 && o.min_p <= 1, "min_p", "a number from 0 to 1", d(o.min_p));
  expect_range(o.repetition_penalty > 0 && o.repetition_penalty < kInfinity, "repetition_penalty",
               "a number larger than 0", d(o.repetition_penalty));
  expect_range(std::abs(o.presence_penalty) <= 2, "presence_penalty", "a number from -2 to 2", d(o.presence_penalty));
  expect_range(std::abs(o.frequency_penalty) <= 2, "frequency_penalty", "a number from -2 to 2",
               d(o.frequency_penalty));
  for (const TokenBias& b : o.logit_bias) {
    expect_range(b.token >= 0, "logit_bias", "ids of tokens, from 0", b.token);
    expect_range(std::abs(b.bias) < kInfinity, "logit_bias", "finite numbers", d(b.bias));
  }
  return o;
}

std::uint64_t entropy() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

// In lanes, so that the compiler vectorises it. Ignores NaN; -inf if there is nothing else.
float largest(std::span<const float> x) {
  constexpr std::size_t kLanes = 16;
  float best[kLanes];
  std::fill_n(best, kLanes, -kInfinity);
  std::size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) best[j] = x[i + j] > best[j] ? x[i + j] : best[j];
  }
  for (; i < x.size(); ++i) best[0] = x[i] > best[0] ? x[i] : best[0];
  return *std::max_element(best, best + kLanes);
}

// The sum of exp(x - max): each lane adds at most 256 terms in f32, the rest is in f64.
double sum_exp(std::span<const float> x, float max) {
  constexpr std::size_t kLanes = 16, kBlock = 256 * kLanes;
  double sum = 0;
  std::size_t i = 0;
  while (i + kLanes <= x.size()) {
    float lanes[kLanes] = {};
    const std::size_t end = std::min(x.size() / kLanes * kLanes, i + kBlock);
    for (; i < end; i += kLanes) {
      for (std::size_t j = 0; j < kLanes; ++j) lanes[j] += exp_below_zero(x[i + j] - max);
    }
    for (float v : lanes) sum += v;
  }
  for (; i < x.size(); ++i) sum += exp_below_zero(x[i] - max);
  return sum;
}

struct FiniteLogits {
  std::span<const float> x;
  float max = 0;  // finite, or -inf where no logit is larger
};

// With +inf, differences would be NaN: copies to `store`, where those are equal and all others impossible.
FiniteLogits with_finite_max(std::span<const float> x, std::vector<float>& store) {
  const float max = largest(x);
  if (max < kInfinity) return {x, max};
  store.resize(x.size());
  std::transform(x.begin(), x.end(), store.begin(), [](float v) { return v == kInfinity ? 0.0f : -kInfinity; });
  return {store, 0.0f};
}

std::int32_t first_equal(std::span<const float> x, float value) {
  return count32(std::find(x.begin(), x.end(), value) - x.begin());
}

// -inf where no token is possible.
float log_probability_of(const FiniteLogits& row, std::int32_t token) {
  if (!(row.max > -kInfinity)) return -kInfinity;
  const double depth = row.x[token] - row.max;
  return static_cast<float>(depth - std::log(sum_exp(row.x, row.max)));
}

}  // namespace

Sampler::Sampler(const SamplingOptions& options)
    : options_(checked(options)), rng_(options.seed ? *options.seed : entropy()) {}

void Sampler::see_prompt(std::span<const std::int32_t> tokens) {
  if (options_.repetition_penalty != 1) prompt_tokens_.insert(tokens.begin(), tokens.end());
}

float log_probability(std::span<const float> logits, std::int32_t token) {
  thread_local std::vector<float> finite;
  return log_probability_of(with_finite_max(logits, finite), token);
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int n) {
  std::vector<TokenLogprob> top;
  thread_local std::vector<float> finite;
  const FiniteLogits row = with_finite_max(logits, finite);
  if (n <= 0 || !(row.max > -kInfinity)) return top;
  // A heap of the n best so far, the worst on top: NaN never enters, because it compares false.
  const auto before = [&](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob > b.logprob || (a.logprob == b.logprob && a.token < b.token);
  };
  for (std::size_t i = 0; i < row.x.size(); ++i) {
    const TokenLogprob here{count32(i), row.x[i]};
    if (!(here.logprob > -kInfinity)) continue;
    if (std::ssize(top) == n) {
      if (!before(here, top.front())) continue;
      std::pop_heap(top.begin(), top.end(), before);
      top.pop_back();
    }
    top.push_back(here);
    std::push_heap(top.begin(), top.end(), before);
  }
  std::sort_heap(top.begin(), top.end(), before);
  const double log_sum = std::log(sum_exp(row.x, row.max));
  for (TokenLogprob& t : top) t.logprob = static_cast<float>((t.logprob - row.max) - log_sum);
  return top;
}

Sampler::SampledToken Sampler::next(std::span<const float> logits) {
  MNEME_CHECK(!logits.empty(), "no logits");
  const FiniteLogits plain = with_finite_max(logits, plain_);
  FiniteLogits row = plain;
  SampledToken sampled{0, -kInfinity};
  const bool forbids = constrained();
  if (forbids || penalises() || !options_.logit_bias.empty()) {
    if (forbids) {
      // Before the check for +inf: a forbidden +inf must not exclude the others.
      penalised_.assign(logits.begin(), logits.end());
      sampled.token = forbid(penalised_);
      with_finite_max(penalised_, penalised_);
    } else {
      penalised_.assign(plain.x.begin(), plain.x.end());
    }
    if (penalises()) penalise(penalised_);
    add_bias(penalised_);
    row = with_finite_max(penalised_, penalised_);
  }

  const bool draws = options_.temperature > 0;
  const double u = draws ? rng_.uniform() : 0;  // one draw per token, independent of the logits
  if (row.max > -kInfinity) {
    if (draws) truncated_.select(row.x, row.max, options_);
    sampled.token = draws ? truncated_.at(u) : first_equal(row.x, row.max);
  }
  sampled.logprob = log_probability_of(plain, sampled.token);
  if (penalises()) ++answer_counts_[sampled.token];
  if (constraint_ != nullptr) constraint_ = constraint_->after(sampled.token);
  return sampled;
}

std::int32_t Sampler::forbid(std::span<float> logits) {
  mask_.resize((logits.size() + 63) / 64);
  constraint_->allowed(mask_);
  std::int32_t first = -1;
  for (std::size_t w = 0; w < mask_.size(); ++w) {
    const std::span<float> block = logits.subspan(w * 64, std::min<std::size_t>(64, logits.size() - w * 64));
    if (mask_[w] == 0) {
      std::fill(block.begin(), block.end(), -kInfinity);
      continue;
    }
    if (first < 0) first = count32(w * 64) + std::countr_zero(mask_[w]);
    for (std::size_t i = 0; i < block.size(); ++i)
      if ((mask_[w] >> i & 1) == 0) block[i] = -kInfinity;
  }
  MNEME_CHECK(first >= 0, "a constraint that allows nothing");
  return first;
}

bool Sampler::penalises() const {
  return options_.repetition_penalty != 1 || options_.presence_penalty != 0 || options_.frequency_penalty != 0;
}

void Sampler::penalise(std::span<float> logits) const {
  const auto at = [&](std::int32_t token) -> float& {
    MNEME_CHECK(token >= 0 && token < size32(logits), "token {} of {}", token, logits.size());
    return logits[token];
  };
  const auto repeat = [&](std::int32_t token) {
    float& v = at(token);
    v = v > 0 ? v / options_.repetition_penalty : v * options_.repetition_penalty;
  };
  for (std::int32_t token : prompt_tokens_) repeat(token);
  for (const auto& [token, count] : answer_counts_) {
    if (!prompt_tokens_.contains(token)) repeat(token);
    at(token) -= options_.presence_penalty + options_.frequency_penalty * static_cast<float>(count);
  }
}

void Sampler::add_bias(std::span<float> logits) const {
  for (const TokenBias& b : options_.logit_bias) {
    MNEME_CHECK(b.token < size32(logits), "bias on token {} of {}", b.token, logits.size());
    logits[b.token] += b.bias;
  }
}

}  // namespace mneme
