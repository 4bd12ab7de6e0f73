// Top-k of keys[0, n) by one thread block of kRankThreads threads: indices ascending, larger index first among equals.
//
// One thread sets Ranker::least and most to bounds of the keys; then all threads call write_best. Keys are in shared or
// device memory, 16-byte aligned.
// Requires  k <= n.
#pragma once

#include "src/selection/topk/injected_walk.cuh"

namespace mneme::cuda {

constexpr int kRankThreads = 256, kRankWarps = kRankThreads / kWarp;
using RankTeam = topk::Team<kRankThreads>;
constexpr int kFew = kRankThreads;            // rivals, at most
constexpr int kChunk = topk::kBins / 2 * 32;  // keys whose marks are written at once
static_assert(kFew * 2 <= topk::kBins / 2);

struct Ranker {
  topk::Histogram<RankTeam> histogram;
  int of_warps[kRankWarps];
  std::uint32_t least, most;  // bounds of the keys
  std::uint32_t n_rivals;
  // The histogram's memory, once the threshold is known: a mask of a chunk of keys, then rivals.
  __device__ __forceinline__ std::uint32_t* mask() { return histogram.weights(); }
  __device__ __forceinline__ topk::Rivals rivals() {
    return {reinterpret_cast<std::uint64_t*>(histogram.weights() + kChunk / 32), &n_rivals};
  }
};

// Calls f(i, keys[i]) for all i below n, four per thread at a time.
template <typename F>
__device__ __forceinline__ void for_keys(const std::uint32_t* keys, int n, F&& f) {
#pragma unroll 2
  for (int i = 4 * threadIdx.x; i < n; i += 4 * kRankThreads) {
    const uint4 v = *reinterpret_cast<const uint4*>(keys + i);
    f(i, v.x);
    if (i + 1 < n) f(i + 1, v.y);
    if (i + 2 < n) f(i + 2, v.z);
    if (i + 3 < n) f(i + 3, v.w);
  }
}

// Writes what mark_chunk(base, own) marks of every chunk, in order.
template <typename F>
__device__ __forceinline__ void write_chunks(Ranker& r, int n, int first, std::int32_t* out, F&& mark_chunk) {
  int written = 0;
  for (int base = 0; base < n; base += kChunk) {
    const int own = min(n - base, kChunk);
    __syncthreads();  // the histogram, or the chunk before, has been read
    mark_chunk(base, own);
    __syncthreads();
    topk::write_marked(r.mask(), own, r.of_warps, written, [&](int at, int i) { out[at] = first + base + i; });
    if (base + kChunk < n)
      written += __reduce_add_sync(~0u, threadIdx.x % kWarp < kRankWarps ? r.of_warps[threadIdx.x % kWarp] : 0);
  }
}

__device__ __forceinline__ void write_best(Ranker& r, const std::uint32_t* keys, int n, int k, int first,
                                           std::int32_t* out) {
  using topk::Range;
  const RankTeam team;
  topk::Threshold t{Range::of(r.least, r.most), Range::of(0, static_cast<std::uint32_t>(n - 1)), k, n, n};
  if (threadIdx.x == 0) r.n_rivals = 0;
  topk::search(team, r.histogram, t, n <= kChunk ? kFew : 0,
               [&](auto&& f) { for_keys(keys, n, [&](int i, std::uint32_t key) { f(key, i, 1); }); });
  write_chunks(r, n, first, out, [&](int base, int own) {
    const topk::Rivals rivals = r.rivals();
    topk::mark<RankTeam>(r.mask(), own, [&](int from) {
      const uint4 four = *reinterpret_cast<const uint4*>(keys + base + from);
      const std::uint32_t of[4] = {four.x, four.y, four.z, four.w};
      unsigned taken = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = base + from + j;
        if (of[j] < t.keys.low || i >= n) continue;
        const bool within = t.within(of[j], i);
        if (within ? t.exact() : t.above(of[j], i)) taken |= 1u << j;
        if (within && !t.exact()) rivals.send(team, t, topk::rank_of(of[j], i));
      }
      return taken;
    });
    if (t.exact()) return;
    __syncthreads();
    rivals.take(team, t, 0, r.mask(), nullptr);
  });
}

// Benchmarks: as write_best(), an injected selection for a step of `length` tokens. Called behind a barrier.
__device__ inline void write_injected(Ranker& r, const topk::Walk& walk, int n, int k, int first, std::int32_t* out) {
  write_chunks(r, n, first, out, [&](int base, int own) {
    for (int i = threadIdx.x; i < (own + 31) / 32; i += kRankThreads) r.mask()[i] = 0;
    __syncthreads();
    walk.mark<kRankThreads>(k, base, own, r.mask());
  });
}

}  // namespace mneme::cuda
