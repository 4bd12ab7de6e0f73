// Skinny GEMMs on the device: 1 to 64 rows of activations with a weight matrix, the largest part of a decode step. Bound
// by reading the weights once; mma with f32 sums.
//
//   x  [m, k]      bf16             1 <= m <= kSkinnyRows
//   w  [n_out, k]  DeviceMatrix     k a multiple of 32
//
// Requires  x and each of its rows are 16-byte aligned; 192 bytes after x are readable where k is not a multiple of 128.
//           `workspace` is not used by a concurrent call.
// Numerics  x is bf16; codes of quantised weights are multiplied exactly, sums of a group are scaled in f32. Sums in f32,
//           in a fixed order for a shape and device.
// Async     enqueues; allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/context.h"
#include "src/ops/gemm/device/device_matrix.h"

namespace mneme {

inline constexpr int kSkinnyRows = 64;  // of x, at most
// Where w is bf16: by mma, and by wgmma. cuBLASLt is faster with more rows.
inline constexpr int kSkinnyBf16Rows = 16, kWgmmaBf16Rows = 32;

// Sums of matrices that are split over K. Calls in one stream may share it.
struct SkinnyWorkspace {
  float* partial = nullptr;         // skinny_partial_bytes()
  std::int32_t* arrived = nullptr;  // [kSkinnyUnits], zero before the first call
  std::int32_t splits = 0;          // parts of K; 0: as the shape needs. Tests and benchmarks set it.
  std::byte* permuted = nullptr;    // skinny_permuted_bytes() of the widest k; null: without the kernel that needs it
};
inline constexpr std::int32_t kSkinnyUnits = 1024;
std::size_t skinny_partial_bytes();
std::size_t skinny_permuted_bytes(std::int64_t k);

// Whether the device takes m rows of x with this type of weights. bf16: more than 8 rows need shared memory, more than 16
// wgmma.
bool skinny_gemm_takes(DType weights, std::int32_t m);

// RMSNorm with the scale factor applied after the GEMM: x is residual * weight in bf16, and results are multiplied by 1
// / sqrt(sum / n + eps), where `sums` [m, n_parts] f32 are partial sums of the residual's squares. A row's parts are
// consecutive: a warp reads them in few requests, and every thread block of the GEMM does.
struct DeferredNorm {
  const float* sums = nullptr;  // null: x is already normalised
  std::int32_t n_parts = 0;
  std::int32_t n = 0;  // width of the residual
  float eps = 0;
};

// Epilogue y = x w^T (+ bias) (+ y).   y [m, n_out] f32, or bf16 where w is quantised
struct SkinnyGemmStore {
  void* y = nullptr;
  const float* bias = nullptr;  // [n_out] f32, or null
  std::int64_t stride = 0;      // elements between rows of y; 0: n_out
  bool bf16 = false;
  bool accumulate = false;  // f32 and quantised w only: adds to y
};
void skinny_gemm_cuda(const void* x, std::int32_t m, const DeviceMatrix& w, const DeferredNorm& norm,
                      const SkinnyGemmStore& out, const SkinnyWorkspace& workspace, const CudaContext& context);

// Epilogue that adds to the residual stream and starts the next norm.
//
//   residual [m, n_out] f32: += x w^T
//   x_next   [m, n_out] bf16 out: residual * norm_weight
//   sums     [m, residual_parts(n_out, m)] f32 out: DeferredNorm::sums of x_next
struct SkinnyGemmResidual {
  float* residual = nullptr;
  const float* norm_weight = nullptr;  // [n_out] f32
  void* x_next = nullptr;
  float* sums = nullptr;
};
std::int32_t residual_parts(std::int64_t n_out, std::int32_t m);  // n_parts of `sums`; fewer for more rows
void skinny_gemm_residual_cuda(const void* x, std::int32_t m, const DeviceMatrix& w, const SkinnyGemmResidual& out,
                               const SkinnyWorkspace& workspace, const CudaContext& context);

// out = silu(gate) * up, where w is [gate; up], each [ffn, k].   out [m, ffn] bf16.
// Requires  ffn a multiple of 8 where w is quantised.
void skinny_gemm_swiglu_cuda(const void* x, std::int32_t m, const DeviceMatrix& w, const DeferredNorm& norm, void* out,
                             const SkinnyWorkspace& workspace, const CudaContext& context);

}  // namespace mneme
