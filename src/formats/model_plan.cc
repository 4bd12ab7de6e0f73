#include "src/formats/model_plan.h"

namespace mneme {
namespace {

AttentionPlan attention_of(const ModelConfig& c, std::int64_t layer) {
  return {.n_heads = c.n_heads,
          .n_kv_heads = c.n_kv_heads,
          .head_dim = c.head_dim,
          .window = c.window_of(layer),
          .qk_norm = c.qk_norm,
          .temperature = {.beta = c.temperature, .context = c.temperature_context}};
}

Mixer feed_forward_of(const ModelConfig& c) {
  const ExpertConfig& e = c.experts;
  if (e.n == 0) return MlpPlan{.width = c.ffn};
  return ExpertsPlan{.n = e.n, .n_used = e.n_used, .width = e.ffn, .normalise = e.normalise, .limit = e.limit};
}

}  // namespace

ModelPlan model_plan_of(const ModelConfig& c) {
  ModelPlan plan;
  for (std::int64_t layer = 0; layer < c.n_layers; ++layer)
    plan.layers.push_back({.blocks = {attention_of(c, layer), feed_forward_of(c)}});
  return plan;
}

}  // namespace mneme
