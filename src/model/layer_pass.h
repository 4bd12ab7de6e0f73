// One layer of a forward pass on the CPU: what its blocks read and write. A model's plan (src/formats/model_plan.h) says
// which blocks a layer has, and their sizes.
//
//   n rows of all sequences; x [n, hidden] f32 is the residual stream
#pragma once

#include <cstdint>
#include <span>

#include "src/formats/model_plan.h"
#include "src/model/attention_step.h"
#include "src/model/model.h"
#include "src/ops/norm_rope/rope.h"
#include "src/parallel/collective.h"
#include "src/tensor/buffer.h"

namespace mneme {

// An activation matrix whose memory grows to the largest batch and is kept.
class Activation {
 public:
  TensorView get(DType dtype, std::int64_t n, std::int64_t width) {
    buffer_.reserve(n * row_bytes(dtype, width));
    return TensorView(buffer_.data(), dtype, {n, width});
  }
  std::size_t bytes() const { return buffer_.size(); }

 private:
  Buffer buffer_;
};

// Memory of the blocks, kept from step to step.
struct Activations {
  Activation normed, q, k, v, attended, gated, gate, up, ffn_hidden, router, expert_in, expert_out, partial;
  std::size_t bytes() const;
};

struct LayerPass {
  const ModelConfig& config;
  const ModelPlan& plan;
  const LayerWeights& w;
  std::int32_t layer;
  TensorView x;
  const CpuContext& context;
  AttentionStep& attention;
  std::span<const SequenceRows> sequences;  // whose rows these are, in order
  std::span<const RopeAngles> angles;       // of the rows' positions, by RoPE
  const RopeAngles& key_angles;             // of their keys, in layers that methods select in
  Activations& memory;
  OpTimer* timer;
  Collective* ranks = nullptr;  // that share the layer's heads and feed-forward width or experts; null: one has all

  TensorView h = {};                  // [n, hidden] f32 or bf16: x, normed
  TensorView q = {}, k = {}, v = {};  // [n, heads * D] f32, k and v of the KV heads
  TensorView gate = {};               // [n, heads * D] f32, of attention's output, where it has one

  std::int64_t n() const { return x.dim(0); }
  void lap(Op op) const {
    if (timer != nullptr) timer->lap(op, layer);
  }
};

// Dtype of activations that needs no conversion in any GEMM, for n rows. It depends on n, so it is not used where a row
// must give the same bits in every batch.
DType input_dtype(std::initializer_list<const WeightMatrix*> weights, std::int64_t n, const CpuContext& context);

// x += the sum of each rank's rows `sum` [n, hidden] f32, which are lost.
void add_rows_of_ranks(const LayerPass& p, const TensorView& sum);

// x += a W^T + bias, normed where there is a norm. Of several ranks each has some columns of W; all of them add the sum.
void add_to_residual(const LayerPass& p, const TensorView& a, const WeightMatrix& w, const float* bias,
                     std::span<const float> norm_behind);

inline const float* or_null(std::span<const float> bias) {
  return bias.empty() ? nullptr : bias.data();
}

// A block adds its mixer's output, of the normed rows, to x; with a norm behind it, the output normed.

// q, k, v = RMSNorm(x) W^T + bias, RMSNorm of q and k, RoPE; stores k and v; x += attention(q) W_o^T + bias
void run_block(LayerPass& p, const AttentionPlan& plan);
// x += (silu(h W_gate^T) * h W_up^T) W_down^T, h = RMSNorm(x); or gelu()
void run_block(LayerPass& p, const MlpPlan& plan);
// x += sum over the experts a row is routed to, of its output by its share
void run_block(LayerPass& p, const ExpertsPlan& plan);
// x += (RMSNorm(gated_delta(h W_qkv^T, ...)) * silu(h W_z^T)) W_out^T, by heads; goes on from the sequences' states
void run_block(LayerPass& p, const DeltaPlan& plan);

// h = RMSNorm(x) in `dtype`; x itself where the weight is empty.
void norm_input(LayerPass& p, std::span<const float> weight, DType dtype);

}  // namespace mneme
