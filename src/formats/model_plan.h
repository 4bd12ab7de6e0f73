// A model as a plan of layers: data that the interpreters walk, on the CPU (src/model/forward.cc) and on the device. They
// know mixers and sizes, never an architecture: an architecture is what fills the plan.
//
//   x = embedding_scale * embedding;   x += norm(mixer(norm(x))) for every block of every layer, in order
//   logits = head(norm(x) / logit_divisor), and cap tanh(logits / cap) where there is a cap
//
// A model whose blocks add r times their output has its stream divided by r here: embedding_scale / r, and norms of the
// stream have eps / r^2. All else is the same, since RMSNorm takes no account of a factor.
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

// RMSNorm of q and k: of each head, of all heads of a row together, or of each head behind RoPE.
enum class QkNorm : std::uint8_t { kNone, kHeads, kAllHeads, kHeadsBehindRope };

// Grouped-query attention. Biases and sinks are there where the layer's weights have them.
struct AttentionPlan {
  std::int64_t n_heads = 0;     // query heads
  std::int64_t n_kv_heads = 0;  // divides n_heads
  std::int64_t head_dim = 0;
  std::int64_t window = 0;  // 0: none
  QkNorm qk_norm = QkNorm::kNone;
  std::int32_t rope = 0;     // of ModelPlan::ropes; kNoRope: none
  double query_scale = 1.0;  // logits are query_scale q k / sqrt(head_dim)
  QueryTemperature temperature;
  NormOrder norms = NormOrder::kBefore;
  bool output_gate = false;   // the output is multiplied by sigmoid(h W_gate^T)
  std::int32_t kv_layer = 0;  // number of the layer among those with keys and values

  std::int64_t q_width() const { return n_heads * head_dim; }
  std::int64_t kv_width() const { return n_kv_heads * head_dim; }
  bool operator==(const AttentionPlan&) const = default;
};
inline constexpr std::int32_t kNoRope = -1;

// (silu(h W_gate^T) * h W_up^T) W_down^T, or gelu()
struct MlpPlan {
  std::int64_t width = 0;
  Gate gate = Gate::kSilu;
  NormOrder norms = NormOrder::kBefore;
  bool operator==(const MlpPlan&) const = default;
};

// A mixture of experts.
struct ExpertsPlan {
  std::int64_t n = 0, n_used = 0, width = 0;  // experts, those of a row, width of one
  bool normalise = true;                      // the shares of a row's experts sum to 1
  double limit = 0.0;                         // of clamped SwiGLU (ExpertConfig); 0: SwiGLU
  std::int64_t shared = 0;                    // width of the expert that all rows have; 0: none
  bool operator==(const ExpertsPlan&) const = default;
};

// Gated DeltaNet (src/ops/recurrent/gated_delta.h).
struct DeltaPlan {
  std::int64_t n_k_heads = 0, n_v_heads = 0, d_k = 0, d_v = 0;
  std::int64_t taps = 0;
  bool tiled = false;            // DeltaConfig's
  std::int32_t state_layer = 0;  // number of the layer among those with a state
  bool operator==(const DeltaPlan&) const = default;
};

using Mixer = std::variant<AttentionPlan, MlpPlan, ExpertsPlan, DeltaPlan>;

struct LayerPlan {
  std::vector<Mixer> blocks;
  bool operator==(const LayerPlan&) const = default;
};

struct ModelPlan {
  std::vector<LayerPlan> layers;
  double embedding_scale = 1.0;
  double norm_eps = 1e-5;  // of norms of the stream; those of heads and of a block's output have ModelConfig::rms_eps
  double logit_divisor = 1.0;
  double logit_cap = 0.0;  // 0: none
  bool operator==(const ModelPlan&) const = default;
};

// RoPE of the plan's layers: ropes[0] of layers that methods select in; a second one where layers with a window have
// another.
std::vector<RopeConfig> ropes_of(const ModelConfig& config);

// The plan of a configuration.   Requires  what check_config() accepts, or one rank's part of it
ModelPlan model_plan_of(const ModelConfig& config);

}  // namespace mneme
