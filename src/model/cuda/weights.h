// A model's weights on the device, in the layouts that kernels read: q, k and v fused into one matrix where they have
// one type, gate and up into another. Quantised weights stay quantised; f32, f16, and gate and up of different types
// become bf16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/base/function_ref.h"
#include "src/base/progress.h"
#include "src/cuda/memory.h"
#include "src/model/model.h"
#include "src/model/weight_mix.h"
#include "src/model/weight_placement.h"
#include "src/ops/gemm/device/skinny_gemm_cuda.h"
#include "src/parallel/collective.h"

namespace mneme {

// Matrices with the same x, whose results lie beside each other: one of each run of the same type.
struct FusedMatrix {
  std::vector<DeviceMatrix> parts;
  std::int64_t n_out() const;
};

// Gated DeltaNet (src/ops/recurrent/gated_delta.h).
struct CudaDeltaWeights {
  FusedMatrix in;    // x, z, beta and alpha: [channels + n_v d_v + 2 n_v, hidden]
  DeviceMatrix out;  // [hidden, n_v d_v]
  const float *conv = nullptr, *a = nullptr, *dt = nullptr, *norm = nullptr;
};

struct CudaLayerWeights {
  CudaDeltaWeights delta;  // of layers that have it in place of attention
  FusedMatrix qkv;
  DeviceMatrix q_gate;                       // [heads * head_dim, hidden], of attention's output, or empty
  DeviceMatrix shared_gate_up, shared_down;  // of the expert that all rows have, or empty
  const float* shared_gate = nullptr;        // [hidden], or null
  DeviceMatrix o, gate_up, down;
  const float *attn_norm = nullptr, *ffn_norm = nullptr;          // [hidden]; null: the block reads x as it is
  const float *attn_out_norm = nullptr, *ffn_out_norm = nullptr;  // [hidden], of what a block adds, or null
  const float *q_norm = nullptr, *k_norm = nullptr;               // [head_dim] or [heads * head_dim], or null
  const float* qkv_bias = nullptr;                                // or null
  // Mixtures of experts, in place of gate_up and down; of a rank's experts.
  DeviceMatrix expert_gate_up,
      expert_down;                // [experts * 2 ffn, hidden], an expert's gate first; [experts * hidden, ffn]
  const float* router = nullptr;  // [experts, hidden]
  // gpt-oss, or null: [experts]; [experts, 2 ffn], [experts, hidden]; [hidden]; [heads].
  const float *router_bias = nullptr, *expert_gate_up_bias = nullptr, *expert_down_bias = nullptr;
  const float *o_bias = nullptr, *sinks = nullptr;
};

class CudaWeights {
 public:
  // Errors  kResource: the weights do not fit the device; kUnsupported: a width that the kernels do not support.
  // placement: none: all on the device.
  // head_rows: of the vocabulary, where ranks share it; none: all.
  static CudaWeights load(const Model& model, const Stream& stream, std::optional<WeightPlacement> placement = {},
                          const ProgressFn& progress = {}, std::optional<RankRange> head_rows = {});
  // Random weights of the model's shape, made on the device; of a mixture a rank's experts, none: all. Requires  bf16 or
  // quantised types.
  static CudaWeights random(const Model& model, const WeightMix& mix, std::uint64_t seed, const Stream& stream,
                            std::optional<WeightPlacement> placement = {}, std::optional<RankRange> head_rows = {},
                            std::optional<RankRange> experts_of_rank = {});

  const std::vector<CudaLayerWeights>& layers() const { return layers_; }
  const DeviceMatrix& embedding() const { return embedding_; }
  const DeviceMatrix& head() const { return head_; }
  const float* output_norm() const { return output_norm_; }
  std::size_t bytes() const;       // device bytes of all weights
  std::size_t host_bytes() const;  // of those in host memory
  // Bytes that a decode step of one row reads: one row of the embedding, the experts of one row, and all else.
  std::size_t step_bytes() const;
  std::size_t step_expert_bytes() const;  // of these the experts
  std::size_t step_host_bytes() const;    // of these over the link
  DType dtype() const {
    const CudaLayerWeights& w = layers_.front();
    return w.router == nullptr ? w.gate_up.dtype : w.expert_gate_up.dtype;
  }
  // Whether columns of some experts are in another order.
  bool reorders_experts() const;
  // Calls f with each matrix of the layers but for experts; for_each() with the head too.
  void for_each_in_layers(FunctionRef<void(const DeviceMatrix&)> f) const;
  void for_each(FunctionRef<void(const DeviceMatrix&)> f) const;

 private:
  friend struct CudaWeightsMaker;
  std::vector<DeviceBuffer> buffers_;
  std::vector<PinnedBuffer> host_buffers_;
  std::vector<CudaLayerWeights> layers_;
  DeviceMatrix embedding_, head_;
  const float* output_norm_ = nullptr;
  std::size_t vector_bytes_ = 0;
  double used_experts_ = 1.0;  // share of a layer's experts that a row is sent to
  bool tied_ = false;
};

}  // namespace mneme
