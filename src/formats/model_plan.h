// A model as a plan of layers: data that the interpreters walk, on the CPU (src/model/forward.cc) and on the device. They
// know mixers and sizes, never an architecture: an architecture is what fills the plan.
//
//   x += mixer(RMSNorm(x)) for every block of every layer, in order
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "src/formats/model_config.h"

namespace mneme {

// After RoPE a query at position p is multiplied by 1 + beta ln(1 + floor(p / context)).
struct QueryTemperature {
  double beta = 0.0;  // 0: none
  std::int64_t context = 0;
  bool operator==(const QueryTemperature&) const = default;
};

// Grouped-query attention with RoPE. Biases and sinks are there where the layer's weights have them.
struct AttentionPlan {
  std::int64_t n_heads = 0;     // query heads
  std::int64_t n_kv_heads = 0;  // divides n_heads
  std::int64_t head_dim = 0;
  std::int64_t window = 0;  // 0: none
  bool qk_norm = false;     // RMSNorm of each head's q and k before RoPE
  QueryTemperature temperature;

  std::int64_t q_width() const { return n_heads * head_dim; }
  std::int64_t kv_width() const { return n_kv_heads * head_dim; }
  bool operator==(const AttentionPlan&) const = default;
};

// (silu(h W_gate^T) * h W_up^T) W_down^T
struct MlpPlan {
  std::int64_t width = 0;
  bool operator==(const MlpPlan&) const = default;
};

// A mixture of experts.
struct ExpertsPlan {
  std::int64_t n = 0, n_used = 0, width = 0;  // experts, those of a row, width of one
  bool normalise = true;                      // the shares of a row's experts sum to 1
  double limit = 0.0;                         // of clamped SwiGLU (ExpertConfig); 0: SwiGLU
  bool operator==(const ExpertsPlan&) const = default;
};

using Mixer = std::variant<AttentionPlan, MlpPlan, ExpertsPlan>;

struct LayerPlan {
  std::vector<Mixer> blocks;
  bool operator==(const LayerPlan&) const = default;
};

struct ModelPlan {
  std::vector<LayerPlan> layers;
  bool operator==(const ModelPlan&) const = default;
};

// The plan of a configuration.   Requires  what check_config() accepts, or one rank's part of it
ModelPlan model_plan_of(const ModelConfig& config);

}  // namespace mneme
