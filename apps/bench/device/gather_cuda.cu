#include "apps/bench/device/gather_cuda.h"

#include <algorithm>

#include "src/cuda/bulk_copy.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 512, kWarps = kThreads / kWarp;
constexpr int kStages = 12, kIdsAtOnce = 1024;

struct GatherArgs {
  std::byte* to;
  const std::byte* pool;
  const std::int32_t* ids;
  int n, block_bytes;
};

// A warp's lanes keep 16 bytes of each of kPieceLoads rows of 512 bytes in flight, of one block or of several.
__global__ void __launch_bounds__(kThreads) load_kernel(GatherArgs a) {
  constexpr int kRow = kWarp * 16;
  const int lane = threadIdx.x % kWarp, rows = a.block_bytes / kRow;
  const std::int64_t total = static_cast<std::int64_t>(a.n) * rows;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp) * kPieceLoads;
       first < total; first += warps * kPieceLoads) {
    std::int32_t id[kPieceLoads];
    uint4 v[kPieceLoads];
#pragma unroll
    for (int i = 0; i < kPieceLoads; ++i) id[i] = a.ids[min(first + i, total - 1) / rows];
#pragma unroll
    for (int i = 0; i < kPieceLoads; ++i)
      v[i] = load_stream(a.pool + static_cast<std::int64_t>(id[i]) * a.block_bytes +
                         min(first + i, total - 1) % rows * kRow + lane * 16);
#pragma unroll
    for (int i = 0; i < kPieceLoads; ++i)
      if (first + i < total) *reinterpret_cast<uint4*>(a.to + (first + i) * kRow + lane * 16) = v[i];
  }
}

__global__ void __launch_bounds__(kWarp) bulk_kernel(GatherArgs a) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::uint8_t ring[];
  __shared__ std::uint64_t barriers[kStages];
  __shared__ std::int32_t ids[kIdsAtOnce];  // staged: reading each id from global memory would stall the issuing thread
  BulkCopies<kStages> copies{shared_address(ring), shared_address(barriers)};
  copies.piece_bytes = min(kBulkBytes, a.block_bytes);
  while (a.block_bytes % copies.piece_bytes != 0) copies.piece_bytes -= 512;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) barrier_init(copies.barriers + i * 8, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  const int pieces = a.block_bytes / copies.piece_bytes, blocks = gridDim.x;
  const int own = (a.n - static_cast<int>(blockIdx.x) + blocks - 1) / blocks;
  for (int first = 0; first < own; first += kIdsAtOnce) {
    const int n = min(kIdsAtOnce, own - first);
    __syncwarp();
    for (int i = threadIdx.x; i < n; i += kWarp) ids[i] = a.ids[blockIdx.x + (first + i) * blocks];
    __syncwarp();
    if (threadIdx.x != 0) continue;
    copies.run(
        n * pieces,
        [&](int i) {
          return a.pool + static_cast<std::int64_t>(ids[i / pieces]) * a.block_bytes + i % pieces * copies.piece_bytes;
        },
        [&](int i) {
          return a.to + static_cast<std::int64_t>(blockIdx.x + (first + i / pieces) * blocks) * a.block_bytes +
                 i % pieces * copies.piece_bytes;
        });
  }
#endif
}

bool has_bulk_copies() {
  static const bool has = [] {
    cuda_check(cudaFuncSetAttribute(bulk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kStages * kBulkBytes),
               "gather's shared memory");
    return has_hopper_code();
  }();
  return has;
}

}  // namespace

void gather_blocks_cuda(void* to, const void* pool, const std::int32_t* ids, std::int32_t n, std::int32_t block_bytes,
                        std::int32_t thread_blocks, GatherBy by, const CudaContext& context) {
  if (n == 0) return;
  const GatherArgs args{static_cast<std::byte*>(to), static_cast<const std::byte*>(pool), ids, n, block_bytes};
  const dim3 grid(static_cast<unsigned>(thread_blocks));
  if (by == GatherBy::kBulkCopies && has_bulk_copies()) {
    launch(context, "gather_blocks", bulk_kernel, grid, dim3(kWarp), std::size_t{kStages} * kBulkBytes, args);
  } else {
    launch(context, "gather_blocks", load_kernel, grid, dim3(kThreads), 0, args);
  }
}

}  // namespace mneme
