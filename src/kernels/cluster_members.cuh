// A warp and the tokens of its cluster, in their order.
#pragma once

#include "src/kernels/cuda_common.cuh"

namespace mneme::cuda {

constexpr int kMembersAtOnce = 8;  // whose rows are loaded before the first is used

// Clusters of n tokens to shared memory, filled up to a multiple of 256 with none. The whole block takes part.
__device__ __forceinline__ void load_clusters(std::uint16_t* to, const std::uint16_t* from, int n) {
  for (int t = threadIdx.x; t < (n + 255) / 256 * 256; t += blockDim.x) to[t] = t < n ? from[t] : 0xffff;
  __syncthreads();
}

// rows(tokens, count) for the tokens t below n whose cluster[t], as load_clusters() leaves them, is c: ascending, at
// most kMembersAtOnce of them at a time. A whole warp, eight tokens a lane at once: most of them are others'. `found`
// is the warp's own, [kWarp + 256].
template <typename Rows>
__device__ __forceinline__ void for_members(const std::uint16_t* cluster, int n, int c, std::uint16_t* found,
                                            Rows&& rows) {
  const int lane = threadIdx.x % kWarp;
  const std::uint32_t wanted = static_cast<std::uint32_t>(c) << 16 | static_cast<std::uint32_t>(c);
  int n_found = 0;
  for (int base = 0; base < n; base += 8 * kWarp) {
    const uint4 v = *reinterpret_cast<const uint4*>(cluster + base + lane * 8);
    const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
    unsigned mine = 0;  // a bit a token
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t differs = words[i] ^ wanted;
      mine |= ((differs & 0xffffu) == 0 ? 1u : 0u) << (2 * i) | (differs >> 16 == 0 ? 2u : 0u) << (2 * i);
    }
    if (__ballot_sync(~0u, mine != 0) == 0) continue;
    const int before = sum_up_to(__popc(mine));
    const int all = __shfl_sync(~0u, before, kWarp - 1);
    for (int at = n_found + before - __popc(mine); mine != 0; mine &= mine - 1)
      found[at++] = static_cast<std::uint16_t>(base + lane * 8 + __ffs(static_cast<int>(mine)) - 1);
    __syncwarp();
    n_found += all;
    int done = 0;
    for (; n_found - done >= kMembersAtOnce; done += kMembersAtOnce) rows(found + done, kMembersAtOnce);
    n_found -= done;
    const std::uint16_t rest = found[min(done + lane, kWarp + 255)];
    __syncwarp();
    if (lane < n_found) found[lane] = rest;
    __syncwarp();
  }
  if (n_found > 0) rows(found, n_found);
  __syncwarp();
}

}  // namespace mneme::cuda
