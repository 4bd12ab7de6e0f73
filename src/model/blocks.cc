// The blocks of dense layers. Experts are in experts.cc.
#include <algorithm>
#include <array>
#include <cmath>

#include "src/base/ratio.h"
#include "src/model/layer_pass.h"
#include "src/ops/norm_rope/output_gate.h"
#include "src/ops/norm_rope/pointwise.h"

namespace mneme {
namespace {

TensorView by_heads(const TensorView& x, std::int64_t heads) {
  return TensorView(x.data(), x.dtype(), {x.dim(0), heads, x.dim(1) / heads});
}

// RMSNorm of every head, or of a row's heads together, in place.
void norm_heads(const TensorView& x, std::int64_t heads, std::span<const float> weight, const LayerPass& p) {
  const TensorView rows(x.data(), x.dtype(), {x.dim(0) * heads, x.dim(1) / heads});
  rms_norm_cpu(rows, weight.data(), p.config.rms_eps, rows, p.context);
}

// x += RMSNorm(a W^T + bias)
void add_normed(const LayerPass& p, const TensorView& a, const WeightMatrix& w, const float* bias,
                std::span<const float> norm) {
  const TensorView out = p.memory.partial.get(DType::kF32, p.n(), p.config.hidden);
  gemm_cpu(a, std::array{GemmOutput{.w = &w, .y = out, .bias = bias}}, p.context);
  if (p.ranks != nullptr) p.ranks->all_reduce({out.row_as<float>(0), static_cast<std::size_t>(p.n() * out.dim(1))});
  rms_norm_cpu(out, norm.data(), p.config.rms_eps, out, p.context);
  const float* y = out.row_as<float>(0);
  float* x = p.x.row_as<float>(0);
  for (std::int64_t i = 0; i < p.n() * out.dim(1); ++i) x[i] += y[i];
}

}  // namespace

void add_to_residual(const LayerPass& p, const TensorView& a, const WeightMatrix& w, const float* bias,
                     std::span<const float> norm_behind) {
  const bool adds_bias = p.ranks == nullptr || p.ranks->rank() == 0;
  if (!norm_behind.empty()) return add_normed(p, a, w, adds_bias ? bias : nullptr, norm_behind);
  if (p.ranks == nullptr) {
    gemm_cpu(a, std::array{GemmOutput{.w = &w, .y = p.x, .bias = bias, .accumulate = true}}, p.context);
    return;
  }
  const TensorView sum = p.memory.partial.get(DType::kF32, p.n(), p.config.hidden);
  gemm_cpu(a, std::array{GemmOutput{.w = &w, .y = sum, .bias = adds_bias ? bias : nullptr}}, p.context);
  add_rows_of_ranks(p, sum);
}

void add_rows_of_ranks(const LayerPass& p, const TensorView& sum) {
  const std::span<float> values(sum.row_as<float>(0), p.n() * p.config.hidden);
  p.ranks->all_reduce(values);
  float* x = p.x.row_as<float>(0);
  for (std::size_t i = 0; i < values.size(); ++i) x[i] += values[i];
}

DType input_dtype(std::initializer_list<const WeightMatrix*> weights, std::int64_t n, const CpuContext& context) {
  if (context.rounding == Rounding::kFixed) return DType::kF32;
  const bool bf16_for_all = std::all_of(weights.begin(), weights.end(),
                                        [n](const WeightMatrix* w) { return gemm_input_dtype(*w, n) == DType::kBF16; });
  return bf16_for_all ? DType::kBF16 : DType::kF32;
}

std::size_t Activations::bytes() const {
  std::size_t bytes = 0;
  for (const Activation* a :
       {&normed, &q, &k, &v, &attended, &gated, &gate, &up, &ffn_hidden, &router, &expert_in, &expert_out, &partial})
    bytes += a->bytes();
  return bytes;
}

namespace {

void project(LayerPass& p, const AttentionPlan& plan) {
  const WeightMatrix& last = plan.output_gate ? p.w.q_gate : p.w.q;
  norm_input(p, p.w.attn_norm, input_dtype({&p.w.q, &p.w.k, &p.w.v, &last}, p.n(), p.context));
  p.q = p.memory.q.get(DType::kF32, p.n(), plan.q_width());
  p.k = p.memory.k.get(DType::kF32, p.n(), plan.kv_width());
  p.v = p.memory.v.get(DType::kF32, p.n(), plan.kv_width());
  gemm_cpu(p.h,
           std::array{GemmOutput{.w = &p.w.q, .y = p.q, .bias = or_null(p.w.q_bias)},
                      GemmOutput{.w = &p.w.k, .y = p.k, .bias = or_null(p.w.k_bias)},
                      GemmOutput{.w = &p.w.v, .y = p.v, .bias = or_null(p.w.v_bias)}},
           p.context);
  if (plan.output_gate) {
    p.gate = p.memory.gate.get(DType::kF32, p.n(), plan.q_width());
    gemm_cpu(p.h, std::array{GemmOutput{.w = &p.w.q_gate, .y = p.gate}}, p.context);
  }
  p.lap(Op::kProducts);
}

void rotate(LayerPass& p, const AttentionPlan& plan) {
  if (plan.rope == kNoRope) return;
  const RopeAngles& angles = p.angles[plan.rope];
  rope_cpu(by_heads(p.q, plan.n_heads), angles, p.context);
  // A layer with a window keeps rotated keys whatever the sequence's method does in the others.
  rope_cpu(by_heads(p.k, plan.n_kv_heads), plan.window > 0 ? angles : p.key_angles, p.context);
  p.lap(Op::kPointwise);
}

void scale_queries(LayerPass& p, const AttentionPlan& plan) {
  const QueryTemperature& temperature = plan.temperature;
  const std::span<const std::int32_t> positions = p.attention.positions();
  for (std::int64_t i = 0; i < p.n(); ++i) {
    const std::int64_t passed = temperature.beta == 0.0 ? 0 : positions[i] / temperature.context;
    const auto scale = static_cast<float>(plan.query_scale * (1.0 + temperature.beta * std::log1p(real(passed))));
    if (scale == 1.0f) continue;
    float* row = p.q.row_as<float>(i);
    for (std::int64_t j = 0; j < p.q.dim(1); ++j) row[j] *= scale;
  }
  p.lap(Op::kPointwise);
}

void attend(LayerPass& p, const AttentionPlan& plan) {
  const DType dtype = input_dtype({&p.w.o}, p.n(), p.context);
  TensorView a = p.memory.attended.get(plan.output_gate ? DType::kF32 : dtype, p.n(), plan.q_width());
  p.attention.append(plan.kv_layer, by_heads(p.k, plan.n_kv_heads), by_heads(p.v, plan.n_kv_heads));
  p.attention.attend(plan.kv_layer, by_heads(p.q, plan.n_heads), a, or_null(p.w.sinks));
  if (plan.output_gate) {
    const TensorView gated = p.memory.gated.get(dtype, p.n(), plan.q_width());
    sigmoid_gate_cpu(a, p.gate, gated, p.context);
    a = gated;
  }
  p.lap(Op::kAttention);
  add_to_residual(p, a, p.w.o, or_null(p.w.o_bias), p.w.attn_out_norm);
  p.lap(Op::kProducts);
}

}  // namespace

void run_block(LayerPass& p, const AttentionPlan& plan) {
  project(p, plan);
  const auto norm = [&] {
    const bool together = plan.qk_norm == QkNorm::kAllHeads;
    norm_heads(p.q, together ? 1 : plan.n_heads, p.w.q_norm, p);
    norm_heads(p.k, together ? 1 : plan.n_kv_heads, p.w.k_norm, p);
  };
  const bool behind = plan.qk_norm == QkNorm::kHeadsBehindRope;
  if (plan.qk_norm != QkNorm::kNone && !behind) norm();
  rotate(p, plan);
  if (behind) norm();
  if (plan.temperature.beta != 0.0 || plan.query_scale != 1.0) scale_queries(p, plan);
  attend(p, plan);
}

void norm_input(LayerPass& p, std::span<const float> weight, DType dtype) {
  if (weight.empty()) {
    p.h = p.x;
    return;
  }
  p.h = p.memory.normed.get(dtype, p.n(), p.config.hidden);
  rms_norm_cpu(p.x, weight.data(), p.plan.norm_eps, p.h, p.context);
  p.lap(Op::kPointwise);
}

void run_block(LayerPass& p, const MlpPlan& plan) {
  norm_input(p, p.w.ffn_norm, input_dtype({&p.w.gate, &p.w.up}, p.n(), p.context));
  const TensorView g = p.memory.gate.get(DType::kF32, p.n(), plan.width);
  const TensorView u = p.memory.up.get(DType::kF32, p.n(), plan.width);
  gemm_cpu(p.h, std::array{GemmOutput{.w = &p.w.gate, .y = g}, GemmOutput{.w = &p.w.up, .y = u}}, p.context);
  p.lap(Op::kProducts);
  const TensorView hidden = p.memory.ffn_hidden.get(input_dtype({&p.w.down}, p.n(), p.context), p.n(), plan.width);
  plan.gate == Gate::kGelu ? geglu_cpu(g, u, hidden, p.context) : swiglu_cpu(g, u, hidden, p.context);
  p.lap(Op::kPointwise);
  add_to_residual(p, hidden, p.w.down, nullptr, p.w.ffn_out_norm);
  p.lap(Op::kProducts);
}

}  // namespace mneme
