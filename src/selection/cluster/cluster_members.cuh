// A warp's iteration over the tokens of its cluster, in order.
#pragma once

#include "src/cuda/common.cuh"
#include "src/selection/cluster/kmeans_cuda.h"

namespace mneme::cuda {

// Rows loaded before the first is used: a cluster may have a thousand tokens, summed by one warp.
constexpr int kMembersAtOnce = 32;
constexpr int kMemberWords = kMaxKmeansTokens / 32;

// One bit per token for each cluster in first .. first + kClusters - 1. Called by the whole block.
template <int kClusters>
__device__ __forceinline__ void mark_members(std::uint32_t (&marks)[kClusters][kMemberWords],
                                             const std::uint16_t* cluster, int n, int first) {
  for (int i = threadIdx.x; i < kClusters * kMemberWords; i += blockDim.x)
    marks[i / kMemberWords][i % kMemberWords] = 0;
  __syncthreads();
  constexpr int kAtOnce = 16;
  for (int base = 0; base < n; base += kAtOnce * blockDim.x) {
    unsigned of[kAtOnce];
    bool any = false;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int t = base + k * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
      of[k] = static_cast<unsigned>(t < n ? cluster[t] : 0xffff) - static_cast<unsigned>(first);
      any = any || of[k] < kClusters;
    }
    if (!any) continue;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int t = base + k * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
      if (of[k] < kClusters) atomicOr(&marks[of[k]][t / 32], 1u << (t % 32));
    }
  }
  __syncthreads();
}

// Calls rows(tokens, count) for the marked tokens below n, ascending, kMembersAtOnce at a time and the rest at the end.
// Called by a whole warp, one word per lane. `found` is the warp's own, [kWarp * 33].
template <typename Rows>
__device__ __forceinline__ void for_members(const std::uint32_t* marks, int n, std::uint16_t* found, Rows&& rows) {
  static_assert(kMembersAtOnce <= kWarp);
  const int lane = threadIdx.x % kWarp;
  int n_found = 0;
  for (int base = 0; base < n; base += 32 * kWarp) {
    const bool last = base + 32 * kWarp >= n;
    std::uint32_t mine = marks[base / 32 + lane];
    if (!last && __ballot_sync(~0u, mine != 0) == 0) continue;
    const int before = warp_inclusive_scan(__popc(mine));
    const int all = __shfl_sync(~0u, before, kWarp - 1);
    for (int at = n_found + before - __popc(mine); mine != 0; mine &= mine - 1)
      found[at++] = static_cast<std::uint16_t>(base + lane * 32 + __ffs(static_cast<int>(mine)) - 1);
    __syncwarp();
    n_found += all;
    int done = 0;
    while (n_found - done >= (last ? 1 : kMembersAtOnce)) {
      const int count = min(kMembersAtOnce, n_found - done);
      rows(found + done, count);
      done += count;
    }
    n_found -= done;
    const std::uint16_t rest = lane < n_found ? found[done + lane] : std::uint16_t{0};
    __syncwarp();
    if (lane < n_found) found[lane] = rest;
    __syncwarp();
  }
}

}  // namespace mneme::cuda
