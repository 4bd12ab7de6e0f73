// Skinny GEMMs on the device: 1 to 8 rows of activations with a weight matrix, the largest part of a decode step. Bound
// by reading the weights once; mma with f32 sums.
//
//   x  [m, k]      bf16             1 <= m <= 8
//   w  [n_out, k]  DeviceMatrix     k a multiple of 32
//
// Requires  x and each of its rows are 16-byte aligned.
// Numerics  x is bf16; quantised blocks are multiplied exactly and scaled in f32. Sums in f32, in a fixed order.
// Async     enqueues; allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/context.h"
#include "src/tensor/dtype.h"

namespace mneme {

// A weight matrix on the device.
//
//   kBF16  [n_out, k], row-major
//   kQ8_0  values: int8, in chunks of 64: chunk c of a row holds, for t = 0..3, bytes 8t..8t+7 of block 2c, then of
//          2c+1. scales: f16 [n_out, scale_stride()], one per block
//   kQ4_0  values: nibbles, in chunks of 128: for t = 0..3, values 8t..8t+7 of blocks 4c .. 4c+3, value e of eight in
//          nibble (e % 2) * 4 + e / 2. scales: as kQ8_0
//   kQ4_1  values: as kQ4_0. scales: pairs of f16, scale and minimum of each block
struct DeviceMatrix {
  const std::byte* values = nullptr;
  const std::byte* scales = nullptr;
  DType dtype = DType::kBF16;
  std::int64_t n_out = 0, n_in = 0;

  std::int64_t padded() const;  // n_in, rounded up to whole chunks
  std::size_t value_bytes_per_row() const;
  std::int64_t scale_stride() const;  // f16 of `scales` between rows, a multiple of 16 bytes
  std::size_t bytes() const;          // values and scales
};

// RMSNorm with the scale factor applied after the GEMM: x is residual * weight in bf16, and results are multiplied by 1
// / sqrt(sum / n + eps), where `sums` [n_parts, 8] f32 are partial sums of the residual's squares, by row of x.
struct DeferredNorm {
  const float* sums = nullptr;  // null: x is already normalised
  std::int32_t n_parts = 0;
  std::int32_t n = 0;  // width of the residual
  float eps = 0;
};

// Epilogue y = x w^T (+ bias).   y [m, n_out] f32
struct SkinnyGemmStore {
  float* y = nullptr;
  const float* bias = nullptr;  // [n_out] f32, or null
};
void skinny_gemm_cuda(const void* x, std::int32_t m, const DeviceMatrix& w, const DeferredNorm& norm,
                      const SkinnyGemmStore& out, const CudaContext& context);

// Epilogue that adds to the residual stream and starts the next norm.
//
//   residual [m, n_out] f32: += x w^T
//   x_next   [m, n_out] bf16 out: residual * norm_weight
//   sums     [n_out / 16, 8] f32 out: DeferredNorm::sums of x_next
struct SkinnyGemmResidual {
  float* residual = nullptr;
  const float* norm_weight = nullptr;  // [n_out] f32
  void* x_next = nullptr;
  float* sums = nullptr;
};
std::int32_t residual_parts(std::int64_t n_out);  // n_parts of `sums`
void skinny_gemm_residual_cuda(const void* x, std::int32_t m, const DeviceMatrix& w, const SkinnyGemmResidual& out,
                               const CudaContext& context);

// out = silu(gate) * up, where w is [gate; up], each [ffn, k].   out [m, ffn] bf16.
void skinny_gemm_swiglu_cuda(const void* x, std::int32_t m, const DeviceMatrix& w, const DeferredNorm& norm, void* out,
                             const CudaContext& context);

// ---- conversion of weights to these layouts

// Repacks blocks as a checkpoint stores them (device memory, [n_out, n_in / 32] BlockQ8_0, BlockQ4_0 or BlockQ4_1) into
// `out`, whose memory is allocated.
void repack_cuda(const std::byte* blocks, const DeviceMatrix& out, const CudaContext& context);
// Converts n values of f32 or f16 to bf16.
void to_bf16_cuda(const std::byte* from, DType dtype, std::int64_t n, void* to, const CudaContext& context);
// Dequantises rows [first, first + n) of w to bf16 [n, n_in], for GEMMs with many rows.
void dequantise_cuda(const DeviceMatrix& w, std::int64_t first, std::int64_t n, void* out, const CudaContext& context);
// Fills w with normal random weights of standard deviation 0.02 (quantised types: values and scales), a pure function
// of `seed`.
void random_weights_cuda(const DeviceMatrix& w, std::uint64_t seed, const CudaContext& context);

}  // namespace mneme
