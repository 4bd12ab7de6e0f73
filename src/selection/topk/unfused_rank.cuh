// From scores to a selection, for the kernels of the unfused selection: log-sum-exps, pool, top-k, held units, missing
// mass; by one thread block a KV head, or by a cluster of them.
#pragma once

#include "src/selection/topk/block_topk.cuh"
#include "src/selection/topk/unfused_item.cuh"

namespace mneme::cuda {

constexpr int kMaxGroup = kMaxSlotGroup;
static_assert(kScoreThreads == kRankThreads && kScoreThreads == kSelectThreads);

// A head's log-sum-exp over its n scores. Called by a whole warp.
__device__ __forceinline__ float head_lse(const float* scores, int n, float alpha) {
  float max = -INFINITY, sum = 0;
  for (int i = threadIdx.x % kWarp; i < n; i += kWarp) {
    const float v = scores[i];
    if (isnan(v)) continue;
    add_sum(max, sum, fminf(alpha * v, 3.4028235e38f), 1.0f);
  }
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) add_sum(max, sum, __shfl_xor_sync(~0u, max, d), __shfl_xor_sync(~0u, sum, d));
  return max == -INFINITY ? -INFINITY : max + logf(sum);
}

// Log-sum-exps of a KV head's query heads, in shared memory.
struct HeadSums {
  float all[kMaxGroup];    // over the units; with Domain::kAttention over sinks and window too
  float fixed[kMaxGroup];  // over sinks and window
};

// One thread of the last warp per query head.
__device__ __forceinline__ void load_fixed(const Item& item, HeadSums& sums) {
  const int g = kScoreThreads - 1 - static_cast<int>(threadIdx.x);
  if (item.plan.scores.domain == Domain::kAttention && g < item.n_scored) sums.fixed[g] = item.terms[g].fixed_log();
}

// Key of sinks and window as one more unit; 0: they are not part of the softmax.
template <int kMost>
__device__ inline std::uint32_t fixed_key(const Item& item, const HeadSums& sums) {
  if (item.plan.scores.domain == Domain::kCandidates) return 0;
  float v[kMost];
#pragma unroll
  for (int g = 0; g < kMost; ++g)
    if (g < item.n_scored)
      v[g] = pooled_value(sums.fixed[g] / item.plan.scores.alpha, pools_logs(item.plan.scores.pool),
                          item.plan.scores.alpha, sums.all[g]);
  return pool_unit(item.plan.scores.pool, item.n_scored, v);
}

// A head's log-sum-exp over its units, with that of sinks and window.
__device__ __forceinline__ float with_fixed(float lse, float fixed) {
  float sum = lse == -INFINITY ? 0.0f : 1.0f;
  add_sum(lse, sum, fixed, 1.0f);
  return lse + logf(sum);
}

// Pools all units to keys, which overwrite the first head's scores, and sets the ranker's bounds.
__device__ inline std::uint32_t* pool_units(const UnfusedArgs& p, const Item& item, HeadSums& sums, Ranker& ranker) {
  const int tid = threadIdx.x, warp = tid / kWarp;
  const bool logs = pools_logs(item.plan.scores.pool);
  load_fixed(item, sums);
  __syncthreads();
  for (int g = warp; logs && g < item.n_scored; g += kScoreWarps) {
    const float v = head_lse(item.scores + g * p.width, item.n, item.plan.scores.alpha);
    if (tid % kWarp == 0)
      sums.all[g] = item.plan.scores.domain == Domain::kAttention ? with_fixed(v, sums.fixed[g]) : v;
  }
  if (tid == 0) ranker.least = ~0u, ranker.most = 0;
  __syncthreads();
  auto* keys = reinterpret_cast<std::uint32_t*>(item.scores);
  std::uint32_t least = ~0u, most = 0;
  for (int i = tid; i < item.n; i += kScoreThreads) {
    float v[kMaxGroup];
#pragma unroll
    for (int g = 0; g < kMaxGroup; ++g)
      if (g < item.n_scored)
        v[g] = pooled_value(item.scores[g * p.width + i], logs, item.plan.scores.alpha, sums.all[g]);
    const std::uint32_t key = pool_unit(item.plan.scores.pool, item.n_scored, v);
    keys[i] = key;
    least = min(least, key), most = max(most, key);
  }
  least = __reduce_min_sync(~0u, least), most = __reduce_max_sync(~0u, most);
  if (tid % kWarp == 0) atomicMin(&ranker.least, least), atomicMax(&ranker.most, most);
  __syncthreads();
  return keys;
}

