// Conversion of weights to the layouts of device_matrix.h, and back to bf16. All pointers are device memory.
//
// Async  enqueues; allocates nothing.
#pragma once

#include <cstdint>

#include "src/cuda/context.h"
#include "src/ops/gemm/device/device_matrix.h"

namespace mneme {

// Repacks rows as a checkpoint stores them, blocks [n, n_in / block], into rows [first, first + n) of a quantised matrix,
// whose memory is allocated and was zero where rows are padded (`values` of a matrix with other columns than whole chunks,
// or of a last octet with missing rows).
void repack_cuda(const std::byte* blocks, std::int64_t first, std::int64_t n, const DeviceMatrix& out,
                 const CudaContext& context);
// Converts n values of f32 or f16 to bf16.
void to_bf16_cuda(const std::byte* from, DType dtype, std::int64_t n, void* to, const CudaContext& context);
// Dequantises rows [first, first + n) of a quantised matrix to bf16 [n, n_in], for GEMMs with many rows. Each value is the
// CPU's (dequantise_row), rounded once. Requires  first a multiple of 8.
void dequantise_cuda(const DeviceMatrix& w, std::int64_t first, std::int64_t n, void* out, const CudaContext& context);
// out[i][j] = x[i][columns[j]]; x, out [n, k] bf16.
void gather_columns_cuda(const void* x, std::int32_t n, std::int64_t k, const std::int32_t* columns, void* out,
                         const CudaContext& context);
// out [n, n_in] f32 = rows ids[i] of a matrix of any type of the device.
void read_rows_cuda(const DeviceMatrix& w, const std::int32_t* ids, std::int32_t n, float* out,
                    const CudaContext& context);
// Fills w with random weights of standard deviation about 0.02, a pure function of `seed`: normal ones in bf16; quantised
// types: uniform codes, constant scales.
void random_weights_cuda(const DeviceMatrix& w, std::uint64_t seed, const CudaContext& context);

}  // namespace mneme
