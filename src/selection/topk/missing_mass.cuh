// Softmax mass that a speculative selection misses, by one thread block: missing_mass() of group_pool.h.
#pragma once

#include "src/selection/topk/block_topk.cuh"
#include "src/selection/topk/select_common.cuh"

namespace mneme::cuda {

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

// A KV head's candidates: units first .. first + n - 1 of `each` ids, n_select of them selected.
struct RankedUnits {
  std::int64_t index;  // slot_index
  int first, n, n_select, each;
  std::uint32_t fixed = 0;  // key of sinks and window as one more unit of the softmax; 0: they are not part of it
};

// Share of softmax over all units in the selection `selected` (unit numbers) that the speculative selection lacks, to
// DeviceCache::mass; with SlotGate::kAttendedMass, divided by the share of what is attended with the speculative selection.
// keys: of all units; overwrites those of the speculative selection.
__device__ inline void compute_missing_mass(const DeviceCache& s, const SelectionPlan& plan, const RankedUnits& at,
                                            std::uint32_t best, std::uint32_t* keys, const std::int32_t* selected) {
  constexpr std::uint32_t kSpeculative = 1;  // no score has this key
  __shared__ float of_warps[3][kRankWarps];
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp;
  const std::int32_t* speculative = s.selection.ids[1] + at.index * s.max_listed;
  const int n_speculative = s.selection.n[1][at.index],
            own = speculative[min(tid, s.max_listed - 1)];  // both at once, early
  const Weights weights(plan, max(best, at.fixed));
  float all = tid == 0 ? weights.of(at.fixed) : 0.0f, attended = all, missing = 0;
  for_keys(keys, at.n, [&](int, std::uint32_t key) { all += weights.of(key); });
  __syncthreads();
  for (int i = tid; i < n_speculative; i += kRankThreads) {
    const int id = i == tid ? own : speculative[i], u = id / at.each - at.first;
    if (id % at.each == 0 && u >= 0 && u < at.n) attended += weights.of(keys[u]), keys[u] = kSpeculative;
  }
  bool any = false;
  __syncthreads();
  for (int i = tid; i < at.n_select; i += kRankThreads) {
    const std::uint32_t key = keys[selected[i] - at.first];
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
                held = plan.gate.kind == SlotGate::kAttendedMass && all > 0 ? fminf(attended / all, 1.0f) : 1.0f;
    s.selection.mass[at.index] = !any ? 0.0f : share / held;  // infinity where nothing attended has any weight
  }
}

}  // namespace mneme::cuda