// SelectionPlan::hold: sets the keys so that the item's best units are the `hold` best of all and the best of those that
// the step before attended (hold_units() of decode_selection.cc).   units: scratch
__device__ inline void hold_units(const UnfusedArgs& p, const Item& item, std::uint32_t* keys, std::int32_t* units,
                                  Ranker& ranker) {
  const int tid = threadIdx.x, n_new = min(item.plan.hold, item.n_select);
  write_best(ranker, keys, item.n, n_new, item.first, units);
  __syncthreads();
  const std::int32_t* held = p.s.selection.ids[0] + item.index * p.s.max_listed;
  auto* held_keys =
      reinterpret_cast<std::uint32_t*>(p.s.selection.ids[1]) + item.index * p.s.max_listed;  // not used else
  const auto key_of = [&](std::int32_t unit) -> std::uint32_t& { return keys[unit - item.first]; };
  for (int j = tid; j < item.n_select; j += kScoreThreads) held_keys[j] = key_of(held[j * item.each] / item.each);
  __syncthreads();
  for (int i = tid; i < item.n; i += kScoreThreads) keys[i] = 0;
  __syncthreads();
  for (int j = tid; j < item.n_select; j += kScoreThreads)
    key_of(held[j * item.each] / item.each) = max(held_keys[j], sort_key(-INFINITY));
  __syncthreads();
  for (int j = tid; j < n_new; j += kScoreThreads) key_of(units[j]) = ~0u;
  if (tid == 0) ranker.least = 0, ranker.most = ~0u;
  __syncthreads();
}

// The selection of a KV head whose units have been pooled: the best, ascending or ranked, and the mass that the
// speculative selection lacks.
//   units  [max_listed]: scratch
template <int kMost>
__device__ inline void write_selection(const UnfusedArgs& p, const Item& item, std::uint32_t* keys, std::int32_t* units,
                                       const HeadSums& sums, Ranker& ranker) {
  const bool holds = item.plan.hold > 0 && item.goes_on && p.s.selection.n[0][item.index] == item.n_select * item.each;
  if (holds) hold_units(p, item, keys, units, ranker);
  const std::uint32_t fixed = by_mass(item.plan) ? fixed_key<kMost>(item, sums) : 0;
  write_units(p.s, item.plan, p.when, {item, item.index, item.ranked, fixed}, keys, units, ranker);
}

// ---- by a cluster: each thread block pools a share of the units and writes keys to the first block, which ranks them
// (select_skeleton.cuh). For 4,096 pages the pooling of one block was most of its time.

struct ClusterArgs {
  int group, blocks;
  std::int64_t width;
};

// Shared memory of each block.
struct ClusterRank {
  Ranker ranker;
  HeadSums sums;
  float2 of_warps[kScoreWarps][kMaxGroup], of_blocks[kMaxSelectBlocks][kMaxGroup];
  std::int32_t units[kFew];
};

// The block's parts of the heads' log-sum-exps.   scores: of its share, [group][width]
__device__ inline void sum_share(const Item& item, const ClusterArgs& c, const Share& at, const float* scores,
                                 float2 (&of_warps)[kScoreWarps][kMaxGroup]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int g = 0; g < c.group; ++g) {
    float max = -INFINITY, sum = 0;
    for (int u = threadIdx.x; u < at.own; u += kScoreThreads) {
      const float v = scores[g * c.width + u];
      if (!isnan(v)) add_sum(max, sum, fminf(item.plan.scores.alpha * v, 3.4028235e38f), 1.0f);
    }
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) add_sum(max, sum, __shfl_xor_sync(~0u, max, d), __shfl_xor_sync(~0u, sum, d));
    if (lane == 0) of_warps[warp][g] = {max, sum};
  }
}

// pool_cluster() with sinks and window as one more unit (Domain::kAttention).
//   scores  of the block's share; keys  of all units, used in the first block
//   s       has the block's parts of log-sum-exps (of_warps)
template <int kMost>
__device__ __forceinline__ void pool_with_fixed(const Item& item, const ClusterArgs& c, const Share& at,
                                                const float* scores, std::uint32_t* keys, ClusterRank& s) {
  const int tid = threadIdx.x;
  if (tid == 0) s.ranker.least = ~0u, s.ranker.most = 0;
  const bool logs = pools_logs(item.plan.scores.pool);
  __syncthreads();
  if (logs) publish_sums(c, at.rank, s.of_warps, s.of_blocks);
  cluster_sync();
  load_fixed(item, s.sums);  // blocks of the cluster may have computed their parts until here
  if (logs) merge_sums(c, s.of_blocks, s.sums.all);
  __syncthreads();
  if (logs && item.plan.scores.domain == Domain::kAttention && tid < item.n_scored)
    s.sums.all[tid] = with_fixed(s.sums.all[tid], s.sums.fixed[tid]);
  __syncthreads();
  pool_share<kMost>(c, item.plan, at, scores, s.sums.all, keys, s.ranker);
}

// write_selection() of a KV head by the cluster's first block.   units  [max_listed]: scratch, for more than kFew units
template <int kMost>
__device__ __forceinline__ void mark_units(const UnfusedArgs& p, const Item& item, std::uint32_t* keys,
                                           std::int32_t* units, ClusterRank& s) {
  write_selection<kMost>(p, item, keys, item.n_select <= kFew ? s.units : units, s.sums, s.ranker);
}

}  // namespace mneme::cuda
