// What a rank that shares the model adds to a step (rank_forward.h): rows that are summed over ranks that share every
// layer, rows that go from one stage of layers to the next, and logits of all ranks. A pass without other ranks has one,
// which shares nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/model/cuda/experts.h"
#include "src/model/cuda/forward.h"
#include "src/model/cuda/ranks/device_collective.h"
#include "src/model/cuda/step/gemms.h"

namespace mneme {

class ForwardRanks {
 public:
  // All references outlive the object.
  ForwardRanks(const CudaForwardOptions& options, const ModelConfig& config, const CudaActivations& activations,
               CudaGemms& gemms, const StepLaunch& launch);
  void reserve(ArenaLayout& arena, std::size_t n_rows, std::size_t head_rows);
  // Call once the arena has assigned its addresses.
  void take_own_rows();

  bool share_heads() const { return heads_ != nullptr; }  // each has a part of every layer
  bool is_first_stage() const { return stages_ == nullptr || stages_->ranks().rank() == 0; }
  // The last stage has the head; ranks that share heads have a part of it each.
  bool is_last_stage() const { return stages_ == nullptr || stages_->ranks().rank() + 1 == stages_->ranks().size(); }
  RankRange experts() const;                         // of a mixture: those of this rank
  std::int32_t parts_of_sums(std::int32_t n) const;  // of CudaActivations::sums

  // ---- ranks that share heads: residual += the sum over the ranks of x w^T. With next_norm by skinny GEMMs, and the
  //      next norm starts.
  void add(const void* x, const DeviceMatrix& w, std::int32_t n, const float* next_norm = nullptr);
  // The same, of the outputs of the ranks' experts.
  void add_experts(CudaExperts& experts, const CudaLayerWeights& w, std::int32_t n, const float* next_norm = nullptr);

  // ---- stages: residual streams of n rows behind the stage before, which this rank's layers begin with; and behind its
  //      last layer.
  void take_rows(std::int32_t n, const EmbedOutput& out);
  void hand_rows_on(std::int32_t n);

  // ---- the head: where the GEMM writes its logits, of rows this far apart (0: as wide as they are); and then all ranks
  //      have n rows of `logits`.
  float* head_output(float* logits, std::int64_t first_row) const {
    return heads_ == nullptr ? logits + first_row * config_.vocab : rank_logits_ + first_row * vocab_part_;
  }
  std::int64_t head_stride() const { return vocab_part_; }
  void share_logits(float* logits, std::int32_t n);

 private:
  void add_rank_rows(std::int32_t n, const float* next_norm);
  std::int32_t hidden() const { return static_cast<std::int32_t>(config_.hidden); }

  const ModelConfig& config_;
  const CudaActivations& activations_;
  CudaGemms& gemms_;
  const StepLaunch& launch_;
  DeviceCollective *heads_, *stages_;  // that share every layer, or the layers in order; else null
  std::int32_t vocab_part_ = 0;        // columns of logits that a rank computes
  float *rows_ = nullptr, *rank_logits_ = nullptr, *all_rank_logits_ = nullptr;
};

}  // namespace mneme
