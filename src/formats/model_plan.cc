#include "src/formats/model_plan.h"

#include <cmath>
#include <utility>

#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme {
namespace {

QkNorm qk_norm_of(const ModelConfig& c) {
  if (!c.qk_norm) return QkNorm::kNone;
  return c.qk_norm_all ? QkNorm::kAllHeads : c.qk_norm_behind ? QkNorm::kHeadsBehindRope : QkNorm::kHeads;
}

double window_theta_of(const ModelConfig& c) {
  return c.window_theta == 0.0 ? c.rope.theta : c.window_theta;
}

bool has_plain_windows(const ModelConfig& c) {
  const bool differs = c.rope.scaling != RopeScaling::kNone || window_theta_of(c) != c.rope.theta;
  return c.plain_windows && c.sliding_window > 0 && differs;
}

std::int32_t rope_of(const ModelConfig& c, std::int64_t layer) {
  if (!c.rotates(layer)) return kNoRope;
  return has_plain_windows(c) && c.window_of(layer) > 0 ? 1 : 0;
}

AttentionPlan attention_of(const ModelConfig& c, std::int64_t layer, std::int64_t kv_layer) {
  return {.n_heads = c.n_heads,
          .n_kv_heads = c.n_kv_heads,
          .head_dim = c.head_dim,
          .window = c.window_of(layer),
          .qk_norm = qk_norm_of(c),
          .rope = rope_of(c, layer),
          .query_scale = c.attention_scale == 0.0 ? 1.0 : c.attention_scale * std::sqrt(real(c.head_dim)),
          .temperature = {.beta = c.temperature, .context = c.temperature_context},
          .norms = c.norms,
          .output_gate = c.output_gate,
          .kv_layer = count32(kv_layer)};
}

DeltaPlan delta_of(const DeltaConfig& d, std::int64_t state_layer) {
  return {.n_k_heads = d.n_k_heads,
          .n_v_heads = d.n_v_heads,
          .d_k = d.d_k,
          .d_v = d.d_v,
          .taps = d.taps,
          .tiled = d.tiled,
          .state_layer = count32(state_layer)};
}

Mixer feed_forward_of(const ModelConfig& c) {
  const ExpertConfig& e = c.experts;
  if (e.n == 0) return MlpPlan{.width = c.ffn, .gate = c.gate, .norms = c.norms};
  return ExpertsPlan{
      .n = e.n, .n_used = e.n_used, .width = e.ffn, .normalise = e.normalise, .limit = e.limit, .shared = e.shared};
}

}  // namespace

std::vector<RopeConfig> ropes_of(const ModelConfig& c) {
  std::vector<RopeConfig> all = {c.rope};
  if (has_plain_windows(c))
    all.push_back({.theta = window_theta_of(c),
                   .pairs = c.rope.pairs,
                   .freq_factors = {},
                   .rotary_dim = c.rope.rotary_dim,
                   .short_factors = {},
                   .long_factors = {}});
  return all;
}

ModelPlan model_plan_of(const ModelConfig& c) {
  ModelPlan plan{.layers = {},
                 .embedding_scale = c.embedding_scale / c.residual_scale,
                 .norm_eps = c.rms_eps / (c.residual_scale * c.residual_scale),
                 .logit_divisor = c.logit_divisor,
                 .logit_cap = c.logit_cap};
  std::int64_t n_states = 0;
  for (std::int64_t layer = 0; layer < c.n_layers; ++layer) {
    Mixer mixer = c.has_state(layer) ? Mixer(delta_of(c.delta, n_states)) : attention_of(c, layer, layer - n_states);
    n_states += c.has_state(layer) ? 1 : 0;
    plan.layers.push_back({.blocks = {std::move(mixer), feed_forward_of(c)}});
  }
  return plan;
}

}  // namespace mneme
