// Blocks from anywhere in a pool to one place, moved by the device itself: out of mapped host memory this is the recall
// that unit_recall_cuda.cu is made of, by itself, to be measured.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/kernels/cuda_context.h"

namespace mneme {

// Who moves: a warp's loads and stores, as many blocks at once as a thread has registers for; or bulk copies, one
// thread of each block of threads (compute capability 9.0 and newer; elsewhere the loads do it).
enum class GatherBy : std::uint8_t { kLoads, kBulkCopies };

// to [n][block_bytes] = the blocks ids[i] of `pool`, in order.   ids [n] i32 on the device.
// Requires  block_bytes a multiple of 512, at most 2^20.   Async  enqueues; allocates nothing.
void gather_blocks_cuda(void* to, const void* pool, const std::int32_t* ids, std::int32_t n, std::int32_t block_bytes,
                        std::int32_t blocks_of_threads, GatherBy by, const CudaContext& context);

}  // namespace mneme
