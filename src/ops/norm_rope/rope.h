// Rotary position embedding (RoPE), with the scalings that checkpoints use.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/ops/simd/cpu_context.h"
#include "src/tensor/view.h"

namespace mneme {

enum class RopeScaling : std::uint8_t { kNone, kLinear, kLlama3, kYarn, kDynamic, kLongRope };

// Which two of a head's D values form a pair: halves (i, i + D/2), as Hugging Face stores rows; or neighbours (2i, 2i +
// 1), as GGUF's `llama` architecture does. Dot products of keys and queries are the same.
enum class RopePairs : std::uint8_t { kHalves, kNeighbours };

struct RopeConfig {
  double theta = 10000.0;
  RopePairs pairs = RopePairs::kHalves;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;                // all scalings but kNone
  std::int64_t original_context = 0;  // llama3, yarn, dynamic, longrope: the context length before scaling
  double low_freq_factor = 1.0;       // llama3
  double high_freq_factor = 4.0;      // llama3
  double beta_fast = 32.0;            // yarn
  double beta_slow = 1.0;             // yarn
  double attention_factor = 0.0;      // yarn, longrope: scale of cos and sin; 0: derived from factor
  bool truncate = true;               // yarn: the ramp begins and ends at a pair; gpt-oss: between two
  std::vector<float>
      freq_factors;  // GGUF's rope_freqs.weight [head_dim / 2]: inverse frequencies are divided by these; or empty
  std::int64_t rotary_dim = 0;  // glm4, phi3: values of a head that rotate, the first ones; 0: all
  // longrope: inverse frequencies are divided by these [rotary_dim / 2], the long ones where the context that the model
  // is loaded with exceeds the original one.
  std::vector<float> short_factors, long_factors;
};

// A model's RoPE: inverse frequencies and the scale of cos and sin.
//
// Source  linear: Chen et al. 2023; llama3: Llama 3.1's published code; yarn: Peng et al. 2023; dynamic NTK: the same,
//         with the base fixed at load from `context` (stored keys cannot be rotated again when a sequence grows);
//         longrope: Ding et al. 2024, with its factors fixed at load likewise.
struct RopeTable {
  std::vector<double> inv_freq;  // [head_dim / 2]; 0: the pair is neither rotated nor scaled
  double scale = 1.0;            // of cos and sin (the attention factor of yarn and longrope)
  RopePairs pairs = RopePairs::kHalves;

  double scale_of(std::size_t pair) const { return inv_freq[pair] == 0.0 ? 1.0 : scale; }
  // context: the longest sequence that will be run; used by kDynamic and kLongRope only.
  static RopeTable make(const RopeConfig& config, std::int64_t head_dim, std::int64_t context);
};

// cos and sin of every pair of every row of a step, times the table's scale. Computed once a step: all layers share
// positions, and an angle in f64 costs more than the rotation of a head.
class RopeAngles {
 public:
  RopeAngles() = default;
  RopeAngles(std::span<const std::int32_t> positions, const RopeTable& table, const CpuContext& context);
  // The same, reusing memory.
  void set(std::span<const std::int32_t> positions, const RopeTable& table, const CpuContext& context);

  std::int64_t n_rows() const { return n_rows_; }
  std::int64_t n_pairs() const { return n_pairs_; }
  RopePairs pairs() const { return pairs_; }
  // [n_pairs] each
  const float* cos(std::int64_t row) const { return values_.data() + row * 2 * n_pairs_; }
  const float* sin(std::int64_t row) const { return cos(row) + n_pairs_; }

 private:
  std::vector<float> values_;
  std::int64_t n_rows_ = 0, n_pairs_ = 0;
  RopePairs pairs_ = RopePairs::kHalves;
};

// Rotates every head of row i by positions[i], in place.   x [n, heads, D] f32 (rows may be strided); positions [n]
// i32.
// Numerics  angles in f64: position * inv_freq at position 1M has 7 digits before the decimal point.
void rope_ref(const TensorView& x, std::span<const std::int32_t> positions, const RopeTable& table);
// Computes the angles for this call alone; per-layer callers use the form below.
void rope_cpu(const TensorView& x, std::span<const std::int32_t> positions, const RopeTable& table,
              const CpuContext& context);
// Requires  x [angles.n_rows(), heads, 2 * angles.n_pairs()].
void rope_cpu(const TensorView& x, const RopeAngles& angles, const CpuContext& context);

}  // namespace mneme
