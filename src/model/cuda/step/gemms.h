// A GEMM of a step's rows with any of a model's matrices: skinny GEMMs where there are few rows, else cuBLASLt.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/model/cuda/forward.h"
#include "src/model/cuda/step/activations.h"
#include "src/model/cuda/weights.h"
#include "src/ops/gemm/device/gemm_cublaslt_cuda.h"
#include "src/ops/gemm/device/skinny_gemm_cuda.h"

namespace mneme {

class CudaGemms {
 public:
  // Both outlive the object.
  // With CudaForwardOptions::batch_invariant sums of a row are in one order whatever the number of rows.
  CudaGemms(const CudaWeights& weights, const StepLaunch& launch, const CudaForwardOptions& options);
  void reserve(ArenaLayout& arena, std::int32_t n_rows);
  // The most rows that skinny GEMMs take for all of the model's matrices.
  std::int32_t few_rows() const { return few_rows_; }
  bool batch_invariant() const { return batch_invariant_; }
  // n_parts of the sums that few_residual() writes for n rows.
  std::int32_t parts_of_sums(std::int64_t n_out, std::int32_t n) const;
  // Whether the next rows are of a prompt, which batch-invariant GEMMs take in larger groups.
  void begin_step(bool of_prompt) { of_prompt_ = of_prompt; }
  bool of_prompt() const { return of_prompt_; }

  // By skinny GEMMs, as the kernels of these names, with x in the model's order of columns.
  void few(const void* x, std::int32_t n, const DeviceMatrix& w, const DeferredNorm& norm, const SkinnyGemmStore& out,
           const CudaContext& context);
  void few_residual(const void* x, std::int32_t n, const DeviceMatrix& w, const SkinnyGemmResidual& out);
  void few_swiglu(const void* x, std::int32_t n, const DeviceMatrix& w, const DeferredNorm& norm, void* out);

  // Any number of rows: y = x w^T, or y += x w^T (f32).
  struct Output {
    void* y = nullptr;
    bool f32 = false, accumulate = false;
    std::int64_t stride = 0;  // elements between rows of y; 0: w's rows
  };
  void many(const void* x, std::int64_t n, const DeviceMatrix& w, const Output& out);

 private:
  // x in the order of the columns of w.
  const void* ordered(const void* x, const DeviceMatrix& w, std::int64_t n, const CudaContext& context) const;
  // Calls launch(first row, rows): once for all, or, batch-invariant, for groups that one kernel multiplies in one order.
  template <typename Launch>
  void in_groups(std::int32_t n, const DeviceMatrix& w, const Launch& launch) const;
  // values: of w, in bf16 on the device
  void multiply(const void* x, std::int64_t n, const DeviceMatrix& w, const void* values, const Output& out,
                const CudaContext& context);

  const CudaWeights& weights_;
  const StepLaunch& launch_;
  CublasLtGemm library_;
  SkinnyWorkspace workspace_;
  std::byte *gathered_ = nullptr, *dequantised_ = nullptr;
  std::int32_t few_rows_ = kSkinnyRows, group_rows_ = kSkinnyRows;
  bool batch_invariant_, of_prompt_ = false;
};

}  // namespace mneme
