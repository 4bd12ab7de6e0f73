// Gated DeltaNet: a causal convolution over the channels of q, k and v, then for every value head a state S [d_k, d_v]
// that each row decays, corrects and reads. `_ref` is the specification.
//
//   c_t  = silu(sum_i conv[:, i] x_{t - taps + 1 + i})          by channel; x before the rows is in `inputs`
//   q, k = l2(c_t of the key head) / sqrt(d_k), l2(c_t of it)   l2(a) = a / sqrt(sum a^2 + 1e-6); v = c_t of the value head
//   S    = e^g S;   S += k (b (v - S^T k))^T;   out = S^T q     g = a softplus(alpha + dt), b = sigmoid(beta)
//
//   x        [n, channels] f32: all key heads' q, all their k, all value heads' v; overwritten
//   beta, alpha [n, n_v_heads] f32;   out [n, n_v_heads d_v] f32
//   inputs   [taps - 1, channels] f32, oldest first;   state [n_v_heads, d_k, d_v] f32: read, and as they are after the rows
//
// Order   row by row in f32: where a prompt is cut, and what is computed beside it, changes no bits.
// NaN     reaches its own and later rows of its sequence's value head.
// Source  Gated Delta Networks, arXiv 2412.06464
#pragma once

#include <cstdint>
#include <span>

#include "src/ops/simd/cpu_context.h"

namespace mneme {

inline constexpr std::int64_t kMaxDeltaHead = 256;  // d_k and d_v

struct DeltaShape {
  std::int64_t n_k_heads = 0, n_v_heads = 0;  // n_k_heads divides n_v_heads
  std::int64_t d_k = 0, d_v = 0;              // 1 to kMaxDeltaHead
  std::int64_t taps = 0;                      // 2 or more
  bool tiled = false;

  std::int64_t key_head(std::int64_t v_head) const {
    return tiled ? v_head % n_k_heads : v_head / (n_v_heads / n_k_heads);
  }
  std::int64_t key_width() const { return n_k_heads * d_k; }
  std::int64_t value_width() const { return n_v_heads * d_v; }
  std::int64_t channels() const { return 2 * key_width() + value_width(); }
  std::int64_t input_floats() const { return (taps - 1) * channels(); }
  std::int64_t state_floats() const { return n_v_heads * d_k * d_v; }
};

struct DeltaParameters {
  const float* conv = nullptr;              // [channels, taps], the newest input's tap last
  const float *a = nullptr, *dt = nullptr;  // [n_v_heads]; a < 0
};

// Rows of one sequence, dense.
struct GatedDeltaRows {
  std::int64_t n = 0;
  std::int64_t position = 0;  // of the first one
  float* x = nullptr;
  const float *beta = nullptr, *alpha = nullptr;
  float* out = nullptr;
  float *inputs = nullptr, *state = nullptr;
};

void gated_delta_ref(std::span<const GatedDeltaRows> sequences, const DeltaParameters& parameters,
                     const DeltaShape& shape);
void gated_delta_cpu(std::span<const GatedDeltaRows> sequences, const DeltaParameters& parameters,
                     const DeltaShape& shape, const CpuContext& context);

}  // namespace mneme
