// Products of one to eight rows of activations with a weight matrix on the device: what a decode step spends its time
// on. Bound by reading the weights once; the products are taken on tensor cores with f32 sums.
//
//   x  [m, k]      bf16             1 <= m <= 8
//   w  [n_out, k]  DeviceMatrix     k a multiple of 32
//
// Requires  x starts on 16 bytes and so does each of its rows.
// Numerics  x is bf16; q8_0 and q4_0 blocks are multiplied exactly and scaled in f32. Sums in f32, in a fixed order.
// Async     enqueues; allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/kernels/cuda_context.h"
#include "src/tensor/dtype.h"

namespace mneme {

// A weight matrix on the device.
//
//   kBF16  [n_out, k] as it is
//   kQ8_0  values: int8, in chunks of 64: chunk c of a row holds, for t = 0..3, bytes 8t..8t+7 of block 2c, then of
//          2c+1. scales f16 [n_out, scale_stride()], one a block
//   kQ4_0  values: nibbles, in chunks of 128: for t = 0..3, values 8t..8t+7 of blocks 4c .. 4c+3, value e of eight in
//          nibble (e % 2) * 4 + e / 2. scales as above
struct DeviceMatrix {
  const std::byte* values = nullptr;
  const std::byte* scales = nullptr;
  DType dtype = DType::kBF16;
  std::int64_t n_out = 0, n_in = 0;

  std::int64_t padded() const;  // n_in, up to a whole chunk
  std::size_t value_bytes_per_row() const;
  std::int64_t scale_stride() const;  // scales between rows: 16 bytes and their multiples
  std::size_t bytes() const;          // values and scales
};

// RMSNorm whose division comes after the product: x is residual * weight in bf16, and what is still missing is
// 1 / sqrt(sum / n + eps), where `sums` [n_parts, 8] f32 are partial sums of the residual's squares, by row of x.
struct DeferredNorm {
  const float* sums = nullptr;  // null: x is complete
  std::int32_t n_parts = 0;
  std::int32_t n = 0;  // width of the residual
  float eps = 0;
};

// y = x w^T (+ bias).   y [m, n_out] f32.
struct MatvecStore {
  float* y = nullptr;
  const float* bias = nullptr;  // [n_out] f32, or null
};
void matvec_cuda(const void* x, std::int32_t m, const DeviceMatrix& w, const DeferredNorm& norm, const MatvecStore& out,
                 const CudaContext& context);

// The residual stream takes the product up, and the next norm begins.
//
//   residual [m, n_out] f32: += x w^T
//   x_next   [m, n_out] bf16 out: residual * norm_weight
//   sums     [n_out / 16, 8] f32 out: DeferredNorm's, for x_next
struct MatvecResidual {
  float* residual = nullptr;
  const float* norm_weight = nullptr;  // [n_out] f32
  void* x_next = nullptr;
  float* sums = nullptr;
};
std::int32_t residual_parts(std::int64_t n_out);  // n_parts of `sums`
void matvec_residual_cuda(const void* x, std::int32_t m, const DeviceMatrix& w, const MatvecResidual& out,
                          const CudaContext& context);

// out = silu(gate) * up, where w is [gate; up], each [ffn, k].   out [m, ffn] bf16.
void matvec_swiglu_cuda(const void* x, std::int32_t m, const DeviceMatrix& w, const DeferredNorm& norm, void* out,
                        const CudaContext& context);

// ---- bringing weights into these forms

// Blocks as a checkpoint stores them (device memory, [n_out, n_in / 32] BlockQ8_0 or BlockQ4_0) -> a DeviceMatrix whose
// memory is there.
void repack_cuda(const std::byte* blocks, const DeviceMatrix& out, const CudaContext& context);
// f32 or f16 -> bf16, n values.
void to_bf16_cuda(const std::byte* from, DType dtype, std::int64_t n, void* to, const CudaContext& context);
// Rows [first, first + n) of w as bf16 [n, n_in]: for products with many rows.
void dequantise_cuda(const DeviceMatrix& w, std::int64_t first, std::int64_t n, void* out, const CudaContext& context);
// Normal numbers of standard deviation 0.02 (scales and values for the quantised types), a pure function of seed.
void random_weights_cuda(const DeviceMatrix& w, std::uint64_t seed, const CudaContext& context);

}  // namespace mneme
