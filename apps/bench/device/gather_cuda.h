// Gathers blocks of a pool into one buffer with a kernel: from mapped host memory, the recall of unit_recall_cuda.cu by
// itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/context.h"

namespace mneme {

// kLoads: warps load and store, as many blocks in flight as a thread has registers for. kBulkCopies: one thread per
// thread block issues bulk copies (kernels compiled for 9.0 or newer; elsewhere kLoads is used).
enum class GatherBy : std::uint8_t { kLoads, kBulkCopies };

// to [n][block_bytes] = blocks ids[i] of `pool`, in order.   ids [n] i32 on the device
// Requires  block_bytes a multiple of 512, at most 2^20.
// Async  enqueues; allocates nothing.
void gather_blocks_cuda(void* to, const void* pool, const std::int32_t* ids, std::int32_t n, std::int32_t block_bytes,
                        std::int32_t thread_blocks, GatherBy by, const CudaContext& context);

}  // namespace mneme
