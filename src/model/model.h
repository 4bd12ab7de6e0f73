// A model's weights in memory, and one forward pass over the scheduled tokens of all running sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/attention/decode_tap.h"
#include "src/attention/method_state.h"
#include "src/base/progress.h"
#include "src/cache/sequence_cache.h"
#include "src/checkpoint/checkpoint.h"
#include "src/kernels/cpu_context.h"
#include "src/kernels/matmul.h"
#include "src/kernels/rope.h"
#include "src/model/op_timer.h"

namespace mneme {

struct ModelOptions {
  std::int64_t context = 0;  // longest sequence that will be run; 0: what the model was made for
};

struct LayerWeights {
  std::span<const float> attn_norm, ffn_norm;     // [hidden]
  std::span<const float> q_norm, k_norm;          // [head_dim]; qwen3, else empty
  std::span<const float> q_bias, k_bias, v_bias;  // qwen2, else empty
  WeightMatrix q, k, v, o;                        // [heads * head_dim, hidden], o [hidden, heads * head_dim]
  WeightMatrix gate, up, down;                    // [ffn, hidden], down [hidden, ffn]
};

class Model {
 public:
  // Takes the checkpoint, because weights may stay views into its mapping.
  //
  // Errors  kFormat: tensors missing or of the wrong shape. kUnsupported: what the architecture needs and we lack.
  static std::unique_ptr<Model> load(std::unique_ptr<Checkpoint> checkpoint, const ModelOptions& options,
                                     const CpuContext& context, const ProgressFn& progress = {});
  // The same shape with random weights of `dtype`, for `mneme bench --shape`: normal, standard deviation 0.02.
  static std::unique_ptr<Model> random(const ModelConfig& config, DType dtype, const ModelOptions& options,
                                       std::uint64_t seed, const CpuContext& context);
  // The shape alone, without any weights: what computes elsewhere has them there.
  static std::unique_ptr<Model> shape_only(const ModelConfig& config, const ModelOptions& options);
  ~Model();

  const ModelConfig& config() const { return config_; }
  const RopeTable& rope() const { return rope_; }
  std::int64_t max_context() const { return max_context_; }
  KvShape kv_shape(DType kv_dtype) const;
  std::size_t weight_bytes() const;  // all weights as stored
  // Weights that a decode step must read: one row of the embedding table, all else.
  std::size_t step_weight_bytes() const;

  const ConstTensorView& embedding() const { return embedding_.view(); }
  const std::vector<LayerWeights>& layers() const { return layers_; }
  std::span<const float> output_norm() const { return output_norm_; }
  const WeightMatrix& head() const { return head_; }

 private:
  Model() = default;
  friend struct ModelLoader;
  std::unique_ptr<Checkpoint> checkpoint_;
  ModelConfig config_;
  RopeTable rope_;
  std::int64_t max_context_ = 0;
  WeightMatrix embedding_;
  std::vector<LayerWeights> layers_;
  std::span<const float> output_norm_;
  WeightMatrix head_;
  std::vector<Tensor> owned_;  // norms and biases as f32, random weights
};

// kPrefill: the rows are part of a prompt and attend everything before them. kDecode: one row, which attends what the
// sequence's method chooses.
enum class RowPhase : std::uint8_t { kPrefill, kDecode };

// The rows of one sequence in a forward pass.
struct SequenceRows {
  SequenceCache* cache = nullptr;  // already extended by n_rows
  std::int32_t n_rows = 0;         // new tokens: a prefill chunk, or 1
  bool want_logits = false;        // of its last row
  bool all_logits = false;         // of every row
  MethodState* method = nullptr;   // null: full attention. Its index follows the cache in either phase
  RowPhase phase = RowPhase::kPrefill;
  // Rows that the prefill still has after these; 0: it ends with them, and the method may decide what stays of it. That
  // is pending in `method` until its commit(cache), which the caller owes after a pass that succeeded.
  std::int32_t prefill_left = 0;
};

struct ForwardInput {
  std::span<const std::int32_t> tokens;     // of all sequences, one after the other
  std::span<const SequenceRows> sequences;  // positions: cache->length() - n_rows and on
};

// Runs the model; owns the activations, which grow to the largest batch seen and stay.
class Forward {
 public:
  Forward(const Model& model, const CpuContext& context);
  ~Forward();

  // logits: one row a sequence that wants them, or all its rows, in order; [n_wanted, vocab] f32. Valid until the next
  // call.
  ConstTensorView run(const ForwardInput& input);
  // The logits of every row, for perplexity and tests; [n_rows, vocab].
  ConstTensorView run_all_logits(const ForwardInput& input);
  std::size_t activation_bytes() const;
  // Every n-th decode step of a sequence with a method also computes the true attention, for its statistics; 0: never.
  void set_audit(std::int32_t every);
  // Sees every row that decodes in further runs (src/attention/decode_tap.h); null: nobody does.
  void set_tap(DecodeTap* tap);
  // Every further run charges its operations to `timer`, whose start() the caller calls before it; null: none does.
  void set_timer(OpTimer* timer);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme
