#include "src/model/cuda/step/gemms.h"

#include <algorithm>

#include "src/ops/gemm/device/weight_layout_cuda.h"
#include "src/ops/norm_rope/pointwise_cuda.h"

namespace mneme {

CudaGemms::CudaGemms(const CudaWeights& weights, const StepLaunch& launch) : weights_(weights), launch_(launch) {
  weights.for_each([&](const DeviceMatrix& w) {
    for (const std::int32_t fewer : {kWgmmaBf16Rows, kSkinnyBf16Rows, 8})
      if (!skinny_gemm_takes(w.dtype, few_rows_)) few_rows_ = std::min(few_rows_, fewer);
  });
}

void CudaGemms::reserve(ArenaLayout& arena, std::int32_t n_rows) {
  std::int64_t input = weights_.head().n_in;  // of the widest matrix
  std::size_t converted = 0;                  // elements that become bf16 for many rows; the head has few
  std::size_t reordered = 0;                  // columns of the widest whose columns are in another order
  weights_.for_each_in_layers([&](const DeviceMatrix& w) {
    input = std::max(input, w.n_in);
    if (is_quantised(w.dtype) || w.on_host) converted = std::max(converted, static_cast<std::size_t>(w.n_out * w.n_in));
    if (w.columns != nullptr) reordered = std::max(reordered, static_cast<std::size_t>(w.n_in));
  });
  arena.add(gathered_, static_cast<std::size_t>(n_rows) * reordered * 2);
  arena.add(dequantised_, converted * 2);
  arena.add(workspace_.partial, skinny_partial_bytes());
  arena.add(workspace_.arrived, kSkinnyUnits * 4);
  arena.add(workspace_.permuted, skinny_permuted_bytes(input));
}

const void* CudaGemms::ordered(const void* x, const DeviceMatrix& w, std::int64_t n, const CudaContext& context) const {
  if (w.columns == nullptr) return x;
  gather_columns_cuda(x, static_cast<std::int32_t>(n), w.n_in, w.columns, gathered_, context);
  return gathered_;
}

void CudaGemms::few(const void* x, std::int32_t n, const DeviceMatrix& w, const DeferredNorm& norm,
                    const SkinnyGemmStore& out, const CudaContext& context) {
  skinny_gemm_cuda(ordered(x, w, n, context), n, w, norm, out, workspace_, context);
}

void CudaGemms::few_residual(const void* x, std::int32_t n, const DeviceMatrix& w, const SkinnyGemmResidual& out) {
  const CudaContext context = launch_.overlapped();
  skinny_gemm_residual_cuda(ordered(x, w, n, context), n, w, out, workspace_, context);
}

void CudaGemms::few_swiglu(const void* x, std::int32_t n, const DeviceMatrix& w, const DeferredNorm& norm, void* out) {
  const CudaContext context = launch_.overlapped();
  skinny_gemm_swiglu_cuda(ordered(x, w, n, context), n, w, norm, out, workspace_, context);
}

// Quantised weights: by skinny GEMMs where there are few rows, else converted to bf16.
void CudaGemms::many(const void* x, std::int64_t n, const DeviceMatrix& w, const Output& out) {
  const CudaContext context = launch_.serial();
  const void* values = w.values;
  x = ordered(x, w, n, context);
  if (is_quantised(w.dtype) && n <= kSkinnyRows) {
    skinny_gemm_cuda(x, static_cast<std::int32_t>(n), w, {},
                     {.y = out.y, .stride = out.stride, .bf16 = !out.f32, .accumulate = out.accumulate}, workspace_,
                     context);
    return;
  }
  if (is_quantised(w.dtype)) {
    dequantise_cuda(w, 0, w.n_out, dequantised_, context);
    values = dequantised_;
  } else if (w.on_host) {  // cuBLASLt reads weights several times
    copy_bytes(dequantised_, w.values, w.bytes(), launch_.stream);
    values = dequantised_;
  }
  library_.run({.m = n, .n = w.n_out, .k = w.n_in, .f32 = out.f32, .accumulate = out.accumulate, .stride = out.stride},
               x, values, out.y, context);
}

}  // namespace mneme
