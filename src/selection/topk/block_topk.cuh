// Top-k by one thread block that has all keys, and the selection of a KV head's units: top-k, the missing mass of the gate
// (missing_mass() of group_pool.h), ids.
#pragma once

#include "src/selection/topk/select_skeleton.cuh"
#include "src/selection/topk/topk_marks.cuh"

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

// Writes first + the indices of the k largest of keys[0, n), ascending. Called by all threads, once one of them has set
// Ranker::least and most to bounds of the keys. Keys are in shared or device memory, 16-byte aligned.   Requires k <= n
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
      return topk::take_four(team, t, rivals, kFew, of, base + from, {0, n},
                             [&](int j) { return topk::rank_of(of[j], base + from + j); });
    });
    if (t.exact()) return;
    __syncthreads();
    rivals.take(team, t, 0, r.mask(), nullptr);
  });
}

// ---- the selection of a KV head's units

// A unit's softmax weight from its key; `top` is the largest logarithm of a weight.
struct Weights {
  float scale, top;
  __device__ __forceinline__ Weights(const SelectionPlan& plan, std::uint32_t best)
      : scale(pools_logs(plan.scores.pool) ? 1.0f : plan.scores.alpha),
        top(best == 0 ? -INFINITY : fminf(scale * value_of_key(best), 3.4028235e38f)) {}
  __device__ __forceinline__ float of(std::uint32_t key) const {
    if (key == 0 || top == -INFINITY) return 0;
    return __expf(fminf(fmaf(scale, value_of_key(key), -top), 60.0f));
  }
};

// A KV head's candidates, whose keys are known.
struct KeyedUnits {
  Candidates of;
  std::int64_t index;       // slot_index
  bool ranked = false;      // ids go from the best unit on, one each
  std::uint32_t fixed = 0;  // key of sinks and window as one more unit of the softmax; 0: they are not part of it
};

// Evaluates a gate by missing mass: the share of softmax over all units that is in the selection `selected` (unit
// numbers) and that the speculative selection lacks; with SelectionPlan::Gate::of_attended, divided by the share of
// what is attended with the speculative selection. keys: of all units; overwrites those of the speculative selection.
__device__ inline void gate_by_mass(const DeviceCache& s, const SelectionPlan& plan, const KeyedUnits& at,
                                    std::uint32_t best, std::uint32_t* keys, const std::int32_t* selected) {
  constexpr std::uint32_t kSpeculative = 1;  // no score has this key
  __shared__ float of_warps[3][kRankWarps];
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp;
  const std::int32_t* speculative = s.selection.ids[1] + at.index * s.max_listed;
  const int n_speculative = s.selection.n[1][at.index],
            own = speculative[min(tid, s.max_listed - 1)];  // both at once, early
  const Weights weights(plan, max(best, at.fixed));
  float all = tid == 0 ? weights.of(at.fixed) : 0.0f, attended = all, missing = 0;
  for_keys(keys, at.of.n, [&](int, std::uint32_t key) { all += weights.of(key); });
  __syncthreads();
  for (int i = tid; i < n_speculative; i += kRankThreads) {
    const int id = i == tid ? own : speculative[i], u = id / at.of.each - at.of.first;
    if (id % at.of.each == 0 && u >= 0 && u < at.of.n) attended += weights.of(keys[u]), keys[u] = kSpeculative;
  }
  bool any = false;
  __syncthreads();
  for (int i = tid; i < at.of.n_select; i += kRankThreads) {
    const std::uint32_t key = keys[selected[i] - at.of.first];
    if (key == kSpeculative) continue;
    any = true, missing += weights.of(key);
  }
  all = warp_sum(all), missing = warp_sum(missing), attended = warp_sum(attended);
  if (lane == 0) of_warps[0][warp] = all, of_warps[1][warp] = missing, of_warps[2][warp] = attended;
  any = __syncthreads_or(any);
  if (tid == 0) {
    all = missing = attended = 0;
    for (int w = 0; w < kRankWarps; ++w) all += of_warps[0][w], missing += of_warps[1][w], attended += of_warps[2][w];
    const float share = all == 0 ? 1.0f : fminf(missing / all, 1.0f),
                held = plan.gate.of_attended && all > 0 ? fminf(attended / all, 1.0f) : 1.0f;
    // Infinity where nothing attended has any weight.
    publish_mass_gate(s, plan.gate, at.index, !any ? 0.0f : share / held);
  }
}

// How many selected units are better than the i-th.
__device__ inline int rank_of(const Candidates& of, const std::uint32_t* keys, const std::int32_t* units, int i) {
  const auto rank = [&](int j) { return topk::rank_of(keys[units[j] - of.first], units[j]); };
  const std::uint64_t own = rank(i);
  int better = 0;
  for (int j = 0; j < of.n_select; ++j) better += rank(j) > own;
  return better;
}

// Writes the selection, ascending or ranked, and for this step the mass that the speculative selection lacks. Overwrites
// keys.   units: [max_listed], scratch; or, where units have one id each and are not ranked, the selection itself
__device__ __forceinline__ void write_units(const DeviceCache& s, const SelectionPlan& plan, SelectWhen when,
                                            const KeyedUnits& at, std::uint32_t* keys, std::int32_t* units,
                                            Ranker& ranker) {
  const Candidates& of = at.of;
  write_best(ranker, keys, of.n, of.n_select, of.first, units);
  if (when == SelectWhen::kNow && by_mass(plan)) {
    __syncthreads();
    gate_by_mass(s, plan, at, ranker.most, keys, units);
  }
  std::int32_t* ids = s.selection.ids[static_cast<int>(when)] + at.index * s.max_listed;
  const int n_ids = of.n_select * of.each;
  if (units != ids) {
    __syncthreads();
    for (int i = threadIdx.x; i < n_ids; i += kRankThreads)
      ids[at.ranked ? rank_of(of, keys, units, i) : i] = units[i / of.each] * of.each + i % of.each;
  }
  if (threadIdx.x == 0) s.selection.n[static_cast<int>(when)][at.index] = n_ids;
}

}  // namespace mneme::cuda
