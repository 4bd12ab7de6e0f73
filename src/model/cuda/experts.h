// The feed-forward layer of a mixture of experts on the device: router, rows sorted by expert, two grouped GEMMs, sum.
// src/model/experts.cc is the same on the CPU. No kernel waits for the host.
#pragma once

#include <cstdint>

#include "src/cuda/memory.h"
#include "src/formats/model_config.h"
#include "src/model/cuda/weights.h"
#include "src/ops/experts/grouped_gemm_cuda.h"

namespace mneme {

class CudaExperts {
 public:
  // Memory for at most max_rows rows a step. mine: the experts whose weights are here. Requires  config.experts.n > 0.
  // Errors  kResource; kUnsupported: more experts than the kernels take
  CudaExperts(const ModelConfig& config, std::int32_t max_rows, const RankRange& mine);

  struct Rows {
    float* residual = nullptr;  // [n, hidden], += the layer's output
    float* partial = nullptr;   // [n, hidden]: of several ranks, the output of this one's experts instead; or null
    void* normed = nullptr;     // [n, hidden] bf16: overwritten
    const float* next_norm = nullptr;  // [hidden]: `normed` becomes the next norm's x_next, n <= kSkinnyRows; or null
    float* sums = nullptr;             // [n, 1]: DeferredNorm::sums of it, one part
  };
  void run(const CudaLayerWeights& w, std::int32_t n, const Rows& rows, const CudaContext& context);

  std::size_t bytes() const { return arena_.size(); }

 private:
  ExpertConfig config_;
  RankRange mine_;
  std::int32_t hidden_;
  float eps_;
  DeviceBuffer arena_;
  float *logits_ = nullptr, *shares_ = nullptr, *out_ = nullptr;
  std::int32_t* experts_ = nullptr;
  SortedPairs sorted_;
  std::byte *gate_up_ = nullptr, *product_ = nullptr;
};

}  // namespace mneme
