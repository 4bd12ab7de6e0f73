// The end of a step: logits of some rows, the token of each, and their copies to the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/cuda/memory.h"
#include "src/model/cuda/step/forward_ranks.h"
#include "src/model/model.h"
#include "src/ops/sampling/sample_cuda.h"
#include "src/tensor/buffer.h"

namespace mneme {

class CudaHead {
 public:
  // max_rows: of one call. All references outlive the object.
  CudaHead(const CudaWeights& weights, const Model& model, std::int32_t max_rows, CudaGemms& gemms, ForwardRanks& ranks,
           const StepLaunch& launch);
  void reserve(ArenaLayout& arena);
  std::int32_t max_rows() const { return max_rows_; }

  // Logits and argmax of n rows: of few, whose x_next is `normed`; of any number, normed already.
  void run_few(const void* normed, std::int32_t n, const DeferredNorm& norm);
  void run_many(const std::byte* normed, std::int32_t n);

  // Host memory for logits of n rows.
  float* host_logits(std::int32_t n);
  // For `rows` of the last call: copies their logits to `to`, or, where that is null, adds their tokens to samples(),
  // sampled by `rules` (one per row; none: argmax).
  void fetch(std::span<const std::int32_t> rows, std::span<const SamplingRule> rules, float* to);
  std::span<const TokenSample> samples() const { return samples_; }
  void clear_samples() { samples_.clear(); }

 private:
  // The last of many ranks may have no rows of a small vocabulary.
  bool computes() const { return ranks_.is_last_stage() && weights_.head().n_out > 0; }
  void finish(std::int32_t n, const CudaContext& context);
  std::int32_t vocab() const { return static_cast<std::int32_t>(config_.vocab); }

  const CudaWeights& weights_;
  const ModelConfig& config_;
  std::int32_t max_rows_;
  CudaGemms& gemms_;
  ForwardRanks& ranks_;
  const StepLaunch& launch_;
  std::int32_t n_absent_ = 0;
  DeviceBuffer absent_;  // ids without a token
  float *logits_ = nullptr, *best_logprob_ = nullptr;
  std::int32_t* best_token_ = nullptr;
  SamplingRule* rules_ = nullptr;
  PinnedBuffer host_logits_, host_best_, host_rules_;
  Buffer all_logits_;  // of more rows than one call has
  std::vector<TokenSample> samples_;
};

}  // namespace mneme
