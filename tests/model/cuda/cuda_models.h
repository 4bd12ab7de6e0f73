// Small models in shapes that the device's kernels take, and how far their logits are from those of the CPU.
#pragma once

#include <cmath>
#include <span>

#include "tests/model/test_models.h"

namespace mneme {

// Plain bf16 arithmetic rounds activations to 2^-9 about seven times a layer; of independent roundings that is 2^-9 *
// sqrt(7 * layers), and what a layer does with them. 0.02 is a bound that all four architectures keep with room; it is
// not derived.
inline constexpr double kTolerance = 0.02;

inline ModelConfig cuda_config(Architecture architecture, std::int64_t heads, std::int64_t kv_heads,
                               std::int64_t head_dim) {
  ModelConfig c = small_config(architecture);
  c.n_layers = 3;
  c.hidden = 192;
  c.ffn = 256;
  c.n_heads = heads;
  c.n_kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.vocab = 300;
  c.max_context = 2048;
  if (c.experts.n > 0) c.experts.ffn = 96;
  if (c.experts.shared > 0) c.experts.shared = 64;
  if (c.delta.n_k_heads > 0)
    c.delta = {.n_k_heads = 2, .n_v_heads = 8, .d_k = 16, .d_v = 12, .taps = 4, .layers = {true, false, true}};
  if (!c.windowed.empty()) c.windowed = {true, false, true};
  if (!c.unrotated.empty()) c.unrotated = {false, true, false};
  if (c.rope.rotary_dim != 0) c.rope.rotary_dim = head_dim / 2;
  // Of normalised queries and keys of 256 channels, 0.5 makes scores that one rounding of weights to bf16 turns: it moves
  // Gemma 3's logits by 0.07, with this scale by 0.01.
  if (family_of(architecture).multipliers) c.attention_scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  return c;
}

inline double relative_error(std::span<const float> a, std::span<const float> b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    difference += (x - y) * (x - y), size += y * y;
  }
  return std::sqrt(difference / size);
}

}  // namespace mneme
