// A thread block copies one block after the other. Two thread blocks an SM have 4 MiB in flight, which is
// more than the link needs.
#include <algorithm>

#include "src/cuda/common.cuh"
#include "src/kv/block_copy.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256, kInFlight = 4;
constexpr std::int32_t kThreadBlocks = 264;

__global__ void __launch_bounds__(kThreads)
    copy_kernel(uint4* pool, uint4* host, const BlockPlace* places, int n, int words, bool out) {
  for (int b = static_cast<int>(blockIdx.x); b < n; b += static_cast<int>(gridDim.x)) {
    const BlockPlace p = places[b];
    uint4 *const block = pool + std::int64_t{p.block} * words, *const place = host + std::int64_t{p.place} * words;
    const uint4* from = out ? block : place;
    uint4* to = out ? place : block;
    for (int first = static_cast<int>(threadIdx.x); first < words; first += kThreads * kInFlight) {
      uint4 v[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        if (first + i * kThreads < words) v[i] = __ldcg(from + first + i * kThreads);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        if (first + i * kThreads < words) __stcg(to + first + i * kThreads, v[i]);
    }
  }
}

}  // namespace

void copy_blocks_cuda(std::byte* pool, std::byte* host, const BlockPlace* places, std::int32_t n,
                      std::size_t block_bytes, BlocksGo go, const CudaContext& context) {
  if (n == 0) return;
  launch(context, "copy_blocks", copy_kernel, dim3(static_cast<unsigned>(std::min(n, kThreadBlocks))), dim3(kThreads),
         0, reinterpret_cast<uint4*>(pool), reinterpret_cast<uint4*>(host), places, n,
         static_cast<int>(block_bytes / sizeof(uint4)), go == BlocksGo::kOut);
}

}  // namespace mneme
