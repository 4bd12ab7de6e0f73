// Gated DeltaNet on the CPU, between the layer's norms.
#include <array>
#include <vector>

#include "src/base/check.h"
#include "src/model/layer_pass.h"
#include "src/model/shapes.h"
#include "src/ops/norm_rope/pointwise.h"
#include "src/ops/recurrent/gated_delta.h"

namespace mneme {
namespace {

// The rows of each sequence, and its state of this layer.
std::vector<GatedDeltaRows> rows_of(const LayerPass& p, const DeltaPlan& plan, const DeltaShape& shape,
                                    const TensorView& beta, const TensorView& alpha, const TensorView& out) {
  std::vector<GatedDeltaRows> all;
  const std::int64_t each = state_floats_of(p.config.delta);
  std::int64_t first = 0;
  for (const SequenceRows& s : p.sequences) {
    if (s.n_rows == 0) continue;
    float* state = reinterpret_cast<float*>(s.cache->states().begin_write().host()) + plan.state_layer * each;
    all.push_back({.n = s.n_rows,
                   .position = s.cache->length() - s.n_rows,
                   .x = p.q.row_as<float>(first),
                   .beta = beta.row_as<float>(first),
                   .alpha = alpha.row_as<float>(first),
                   .out = out.row_as<float>(first),
                   .inputs = state,
                   .state = state + shape.input_floats()});
    first += s.n_rows;
  }
  return all;
}

}  // namespace

void run_block(LayerPass& p, const DeltaPlan& plan) {
  const DeltaWeights& w = p.w.delta;
  const DeltaShape shape{.n_k_heads = plan.n_k_heads,
                         .n_v_heads = plan.n_v_heads,
                         .d_k = plan.d_k,
                         .d_v = plan.d_v,
                         .taps = plan.taps,
                         .tiled = plan.tiled};
  norm_input(p, p.w.attn_norm, input_dtype({&w.qkv, &w.z, &w.beta, &w.alpha}, p.n(), p.context));
  p.q = p.memory.q.get(DType::kF32, p.n(), shape.channels());
  const TensorView z = p.memory.gate.get(DType::kF32, p.n(), shape.value_width());
  const TensorView beta = p.memory.k.get(DType::kF32, p.n(), plan.n_v_heads);
  const TensorView alpha = p.memory.v.get(DType::kF32, p.n(), plan.n_v_heads);
  gemm_cpu(p.h,
           std::array{GemmOutput{.w = &w.qkv, .y = p.q}, GemmOutput{.w = &w.z, .y = z},
                      GemmOutput{.w = &w.beta, .y = beta}, GemmOutput{.w = &w.alpha, .y = alpha}},
           p.context);
  p.lap(Op::kProducts);

  const TensorView out = p.memory.attended.get(DType::kF32, p.n(), shape.value_width());
  gated_delta_cpu(rows_of(p, plan, shape, beta, alpha, out),
                  {.conv = w.conv.data(), .a = w.a.data(), .dt = w.dt.data()}, shape, p.context);
  p.lap(Op::kAttention);

  const TensorView heads(out.data(), DType::kF32, {p.n() * plan.n_v_heads, plan.d_v});
  rms_norm_cpu(heads, w.norm.data(), p.config.rms_eps, heads, p.context);
  const TensorView gated = p.memory.gated.get(input_dtype({&w.out}, p.n(), p.context), p.n(), shape.value_width());
  swiglu_cpu(z, out, gated, p.context);
  p.lap(Op::kPointwise);
  add_to_residual(p, gated, w.out, nullptr, p.w.attn_out_norm);
  p.lap(Op::kProducts);
}

}  // namespace mneme
