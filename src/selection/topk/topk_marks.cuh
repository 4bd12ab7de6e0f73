// What a top-k takes: bits of a mask, set by the threshold or by comparing the few keys left one by one; then written in
// order.
#pragma once

#include "src/offload/device_cache_cuda.cuh"
#include "src/selection/topk/topk_cuda.cuh"

namespace mneme::cuda::topk {

// Sets the bits of [0, n) in a mask of whole 128 bits.   taken_of(i): the bits of i to i + 3
template <typename Team, typename F>
__device__ __forceinline__ void mark(std::uint32_t* mask, int n, F&& taken_of) {
  auto* bytes = reinterpret_cast<std::uint8_t*>(mask);
#pragma unroll 1
  for (int i = 4 * threadIdx.x; i < (n + 4 * kWarp - 1) / (4 * kWarp) * (4 * kWarp); i += 4 * Team::kThreads) {
    unsigned taken = 0;
    if (i < n) taken = taken_of(i);
    taken |= __shfl_down_sync(~0u, taken, 1) << 4;
    if (threadIdx.x % 2 == 0) bytes[i / 8] = static_cast<std::uint8_t>(taken);
  }
}

// Keys within an inexact threshold, of all blocks, in every block: `of` has room for all.
struct Rivals {
  std::uint64_t* of;
  std::uint32_t* n;  // of this block; 0 at the start

  template <typename Team>
  __device__ __forceinline__ void send(const Team& team, const Threshold& t, std::uint64_t rank) const {
    const int to = t.here_before + static_cast<int>(atomicAdd(n, 1u));
    if constexpr (Team::kAlone) {
      of[to] = rank;
    } else {
      for (int b = 0; b < team.blocks; ++b)
        put(address_in(&of[to], b), float2{__uint_as_float(static_cast<std::uint32_t>(rank)),
                                           __uint_as_float(static_cast<std::uint32_t>(rank >> 32))});
    }
  }
  // Marks the best of the block's own. Adds to `before` how many of earlier blocks are taken.   first: index of bit 0
  template <typename Team>
  __device__ __forceinline__ void take(const Team&, const Threshold& t, int first, std::uint32_t* mask,
                                       int* before) const {
    const int own = Team::kAlone ? 0 : t.here_before, stop = own + static_cast<int>(*n);
    for (int i = threadIdx.x; i < stop; i += Team::kThreads) {  // its own, and those of earlier blocks
      const std::uint64_t mine = of[i];
      int above = 0;
#pragma unroll 8
      for (int j = 0; j < t.here; ++j) above += of[j] > mine;
      if (above >= t.need) continue;
      if (!Team::kAlone && i < own) {
        atomicAdd(before, 1);
      } else {
        set_bit(mask, index_of(mine) - first);
      }
    }
  }
};

// Bits of the keys of indices i to i + 3 that are taken, of [bounds.x, bounds.y); sends rivals, where at most `few` are
// within.   rank_of(j): the j-th key's
template <typename Team, typename F>
__device__ __forceinline__ unsigned take_four(const Team& team, const Threshold& t, const Rivals& rivals, int few,
                                              const std::uint32_t (&keys)[4], int i, int2 bounds, F&& rank_of) {
  if (max(max(keys[0], keys[1]), max(keys[2], keys[3])) < t.keys.low) return 0;  // most
  unsigned taken = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (keys[j] < t.keys.low || i + j < bounds.x || i + j >= bounds.y) continue;
    const bool within = t.within(keys[j], i + j);
    if (within ? t.exact() : t.above(keys[j], i + j)) taken |= 1u << j;
    if (within && !t.exact() && t.n <= few) rivals.send(team, t, rank_of(j));
  }
  return taken;
}

// Calls put(at, i) for the marked i of [0, n), in order, `at` counting from `first`. Leaves counts in of_warps.
template <int kWarps, typename F>
__device__ __forceinline__ void write_marked(const std::uint32_t* mask, int n, int (&of_warps)[kWarps], int first,
                                             F&& put) {
  constexpr int kThreads = kWarps * kWarp;
  const auto* halves = reinterpret_cast<const std::uint16_t*>(mask);
  const int n_halves = (n + 15) / 16, some = (n_halves + kThreads - 1) / kThreads,
            from = min(n_halves, static_cast<int>(threadIdx.x) * some), to = min(n_halves, from + some);
  int mine = 0;
  for (int i = from; i < to; ++i) mine += __popc(halves[i]);
  int at = first + block_exclusive_scan(mine, of_warps);
  for (int i = from; i < to; ++i)
    for (std::uint32_t bits = halves[i]; bits != 0; bits &= bits - 1)
      put(at++, i * 16 + __ffs(static_cast<int>(bits)) - 1);
}

}  // namespace mneme::cuda::topk
