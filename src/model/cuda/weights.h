// A model's weights on the device, in the forms that its kernels read: q, k and v as one matrix, gate and up as
// another. Quantised weights stay so; f32 and f16 become bf16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/progress.h"
#include "src/device/memory.h"
#include "src/kernels/matvec_cuda.h"
#include "src/model/model.h"

namespace mneme {

struct CudaLayerWeights {
  DeviceMatrix qkv, o, gate_up, down;
  const float *attn_norm = nullptr, *ffn_norm = nullptr;  // [hidden]
  const float *q_norm = nullptr, *k_norm = nullptr;       // [head_dim], or null
  const float* qkv_bias = nullptr;                        // or null
};

class CudaWeights {
 public:
  // Errors  kResource: the weights do not fit the device; kUnsupported: a width that the kernels do not take.
  static CudaWeights load(const Model& model, const Stream& stream, const ProgressFn& progress = {});
  // Random weights of the model's shape, made on the device. Requires  dtype is bf16, q8_0 or q4_0.
  static CudaWeights random(const Model& model, DType dtype, std::uint64_t seed, const Stream& stream);

  const std::vector<CudaLayerWeights>& layers() const { return layers_; }
  const DeviceMatrix& embedding() const { return embedding_; }
  const DeviceMatrix& head() const { return head_; }
  const float* output_norm() const { return output_norm_; }
  std::size_t bytes() const;       // all, as they lie there
  std::size_t step_bytes() const;  // that a decode step must read: one row of the embedding, all else
  DType dtype() const { return layers_.front().gate_up.dtype; }

 private:
  friend struct CudaWeightsMaker;
  std::vector<DeviceBuffer> buffers_;
  std::vector<CudaLayerWeights> layers_;
  DeviceMatrix embedding_, head_;
  const float* output_norm_ = nullptr;
  std::size_t vector_bytes_ = 0;
  bool tied_ = false;
};

}  // namespace mneme
