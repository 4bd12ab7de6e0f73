// Top-k of a KV head's keys by a thread block, or by a cluster of them that have a share each: larger keys first, among
// equals the larger index. Units may have weights: as many are taken as have the wanted weight.
//
// search() narrows the span of the keys, then of the indices of equal keys, by a histogram of 1,024 bins, until the
// threshold is exact or few keys are left. topk_marks.cuh marks and writes what is taken.
#pragma once

#include "src/cuda/cluster.cuh"

namespace mneme::cuda::topk {

constexpr int kBinBits = 10, kBins = 1 << kBinBits;
static_assert(kBins == kWarp * kWarp);

// Threads that select together: thread block `rank` of a cluster of `blocks`, at most kMaxBlocks.
template <int kThreadsEach, int kMaxBlocks = 1>
struct Team {
  static constexpr int kThreads = kThreadsEach, kWarps = kThreads / kWarp, kMost = kMaxBlocks;
  static constexpr bool kAlone = kMost == 1;
  int blocks = 1, rank = 0;
  __device__ __forceinline__ void arrive() const {
    if constexpr (!kAlone) cluster_arrive();
  }
  __device__ __forceinline__ void wait() const {
    if constexpr (kAlone) {
      __syncthreads();
    } else {
      cluster_wait();
    }
  }
  __device__ __forceinline__ void sync() const { arrive(), wait(); }
};

// Key and index, all distinct; larger is better.
__device__ __forceinline__ std::uint64_t rank_of(std::uint32_t key, int i) {
  return static_cast<std::uint64_t>(key) << 32 | static_cast<std::uint32_t>(i);
}
__device__ __forceinline__ int index_of(std::uint64_t rank) {
  return static_cast<int>(rank & 0xffffffffu);
}
__device__ __forceinline__ void set_bit(std::uint32_t* mask, int i) {
  atomicOr(&mask[i / 32], 1u << i % 32);
}

// ---- the threshold

// [low, low + 2^shift), for values from the low of the first range on: what goes beyond 2^32 are values below that.
struct Range {
  std::uint32_t low, shift;
  __device__ __forceinline__ bool has(std::uint32_t v) const {
    return v - low <= static_cast<std::uint32_t>((std::uint64_t{1} << shift) - 1);
  }
  __device__ __forceinline__ bool below(std::uint32_t v) const { return v >= low && !has(v); }
  static __device__ __forceinline__ Range of(std::uint32_t least, std::uint32_t most) {
    return {least, 32u - static_cast<std::uint32_t>(__clz(static_cast<int>(most - least)))};  // 32: all 32 bits
  }
};

// What is above both ranges is taken, and `need` of the weight `here` of the n keys within.
struct Threshold {
  Range keys, indices;  // indices: of keys that are within
  int need, here, n;
  int before = 0, here_before = 0;  // of earlier thread blocks, once a bin is found: weight above, and within
  __device__ __forceinline__ bool exact() const { return need == here; }
  __device__ __forceinline__ bool within(std::uint32_t key, int i) const {
    return keys.has(key) && indices.has(static_cast<std::uint32_t>(i));
  }
  __device__ __forceinline__ bool above(std::uint32_t key, int i) const {
    return keys.below(key) || (keys.has(key) && indices.below(static_cast<std::uint32_t>(i)));
  }
  // Weight that earlier thread blocks take for certain.
  __device__ __forceinline__ int first() const { return before + (exact() ? here_before : 0); }
};

// Shared memory of each thread block.
template <typename Team, bool kWeighs = false>
struct Histogram {
  static_assert(!kWeighs || Team::kAlone);
  alignas(16) std::uint32_t of[kWarp][kWarp];   // weight by bin, of this block's keys
  std::uint32_t n[kWeighs ? kWarp : 1][kWarp];  // keys by bin
  std::uint32_t coarse[Team::kMost][kWarp];     // of all blocks: weight of 32 bins at a time,
  std::uint32_t fine[Team::kMost][kWarp];       // and of the 32 bins in which the threshold is

