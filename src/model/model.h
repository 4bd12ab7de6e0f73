// A model's weights in memory, and one forward pass over the scheduled tokens of all running sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/progress.h"
#include "src/formats/checkpoint.h"
#include "src/kv/sequence_cache.h"
#include "src/methods/decode_observer.h"
#include "src/methods/method_state.h"
#include "src/model/op_timer.h"
#include "src/ops/gemm/gemm.h"
#include "src/ops/norm_rope/rope.h"
#include "src/ops/simd/cpu_context.h"

namespace mneme {

struct ModelOptions {
  std::int64_t context = 0;  // longest sequence that will be run; 0: the model's limit
};

struct ExpertWeights {
  WeightMatrix gate, up, down;                           // [expert_ffn, hidden], down [hidden, expert_ffn]
  std::span<const float> gate_bias, up_bias, down_bias;  // gpt-oss, else empty
};

// Gated DeltaNet (src/ops/recurrent/gated_delta.h).
struct DeltaWeights {
  WeightMatrix qkv, z, beta, alpha;  // [channels, hidden], [n_v d_v, hidden], [n_v, hidden] twice
  WeightMatrix out;                  // [hidden, n_v d_v]
  std::span<const float> conv;       // [channels, taps]
  std::span<const float> a, dt;      // [n_v]
  std::span<const float> norm;       // [d_v], of each head's output
};

struct LayerWeights {
  std::span<const float> attn_norm, ffn_norm;          // [hidden]; empty: the block reads x as it is
  std::span<const float> attn_out_norm, ffn_out_norm;  // [hidden], of what a block adds; empty: none
  std::span<const float> q_norm, k_norm;               // [head_dim], or [heads * head_dim]; empty: none
  std::span<const float> q_bias, k_bias, v_bias;       // qwen2, gpt-oss, else empty
  std::span<const float> o_bias;                       // [hidden]; gpt-oss, else empty
  std::span<const float> sinks;                        // [heads]; gpt-oss, else empty
  WeightMatrix q, k, v, o;                             // [heads * head_dim, hidden], o [hidden, heads * head_dim]
  WeightMatrix q_gate;                                 // [heads * head_dim, hidden], of attention's output; empty: none
  DeltaWeights delta;                                  // of layers that have it in place of attention
  WeightMatrix gate, up, down;                         // [ffn, hidden], down [hidden, ffn]; dense layers
  WeightMatrix router;                                 // [experts, hidden] f32; mixtures of experts
  std::span<const float> router_bias;                  // [experts]; gpt-oss, else empty
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;      // the expert that all rows have; empty: none
  WeightMatrix shared_gate;  // [1, hidden] f32
};

class Model {
 public:
  // Takes ownership of the checkpoint, because weights may be views of its mapping.
  //
  // Errors  kFormat: missing tensors or wrong shapes. kUnsupported: features that this build lacks.
  static std::unique_ptr<Model> load(std::unique_ptr<Checkpoint> checkpoint, const ModelOptions& options,
                                     const CpuContext& context, const ProgressFn& progress = {});
  // Random weights of `dtype` in a given shape, for `mneme bench --shape`: normal, standard deviation 0.02.
  static std::unique_ptr<Model> random(const ModelConfig& config, DType dtype, const ModelOptions& options,
                                       std::uint64_t seed, const CpuContext& context);
  // The shape without weights, for models whose weights are on the device.
  static std::unique_ptr<Model> shape_only(const ModelConfig& config, const ModelOptions& options);
  ~Model();

  const ModelConfig& config() const { return config_; }
  // Ids without a token (padding of the embedding): their logits are -inf.
  std::span<const std::int32_t> absent_tokens() const { return absent_tokens_; }
  std::span<const RopeTable> ropes() const { return ropes_; }  // of ropes_of()
  const RopeTable& rope() const { return ropes_[0]; }          // of layers that methods select in
  std::int64_t max_context() const { return max_context_; }
  KvShape kv_shape(DType kv_dtype) const;
  std::size_t weight_bytes() const;  // all weights as stored
  // Bytes of weights that a decode step of one sequence reads: one row of the embedding table, the experts of one row,
  // and all else.
  std::size_t step_weight_bytes() const;
  std::size_t step_expert_bytes() const;  // of these the experts

