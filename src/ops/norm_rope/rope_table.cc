#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/base/check.h"
#include "src/base/ratio.h"
#include "src/ops/norm_rope/rope.h"

namespace mneme {
namespace {

// Divides by the factors of the context that will be run.
void scale_longrope(const RopeConfig& c, std::int64_t context, std::vector<double>& inv_freq) {
  const std::vector<float>& factors = context > c.original_context ? c.long_factors : c.short_factors;
  MNEME_CHECK(factors.size() == inv_freq.size(), "{} factors of longrope for {} pairs", factors.size(),
              inv_freq.size());
  for (std::size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] /= factors[i];
}

std::vector<double> plain_frequencies(double theta, std::int64_t head_dim) {
  std::vector<double> f(head_dim / 2);
  for (std::size_t i = 0; i < f.size(); ++i) f[i] = std::pow(theta, -2.0 * real(i) / real(head_dim));
  return f;
}

// Enlarges the base so that the slowest pair rotates `factor` times slower at `context`; up to the original context
// nothing changes.
double dynamic_theta(const RopeConfig& c, std::int64_t head_dim, std::int64_t context) {
  const auto original = real(c.original_context);
  const double times = std::max(real(context), original) / original;
  const auto d = real(head_dim);
  return c.theta * std::pow(c.factor * times - (c.factor - 1.0), d / (d - 2.0));
}

// Wavelengths up to original/high are kept, beyond original/low scaled by factor, in between blended linearly.
void scale_llama3(const RopeConfig& c, std::vector<double>& inv_freq) {
  const auto original = real(c.original_context);
  for (double& f : inv_freq) {
    const double wavelength = 2.0 * std::numbers::pi / f;
    if (wavelength < original / c.high_freq_factor) continue;
    if (wavelength > original / c.low_freq_factor) {
      f /= c.factor;
    } else {
      const double blend = (original / wavelength - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
      f = (1.0 - blend) * f / c.factor + blend * f;
    }
  }
}

// Pairs that rotate more than beta_fast times within the original context are kept, fewer than beta_slow times are
// scaled by factor, in between a ramp over the pair's index, whose ends are integers as in the published code, unless
// the model says otherwise.
void scale_yarn(const RopeConfig& c, std::int64_t head_dim, std::vector<double>& inv_freq) {
  const auto d = real(head_dim);
  const auto index_of = [&](double rotations) {
    return d * std::log(real(c.original_context) / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(c.theta));
  };
  const double first = index_of(c.beta_fast), last = index_of(c.beta_slow);
  const double low = std::max(c.truncate ? std::floor(first) : first, 0.0);
  double high = std::min(c.truncate ? std::ceil(last) : last, d - 1.0);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < inv_freq.size(); ++i) {
    const double interpolated = std::clamp((real(i) - low) / (high - low), 0.0, 1.0);
    inv_freq[i] = inv_freq[i] / c.factor * interpolated + inv_freq[i] * (1.0 - interpolated);
  }
}

}  // namespace

RopeTable RopeTable::make(const RopeConfig& config, std::int64_t head_dim, std::int64_t context) {
  MNEME_CHECK(head_dim >= 2 && head_dim % 2 == 0, "RoPE rotates pairs: head_dim {}", head_dim);
  const bool needs_original = config.scaling == RopeScaling::kLlama3 || config.scaling == RopeScaling::kYarn ||
                              config.scaling == RopeScaling::kDynamic || config.scaling == RopeScaling::kLongRope;
  MNEME_CHECK(!needs_original || config.original_context > 0, "this RoPE scaling needs the original context, not {}",
              config.original_context);
  MNEME_CHECK(config.scaling != RopeScaling::kDynamic || head_dim > 2, "dynamic RoPE scaling with head_dim {}",
              head_dim);
  const std::int64_t rotary = config.rotary_dim == 0 ? head_dim : config.rotary_dim;
  MNEME_CHECK(rotary >= 2 && rotary % 2 == 0 && rotary <= head_dim, "RoPE over {} of {} values", rotary, head_dim);

  RopeTable t;
  t.pairs = config.pairs;
  const bool dynamic = config.scaling == RopeScaling::kDynamic;
  t.inv_freq = plain_frequencies(dynamic ? dynamic_theta(config, rotary, context) : config.theta, rotary);
  switch (config.scaling) {
    case RopeScaling::kNone:
    case RopeScaling::kDynamic:
      break;
    case RopeScaling::kLinear:
      for (double& f : t.inv_freq) f /= config.factor;
      break;
    case RopeScaling::kLlama3:
      scale_llama3(config, t.inv_freq);
      break;
    case RopeScaling::kYarn:
      scale_yarn(config, rotary, t.inv_freq);
      t.scale = config.attention_factor != 0.0 ? config.attention_factor : 0.1 * std::log(config.factor) + 1.0;
      break;
    case RopeScaling::kLongRope:
      scale_longrope(config, context, t.inv_freq);
      t.scale = config.attention_factor != 0.0 ? config.attention_factor : 1.0;
      break;
  }
  t.inv_freq.resize(head_dim / 2, 0.0);
  if (!config.freq_factors.empty()) {
    MNEME_CHECK(config.freq_factors.size() == t.inv_freq.size(), "{} frequency factors for {} pairs",
                config.freq_factors.size(), t.inv_freq.size());
    for (std::size_t i = 0; i < t.inv_freq.size(); ++i) t.inv_freq[i] /= config.freq_factors[i];
  }
  return t;
}

}  // namespace mneme