  __device__ __forceinline__ std::uint32_t* weights() { return &of[0][0]; }
  __device__ __forceinline__ std::uint32_t* counts() { return &n[0][0]; }
  __device__ __forceinline__ void clear() {
    for (int i = threadIdx.x; i < kBins; i += Team::kThreads) {
      weights()[i] = 0;
      if constexpr (kWeighs) counts()[i] = 0;
    }
  }
  __device__ __forceinline__ void add(std::uint32_t bin, int weight) {
    atomicAdd(weights() + bin, static_cast<std::uint32_t>(weight));
    if constexpr (kWeighs) atomicAdd(counts() + bin, 1u);
  }
};

// Among 32 bins of every block, the one with the `left`-th largest.
struct FoundBin {
  int at, above, here;            // above: in higher bins
  int above_before, here_before;  // in the blocks before this one
};
template <typename Team>
__device__ __forceinline__ FoundBin find_part(const Team& team, const std::uint32_t (*of)[kWarp], int left) {
  const int lane = threadIdx.x % kWarp, part = kWarp - 1 - lane;
  int own = 0, before = 0;
#pragma unroll
  for (int b = 0; b < Team::kMost; ++b) {
    if (b >= team.blocks) break;
    const int v = static_cast<int>(of[b][part]);
    own += v;
    if (b < team.rank) before += v;
  }
  const int up_to = warp_inclusive_scan(own);
  const unsigned reached = __ballot_sync(~0u, up_to >= left);
  const int at = reached == 0 ? kWarp - 1 : __ffs(static_cast<int>(reached)) - 1;
  FoundBin f{};
  f.at = kWarp - 1 - at;
  f.here = __shfl_sync(~0u, own, at);
  f.above = __shfl_sync(~0u, up_to, at) - f.here;
  if constexpr (!Team::kAlone) {
    f.here_before = __shfl_sync(~0u, before, at);
    f.above_before = __reduce_add_sync(~0u, lane < at ? before : 0);
  }
  return f;
}

// Narrows `range`, one of the threshold's, to the bin of 2^next that the last of the wanted weight is in. Blocks have
// counted their keys, and wait for one another once: every warp then knows the bin.   meanwhile: called before the wait
template <typename Team, bool kWeighs, typename F>
__device__ __forceinline__ void find_bin(const Team& team, Histogram<Team, kWeighs>& h, Threshold& t, Range& range,
                                         std::uint32_t next, F&& meanwhile) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int part = 2 * warp; part < kWarp; part += 2 * Team::kWarps) {
    const std::uint32_t x = __reduce_add_sync(~0u, h.of[part][lane]), y = __reduce_add_sync(~0u, h.of[part + 1][lane]);
    if constexpr (Team::kAlone) {
      if (lane == 0) h.coarse[0][part] = x, h.coarse[0][part + 1] = y;
    } else if (lane < team.blocks) {
      const std::uint32_t to = address_in(&h.coarse[team.rank][part], lane);
      put(to, x), put(to + 4, y);
    }
  }
  team.arrive();
  meanwhile();
  team.wait();
  const FoundBin coarse = find_part(team, h.coarse, t.need);
  const std::uint32_t(*of)[kWarp] = &h.of[coarse.at];
  if constexpr (!Team::kAlone) {
    for (int b = warp; b < team.blocks; b += Team::kWarps) h.fine[b][lane] = get(address_in(&h.of[coarse.at][lane], b));
    __syncthreads();
    of = h.fine;
  }
  const FoundBin fine = find_part(team, of, t.need - coarse.above);
  const int bin = coarse.at * kWarp + fine.at;
  range = {range.low + (static_cast<std::uint32_t>(bin) << next), next};
  t.need -= coarse.above + fine.above, t.here = fine.here;
  t.n = kWeighs ? static_cast<int>(h.counts()[bin]) : fine.here;
  t.before += coarse.above_before + fine.above_before, t.here_before = fine.here_before;
}

// Narrows a range until the threshold is exact or at most `few` keys are within. Bins divide the actual span: scores
// differ in their low bits only, so bins over the high bits would put all keys into two or three of them, round after
// round.   for_values(f): calls f(value, weight) for the block's keys, or indices
template <typename Team, bool kWeighs, typename F>
__device__ __forceinline__ void narrow(const Team& team, Histogram<Team, kWeighs>& h, Threshold& t, Range& range,
                                       int few, F&& for_values) {
  while (!t.exact() && range.shift > 0 && t.n > few) {
    const std::uint32_t next = range.shift > kBinBits ? range.shift - kBinBits : 0;
    team.sync();  // the histogram has been read
    h.clear();
    __syncthreads();
    for_values([&](std::uint32_t v, int weight) {
      if (range.has(v)) h.add(v - range.low >> next, weight);
    });
    __syncthreads();
    find_bin(team, h, t, range, next, [] {});
  }
}

// for_keys(f): calls f(key, index, weight) for the block's keys.
template <typename Team, bool kWeighs, typename F>
__device__ __forceinline__ void search(const Team& team, Histogram<Team, kWeighs>& h, Threshold& t, int few,
                                       F&& for_keys) {
  narrow(team, h, t, t.keys, few,
         [&](auto&& f) { for_keys([&](std::uint32_t key, int, int weight) { f(key, weight); }); });
  narrow(team, h, t, t.indices, few, [&](auto&& f) {
    for_keys([&](std::uint32_t key, int i, int weight) {
      if (t.keys.has(key)) f(static_cast<std::uint32_t>(i), weight);
    });
  });
}

}  // namespace mneme::cuda::topk
