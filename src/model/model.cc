#include "src/model/model.h"

#include <algorithm>
#include <limits>

#include "src/base/error.h"
#include "src/formats/model_plan.h"
#include "src/model/limits.h"
#include "src/model/shapes.h"
#include "src/ops/recurrent/gated_delta.h"

namespace mneme {
namespace {

constexpr std::int64_t kMaxHeadDim = 256, kHeadDimStep = 8, kMaxGroup = 16;  // src/ops/attention/attention.h

std::size_t bytes_of(const ExpertWeights& e) {
  return e.gate.bytes() + e.up.bytes() + e.down.bytes() + e.gate_bias.size_bytes() + e.up_bias.size_bytes() +
         e.down_bias.size_bytes();
}

}  // namespace

std::int64_t apply_limits(ModelConfig& config, std::int64_t context) {
  if (config.head_dim % kHeadDimStep != 0 || config.head_dim > kMaxHeadDim)
    fail(ErrorKind::kUnsupported, "head_dim {}: attention takes multiples of {} up to {}", config.head_dim,
         kHeadDimStep, kMaxHeadDim);
  if (config.group() > kMaxGroup)
    fail(ErrorKind::kUnsupported, "{} query heads share one KV head ({} over {}): attention takes up to {}",
         config.group(), config.n_heads, config.n_kv_heads, kMaxGroup);
  for (const std::int64_t d : {config.delta.d_k, config.delta.d_v})
    if (d > kMaxDeltaHead)
      fail(ErrorKind::kUnsupported, "heads of {} in linear attention: its kernels take up to {}", d, kMaxDeltaHead);
  const std::int64_t length = context == 0 ? config.max_context : context;
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (length < 1 || length > kMax) fail(ErrorKind::kOption, "context of {} tokens: expected 1 to {}", length, kMax);
  if (config.sliding_window >= length) config.sliding_window = config.plain_windows ? length : 0;
  const bool any_window = config.sliding_window > 0 &&
                          std::find(config.windowed.begin(), config.windowed.end(), true) != config.windowed.end();
  if (!any_window && !config.windowed.empty()) {
    config.sliding_window = 0;
    config.windowed.clear();
  }
  return length;
}

Model::~Model() = default;

std::unique_ptr<Model> Model::shape_only(const ModelConfig& config, const ModelOptions& options) {
  std::unique_ptr<Model> model(new Model);
  model->set_config(config, options.context);
  return model;
}

void Model::set_config(const ModelConfig& config, std::int64_t context) {
  config_ = config;
  max_context_ = apply_limits(config_, context);
  for (const RopeConfig& rope : ropes_of(config_))
    ropes_.push_back(RopeTable::make(rope, config_.head_dim, max_context_));
}

KvShape Model::kv_shape(DType kv_dtype) const {
  return kv_shape_of(config_, kv_dtype);
}

std::size_t Model::weight_bytes() const {
  const std::size_t rest = bytes_with_experts(config_.experts.n);
  return config_.tied_embeddings ? rest : rest + embedding_.bytes();
}

std::size_t Model::step_weight_bytes() const {
  return bytes_with_experts(config_.experts.n_used) + embedding().stride_bytes();
}

std::size_t Model::step_expert_bytes() const {
  return bytes_with_experts(config_.experts.n_used) - bytes_with_experts(0);
}

std::size_t Model::bytes_with_experts(std::int64_t n_experts) const {
  std::size_t bytes = head_.bytes() + output_norm_.size_bytes();
  for (const LayerWeights& w : layers_) {
    for (const WeightMatrix* m :
         {&w.q, &w.k, &w.v, &w.o, &w.q_gate, &w.delta.qkv, &w.delta.z, &w.delta.beta, &w.delta.alpha, &w.delta.out,
          &w.shared_gate, &w.shared.gate, &w.shared.up, &w.shared.down})
      bytes += m->view().rank() == 0 ? 0 : m->bytes();
    if (w.experts.empty())
      bytes += w.gate.bytes() + w.up.bytes() + w.down.bytes();
    else
      bytes += w.router.bytes();
    std::size_t experts = 0;  // a rank has some of them: its share of a row is that of their bytes
    for (const ExpertWeights& e : w.experts) experts += bytes_of(e);
    if (!w.experts.empty()) bytes += experts * n_experts / w.experts.size();
    for (const std::span<const float> v :
         {w.attn_norm, w.ffn_norm, w.attn_out_norm, w.ffn_out_norm, w.q_norm, w.k_norm, w.q_bias, w.k_bias, w.v_bias,
          w.o_bias, w.sinks, w.router_bias, w.delta.conv, w.delta.a, w.delta.dt, w.delta.norm})
      bytes += v.size_bytes();
  }
  return bytes;
}

}  // namespace mneme