  const ConstTensorView& embedding() const { return embedding_.view(); }
  const std::vector<LayerWeights>& layers() const { return layers_; }
  std::span<const float> output_norm() const { return output_norm_; }  // divided by ModelPlan::logit_divisor
  const WeightMatrix& head() const { return head_; }

 private:
  // All but the embedding table, with `n_experts` of each layer.
  std::size_t bytes_with_experts(std::int64_t n_experts) const;

  Model() = default;
  // Takes the configuration, its limits and what follows from both.
  void set_config(const ModelConfig& config, std::int64_t context);
  friend struct ModelLoader;
  std::unique_ptr<Checkpoint> checkpoint_;
  ModelConfig config_;
  std::vector<std::int32_t> absent_tokens_;
  std::vector<RopeTable> ropes_;
  std::int64_t max_context_ = 0;
  WeightMatrix embedding_;
  std::vector<LayerWeights> layers_;
  std::span<const float> output_norm_;
  WeightMatrix head_;
  std::vector<Tensor> owned_;  // norms and biases as f32; random weights
};

// kPrefill: the rows are part of a prompt and attend everything before them. kDecode: one row, which attends what the
// sequence's method selects.
enum class SequencePhase : std::uint8_t { kPrefill, kDecode };

// The rows of one sequence in a forward pass.
struct SequenceRows {
  SequenceCache* cache = nullptr;  // already extended by n_rows
  std::int32_t n_rows = 0;         // new tokens: a prefill chunk, or 1
  bool want_logits = false;        // of its last row
  bool all_logits = false;         // of every row
  MethodState* method = nullptr;   // null: full attention. Its index follows the cache in both phases
  SequencePhase phase = SequencePhase::kPrefill;
  // Prefill rows after these; 0: the prefill ends with them, and the method may decide what to keep. Decisions are
  // pending in `method` until the caller's commit(cache) after a successful pass.
  std::int32_t prefill_left = 0;
};

struct ForwardInput {
  std::span<const std::int32_t> tokens;     // of all sequences, concatenated
  std::span<const SequenceRows> sequences;  // positions: from cache->length() - n_rows
};

class Collective;
// What ranks that share a model have of it: some heads of every layer, or some of the layers.
enum class RankSplit : std::uint8_t { kHeads, kLayers };

// Runs the model on the CPU; owns the activations, which grow to the largest batch and are kept.
class Forward {
 public:
  // ranks: those that share the model, of which `model` is this one's part (src/model/ranks); null: it is whole.
  Forward(const Model& model, const CpuContext& context, Collective* ranks = nullptr,
          RankSplit split = RankSplit::kHeads);
  ~Forward();

  // Returns logits [n_wanted, vocab] f32: one row for each sequence that wants them, or all its rows, in order. Valid
  // until the next call.
  //
  // Errors  with ranks, kDevice: as Collective's; ranks whose steps are not the same.
  ConstTensorView run(const ForwardInput& input);
  // The logits of every row, for perplexity and tests; [n_rows, vocab].
  ConstTensorView run_all_logits(const ForwardInput& input);
  std::size_t activation_bytes() const;
  // Every n-th decode step of a sequence with a method also computes the true attention, for its statistics; 0: never.
  void set_audit(std::int32_t every);
  // Called for every decode row of later runs (src/methods/decode_observer.h); null: none.
  void set_observer(DecodeObserver* observer);
  // Charges the operations of later runs to `timer`, whose start() the caller calls before each run; null: none.
  void set_timer(OpTimer* timer);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme
