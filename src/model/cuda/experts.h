// The feed-forward layer of a mixture of experts on the device: router, rows sorted by expert, two grouped GEMMs, sum.
// One row takes three launches, up to four rows four. src/model/experts.cc is the same on the CPU. No kernel waits for the host.
#pragma once

#include <cstdint>

#include "src/cuda/memory.h"
#include "src/formats/model_config.h"
#include "src/model/cuda/weights.h"
#include "src/ops/experts/grouped_gemm_cuda.h"

namespace mneme {

class CudaExperts {
 public:
  // Memory for at most max_rows rows a step. mine: the experts whose weights are here; reordered: columns of some are in
  // another order (act-order). Requires  config.experts.n > 0.
  // Errors  kResource; kUnsupported: more experts than the kernels take
  CudaExperts(const ModelConfig& config, double norm_eps, std::int32_t max_rows, const RankRange& mine, bool reordered,
              const Stream& stream);

  struct Buffers {
    float* residual = nullptr;  // [n, hidden], += the layer's output
    float* partial = nullptr;   // [n, hidden]: of several ranks, the output of this one's experts instead; or null
    void* normed = nullptr;     // [n, hidden] bf16: overwritten
    // `normed` is x_next of the norm before the router: its scales are applied after the GEMM.
    bool deferred = false;
    const float* next_norm = nullptr;  // [hidden]: `normed` becomes the next norm's x_next, n <= kSkinnyRows; or null
    float* sums = nullptr;             // [n, parts(n)]: DeferredNorm::sums of it
  };
  void run(const CudaLayerWeights& w, std::int32_t n, const Buffers& rows, const CudaContext& context);

  // Parts of `sums` of n rows.
  std::int32_t parts(std::int32_t n) const;

  std::size_t bytes() const { return arena_.size(); }

 private:
  // Routes and sorts n rows; whether `normed` may stay as it is, with routed_.scales.
  bool route(const CudaLayerWeights& w, std::int32_t n, const Buffers& rows, const CudaContext& context);

  // `g` with x in the order of its experts' columns.
  GroupedGemmCuda ordered(GroupedGemmCuda g, const CudaContext& context) const;

  ExpertConfig config_;
  RankRange mine_;
  std::int32_t hidden_;
  float eps_;
  DeviceBuffer arena_;
  RoutedRows routed_;
  SortedPairs sorted_;
  float* out_ = nullptr;
  std::byte *product_ = nullptr, *gathered_ = nullptr;
};

}  // namespace mneme
