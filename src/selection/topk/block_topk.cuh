// Top-k of keys[0, n) by one thread block of kRankThreads threads: indices ascending, larger index first among equals.
//
// One thread sets Ranker::least and most to bounds of the keys; then all threads call write_best. Keys are in shared or
// device memory, 16-byte aligned.
// Requires  k <= n.
#pragma once

#include "src/cuda/cluster.cuh"

namespace mneme::cuda {

constexpr int kRankThreads = 256, kRankWarps = kRankThreads / kWarp;
constexpr int kBins = 1024, kBinsEach = kBins / kRankThreads;

struct Ranker {
  alignas(16) int hist[kBins];
  int per_warp[2][kRankWarps];
  std::uint32_t least, most;  // bounds of the keys
  // Keys above [low, low + width) are taken, and `need` of the `equal` keys in it.
  std::uint32_t low, shift;  // width: 1 << shift
  int need, equal, n_out, n_candidates;
  __device__ static bool in(std::uint32_t key, std::uint32_t low, std::uint32_t shift) {
    return key >= low && static_cast<std::uint64_t>(key - low) >> shift == 0;
  }
  __device__ bool within(std::uint32_t key) const { return in(key, low, shift); }
  __device__ bool above(std::uint32_t key) const { return key >= low && !within(key); }
};

constexpr int kFew = kRankThreads;

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

// Narrows the threshold until it is exact, or few enough candidates remain to be compared one by one (`few`: the caller
// will do that).
//
// Bins divide the actual span of the keys: scores differ in their low bits only, so bins over the high bits would put
// all keys into two or three of them, round after round.
__device__ __forceinline__ void find_threshold(Ranker& r, const std::uint32_t* keys, int n, int k, bool few) {
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp;
  if (tid == 0) {
    r.low = r.least;
    r.shift = 32 - __clz(static_cast<int>(r.most - r.least));  // 32: a span of all 32 bits
    r.need = k, r.equal = n;
  }
  __syncthreads();
  while (r.equal != r.need && r.shift > 0 && !(few && r.equal <= kFew)) {
    const std::uint32_t low = r.low, shift = r.shift, next = shift > 10 ? shift - 10 : 0;
    for (int i = tid; i < kBins; i += kRankThreads) r.hist[i] = 0;
    __syncthreads();
    for_keys(keys, n, [&](int, std::uint32_t key) {
      if (Ranker::in(key, low, shift)) atomicAdd(&r.hist[key - low >> next], 1);
    });
    __syncthreads();
    // Thread i has the bins kBins - 1 - kBinsEach * i and down, so that the exclusive scan counts what is above.
    int own[kBinsEach], total = 0;
#pragma unroll
    for (int i = 0; i < kBinsEach; ++i) total += own[i] = r.hist[kBins - 1 - kBinsEach * tid - i];
    const int up_to = warp_inclusive_scan(total);
    if (lane == kWarp - 1) r.per_warp[0][warp] = up_to;
    const int need = r.need;
    __syncthreads();
    int before = up_to - total;
    for (int w = 0; w < warp; ++w) before += r.per_warp[0][w];
#pragma unroll
    for (int i = 0; i < kBinsEach; ++i) {
      if (before < need && before + own[i] >= need) {
        r.low = low + (static_cast<std::uint32_t>(kBins - 1 - kBinsEach * tid - i) << next);
        r.shift = next;
        r.need = need - before;
        r.equal = own[i];
      }
      before += own[i];
    }
    __syncthreads();
  }
}

// Writes indices in order, for any number of keys. Each warp has a range of them, which it reads twice: it counts what it
// will write, and writes behind what the warps before it write. One range for all warps needs the block's barriers for
// every 256 keys: 100 us for 32K.
__device__ inline void write_in_order(Ranker& r, const std::uint32_t* keys, int n, int first_page, std::int32_t* out) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int each = (n + kRankThreads - 1) / kRankThreads * kWarp, begin = min(n, warp * each),
            end = min(n, begin + each);
  const int skip = r.equal - r.need;  // equals that are left out, the first ones
  int above = 0, same = 0;
  for (int i = begin + lane; i < end; i += kWarp) above += r.above(keys[i]), same += r.within(keys[i]);
  above = __reduce_add_sync(~0u, above), same = __reduce_add_sync(~0u, same);
  if (lane == 0) r.per_warp[0][warp] = above, r.per_warp[1][warp] = same;
  __syncthreads();
  int above_before = 0, same_before = 0;
  for (int w = 0; w < warp; ++w) above_before += r.per_warp[0][w], same_before += r.per_warp[1][w];
  int at = above_before + max(0, same_before - skip);
  for (int base = begin; base < end; base += kWarp) {
    const bool there = base + lane < end;
    const std::uint32_t key = there ? keys[base + lane] : 0;
    const bool equal = there && r.within(key);
    const unsigned before = (1u << lane) - 1, equals = __ballot_sync(~0u, equal);
    const bool taken = there && (r.above(key) || (equal && same_before + __popc(equals & before) >= skip));
    const unsigned takens = __ballot_sync(~0u, taken);
    if (taken) out[at + __popc(takens & before)] = first_page + base + lane;
    same_before += __popc(equals), at += __popc(takens);
  }
  __syncthreads();
}

// For few keys: taken in any order, candidates at the threshold compared, then sorted.
__device__ inline void write_few(Ranker& r, const std::uint32_t* keys, int n, int k, int first_page,
                                 std::int32_t* out) {
  static_assert(3 * kFew <= kBins);
  const int tid = threadIdx.x;
  int* taken = r.hist;
  auto* candidates = reinterpret_cast<std::uint64_t*>(r.hist + kFew);  // key, index: equals by their index
  if (tid == 0) r.n_out = r.n_candidates = 0;
  __syncthreads();
  const std::uint32_t low = r.low;
  const bool compare = r.equal != r.need;
  for_keys(keys, n, [&](int i, std::uint32_t key) {
    if (key < low) return;
    if (compare && r.within(key)) {
      candidates[atomicAdd(&r.n_candidates, 1)] = static_cast<std::uint64_t>(key) << 32 | static_cast<unsigned>(i);
    } else {
      taken[atomicAdd(&r.n_out, 1)] = i;
    }
  });
  __syncthreads();
  if (compare) {
    if (tid < r.equal) {
      const std::uint64_t own = candidates[tid];
      int rank = 0;
      for (int i = 0; i < r.equal; ++i) rank += candidates[i] > own;
      if (rank < r.need) taken[atomicAdd(&r.n_out, 1)] = static_cast<int>(own);
    }
    __syncthreads();
  }
  if (tid >= k) return;
  const int own = taken[tid];
  int rank = 0;
  for (int i = 0; i < k; ++i) rank += taken[i] < own;
  out[rank] = first_page + own;
}

__device__ __forceinline__ void write_best(Ranker& r, const std::uint32_t* keys, int n, int k, int first_page,
                                           std::int32_t* out) {
  const bool few = k <= kFew;
  find_threshold(r, keys, n, k, few);
  if (few && (r.equal == r.need || r.equal <= kFew)) {
    write_few(r, keys, n, k, first_page, out);
  } else {
    write_in_order(r, keys, n, first_page, out);
  }
}

}  // namespace mneme::cuda
