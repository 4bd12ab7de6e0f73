// Top-k of a KV head's tokens by a cluster of thread blocks: histogram, exact ranking of the candidates, and injected
// selections for benchmarks.
#pragma once

#include "src/selection/topk/token_mass_cuda.cuh"

namespace mneme::cuda::tokens {

constexpr int kBins = kWarp * kWarp;
constexpr int kMaxBlocks = kMaxSelectBlocks;
constexpr int kFew = 1024;  // candidates per KV head that are compared pairwise

template <int kWarps>
struct Selection {
  std::uint64_t rivals[kFew];                                        // of all blocks: value and position
  std::uint32_t bins[kBins];                                         // of this block
  std::uint32_t coarse[kMaxBlocks][kWarp], fine[kMaxBlocks][kWarp];  // of all blocks
  Totals totals;
  Weighed of_mass_warps[kWarps], of_blocks[kMaxBlocks];  // where the gate compares missing mass
  RowInfo info;
  int of_warps[kWarps];
  std::uint32_t n_candidates, n_taken;  // of this block
  int n_before, injected_before;        // candidates that earlier blocks take; injected ones before
  bool flagged;                         // with speculative selection: the KV head attends this step's selection
};

// Exclusive scan over the thread block.
__device__ __forceinline__ int block_exclusive_scan(int own, int* of_warps) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int up_to = warp_inclusive_scan(own);
  if (lane == kWarp - 1) of_warps[warp] = up_to;
  __syncthreads();
  return up_to - own + __reduce_add_sync(~0u, lane < warp ? of_warps[lane] : 0);
}

// Among 32 bins of every block, the one with the `left`-th largest.
struct Found {
  int part, above, here;          // above: in higher bins
  int above_before, here_before;  // in the blocks before this one
};
__device__ __forceinline__ Found find_part(const std::uint32_t (&of)[kMaxBlocks][kWarp], int blocks, int rank,
                                           int left) {
  const int lane = threadIdx.x % kWarp, part = kWarp - 1 - lane;
  int own = 0, before = 0;
#pragma unroll
  for (int b = 0; b < kMaxBlocks; ++b) {
    if (b >= blocks) break;
    const int v = static_cast<int>(of[b][part]);
    own += v;
    if (b < rank) before += v;
  }
  const int up_to = warp_inclusive_scan(own);
  const unsigned reached = __ballot_sync(~0u, up_to >= left);
  const int at = reached == 0 ? kWarp - 1 : __ffs(static_cast<int>(reached)) - 1;
  Found f;
  f.part = kWarp - 1 - at;
  f.here = __shfl_sync(~0u, own, at);
  f.above = __shfl_sync(~0u, up_to, at) - f.here;
  f.here_before = __shfl_sync(~0u, before, at);
  f.above_before = __reduce_add_sync(~0u, lane < at ? before : 0);
  return f;
}

// Value and position, all distinct; larger is better.
__device__ __forceinline__ std::uint64_t rank_of(float value, int i) {
  return static_cast<std::uint64_t>(sort_key(value)) << 32 | static_cast<std::uint32_t>(i);
}
__device__ __forceinline__ int position_of(std::uint64_t rank) {
  return static_cast<int>(rank & 0xffffffffu);
}
__device__ __forceinline__ void set_bit(std::uint32_t* mask, int i) {
  atomicOr(&mask[i / 32], 1u << i % 32);
}

// Radix selection of the smallest rank taken, for tokens with (nearly) equal values.
template <int kWarps, typename F>
__device__ std::uint64_t least_rank(int blocks, int need, Selection<kWarps>& sel, F&& for_candidates) {
  std::uint64_t prefix = 0;
  int left = need;
  for (int shift = 56; shift >= 0; shift -= 8) {
    cluster_sync();
    for (int i = threadIdx.x; i < 256; i += kWarps * kWarp) sel.bins[i] = 0;
    __syncthreads();
    for_candidates([&](std::uint64_t rank) {
      if (shift == 56 || rank >> (shift + 8) == prefix) atomicAdd(&sel.bins[rank >> shift & 255], 1u);
    });
    cluster_sync();
    int byte = 256, above = 0, here = 0;
    do {
      above += here;
      --byte;
      here = 0;
      for (int b = 0; b < blocks; ++b) here += static_cast<int>(get(address_in(&sel.bins[byte], b)));
    } while (above + here < left);
    left -= above;
    prefix = prefix << 8 | static_cast<std::uint64_t>(byte);
  }
  cluster_sync();
  return prefix;
}

// Benchmarks: whether a position is among the k of [skip, n) of which `turnover` differ from the previous step's. They
// follow a permutation of the candidates, so that none returns soon. before: how many precede `begin`.
template <int kThreads>
__device__ void inject_mask(const RowInfo& info, int n, int k, std::int64_t index, int begin, int own,
                            std::uint32_t* injected, int& before) {
  const int all = n - info.skip, stable = all >= 256 ? all / 128 * 128 : all;  // constant over many steps
  const auto m = static_cast<std::uint32_t>(max(stable, k));
  const std::uint32_t step = m % 7919 == 0 ? 7907 : 7919;
  const auto moved = static_cast<std::uint64_t>(static_cast<double>(info.length) * static_cast<double>(info.turnover) *
                                                info.n_injected);
  const auto first = static_cast<std::uint32_t>((moved + hash_random(static_cast<std::uint32_t>(index), 7)) % m);
  const double part = 1.0 / m;
  int mine = 0;
  for (int j = threadIdx.x; j < k; j += kThreads) {
    std::uint32_t at = first + static_cast<std::uint32_t>(j);
    if (at >= m) at -= m;
    // x % m without a 64-bit division, which would take longer than everything else here.
    const std::uint64_t x = static_cast<std::uint64_t>(at) * step;
    auto rest = static_cast<std::int64_t>(x) - static_cast<std::int64_t>(static_cast<double>(x) * part) * m;
    if (rest < 0) rest += m;
    if (rest >= m) rest -= m;
    const int i = info.skip + static_cast<int>(rest) - begin;
    mine += i < 0;
    if (i >= 0 && i < own) set_bit(injected, i);
  }
  mine = __reduce_add_sync(~0u, mine);
  if (threadIdx.x % kWarp == 0 && mine > 0) atomicAdd(&before, mine);
}

__host__ __device__ constexpr int share_of(int n, int blocks) {
  return (n + blocks * kStage - 1) / (blocks * kStage) * kStage;
}

}  // namespace mneme::cuda::tokens
