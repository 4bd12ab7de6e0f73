// One selection, into which indexes plug: a cluster of thread blocks takes one KV head of a row after another.
//
//   score  each thread block scores a share of the units
//   pool   the blocks exchange their parts of the heads' log-sum-exps, pool their shares, and write keys to the shared
//          memory of the cluster's first block
//   rank   the first block finds the best (block_topk.cuh), and weighs them for a gate by missing mass
//   mark   it writes their ids in order
//
// select_item() is the order, an index has the hooks:
//
//   void prefetch()       what does not depend on the kernel before, while that still runs
//   bool takes(int item)  whether the gate, and the rules of the row, let it select for this (row, KV head)
//   Share share()         the thread block's share of the units
//   void score(at)        scores of the share, and the warps' parts of log-sum-exps
//   bool pools()          false: scores went to device memory, and another kernel goes on with them
//   void pool(at)         keys of the share, in the first block
//   void mark(at)         rank and mark, by the first block
//
// Boxes of pages (page_select_cuda.cu), lists (list_select_cuda.cu), sketches (sketch/sketch_pages_cuda.cu) and the
// scores of any other index in device memory (unfused_select_cuda.cu) are such indexes. Two selections are built
// otherwise, of the same top-k: tokens (token_select_cuda.cu), whose keys do not fit one thread block, so that all of
// the cluster rank their shares; and layers (../layer/layer_select_cuda.cu), with one score for all heads, hence no
// pool, and layers that share a budget.
#pragma once

#include <type_traits>

#include "src/cuda/cluster.cuh"
#include "src/offload/device_cache_cuda.cuh"
#include "src/selection/gate/gate_cuda.cuh"

namespace mneme::cuda {

constexpr int kSelectThreads = 256, kSelectWarps = kSelectThreads / kWarp;
constexpr int kMaxSelectBlocks = 16;  // per cluster

// Whether a row selects for this step; called for KV head `kv_head` by all threads of a block. The gate of a layer
// (ScheduleKind::kBoundary) is evaluated here, and published by the first KV head's first block.
__device__ __forceinline__ bool selects_now(const DeviceCache& s, const SlotRow& r, int layer, int kv_head,
                                            bool first_block) {
  if (r.seq_slot < 0) return false;
  if (r.plan.schedule != ScheduleKind::kBoundary)
    return selects(r, SelectWhen::kNow, r.sparse && any_needs_now(s, r, layer));
  const LayerGate gate = gate_layer(s, r, layer);
  if (first_block && kv_head == 0 && threadIdx.x < kWarp) publish_layer_gate(s, r, layer, gate);
  if (first_block) keep_queries(s, r, layer, kv_head, gate);
  return gate.selects;
}

// What a KV head selects from: units first .. first + n - 1 of `each` ids, their tokens or one.
struct Candidates {
  int each, first, n, n_select;
};
__device__ __forceinline__ Candidates candidates_of(const SelectionPlan& plan, int length) {
  const PageRegion region = page_region(plan, length);
  const int each = plan.units.tokens == 1 ? plan.units.select_tokens : 1, first = region.first / each;
  return {each, first, region.last / each - first, region.n_select / each};
}

// Merges (max, sum of exp(. - max)) with another pair.
__device__ __forceinline__ void add_sum(float& max, float& sum, float other_max, float other_sum) {
  const float m = fmaxf(max, other_max);
  if (m > -INFINITY) sum = sum * __expf(max - m) + other_sum * __expf(other_max - m);
  max = m;
}

// Work of a thread block for a KV head.
struct Share {
  int seq_slot, kv_head;
  std::int64_t index;  // slot_index
  int rank;            // of the block in its cluster
  int n;               // units of the region
  int begin, own;      // the block's part of them
};

__host__ __device__ constexpr int eights(int n) {
  return (n + 7) / 8 * 8;
}

// The share of a KV head's n units that thread block `rank` of a cluster of `blocks` has.
__device__ __forceinline__ Share share_of(int seq_slot, int kv_head, std::int64_t index, int n, int rank, int blocks) {
  const int each = eights((n + blocks - 1) / blocks), begin = min(n, rank * each);
  return {seq_slot, kv_head, index, rank, n, begin, min(n - begin, each)};
}

// Queries of a KV head as operands A of mma. Which 16 channels an mma takes is free as long as both operands agree: lane
// (g, t) has 16 bytes of queries g and g + 8 of every 32 channels, and loads 16 bytes of unit g. No shared memory and few
// registers: blocks run concurrently with those of attention.
template <typename T, int kDim, bool kWide>
struct QueryTiles {
  static constexpr int kChunks = kDim / 32;    // of 64 bytes: two mma
  static constexpr int kRows = kWide ? 2 : 1;  // groups of more than 8 have row g + 8 too
  std::uint32_t q[kChunks][kRows][4];

  // dim: channels of a query; the others are zeros.
  __device__ __forceinline__ void load(const __nv_bfloat16* head, int group, int dim) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        uint4 v{0, 0, 0, 0};
        if (g + 8 * r < group && c * 32 + t * 8 < dim)
          v = __ldcg(reinterpret_cast<const uint4*>(head + (g + 8 * r) * dim + c * 32 + t * 8));
        q[c][r][0] = convert(v.x), q[c][r][1] = convert(v.y), q[c][r][2] = convert(v.z), q[c][r][3] = convert(v.w);
      }
  }
  static __device__ __forceinline__ std::uint32_t convert(std::uint32_t v) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) return v;
    const float2 f = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(v));
    return pack<T>(f.x, f.y);
  }
};

// Parts of the group's log-sum-exps, in the shared memory of each block.
struct ClusterSums {
  float lse[kMaxSlotGroup];
  float2 of_warps[kSelectWarps][kMaxSlotGroup], of_blocks[kMaxSelectBlocks][kMaxSlotGroup];
};

// A lane's part of the log-sum-exps of rows g and g + 8.
template <bool kWide>
struct LaneSums {
  static constexpr int kHalves = kWide ? 2 : 1;
  float max[kHalves], sum[kHalves];
  __device__ __forceinline__ LaneSums() {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) max[h] = -INFINITY, sum[h] = 0;
  }
  __device__ __forceinline__ void take(int half, float score, float alpha) {
    if (isnan(score)) return;
    const float scaled = fminf(alpha * score, 3.4028235e38f), m = fmaxf(max[half], scaled);
    if (m == -INFINITY) return;
    sum[half] = sum[half] * __expf(max[half] - m) + __expf(scaled - m);
    max[half] = m;
  }
  __device__ __forceinline__ void leave(ClusterSums& s) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int k = 1; k < 4; k *= 2)
        add_sum(max[h], sum[h], __shfl_xor_sync(~0u, max[h], k), __shfl_xor_sync(~0u, sum[h], k));
      if (t == 0) s.of_warps[warp][g + 8 * h] = {max[h], sum[h]};
    }
  }
};

// Writes scores of the block's units to `scores` [group][width], with each warp's part of the heads' log-sum-exps.
//   score  (s, first): bounds or dot products s [4] of eight units from `first` on
//   value  (u, v): the score of unit u of the share from that
template <int kUnroll, bool kWide, typename Args, typename Score, typename Value>
__device__ __forceinline__ void score_units(const Args& p, const SelectionPlan& plan, const Share& at, float* scores,
                                            ClusterSums& of_cluster, Score&& score, Value&& value) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, warp = threadIdx.x / kWarp;
  LaneSums<kWide> sums;
#pragma unroll kUnroll
  for (int first = warp * 8; first < at.own; first += kSelectWarps * 8) {
    float s[4];
    score(s, first);
#pragma unroll
    for (int h = 0; h < sums.kHalves; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int u = first + 2 * t + i, row = g + 8 * h;
        if (u >= at.own) continue;
        const float v = value(u, s[2 * h + i]);
        if (row < p.group) scores[row * p.width + u] = v;
        sums.take(h, v, plan.scores.alpha);
      }
  }
  sums.leave(of_cluster);
}

// Sends the block's per-warp parts to every block of the cluster.
template <typename Args>
__device__ __forceinline__ void publish_sums(const Args& p, int rank,
                                             const float2 (&of_warps)[kSelectWarps][kMaxSlotGroup],
                                             float2 (&of_blocks)[kMaxSelectBlocks][kMaxSlotGroup]) {
  const int g = threadIdx.x % kMaxSlotGroup, to = threadIdx.x / kMaxSlotGroup;  // kSelectThreads pairs
  if (g >= p.group || to >= p.blocks) return;
  float max = -INFINITY, sum = 0;
#pragma unroll
  for (int w = 0; w < kSelectWarps; ++w) max = fmaxf(max, of_warps[w][g].x);
  const float base = max == -INFINITY ? 0.0f : max;
#pragma unroll
  for (int w = 0; w < kSelectWarps; ++w) sum += of_warps[w][g].y * __expf(of_warps[w][g].x - base);
  put(address_in(&of_blocks[rank][g], to), float2{max, sum});
}

// The group's log-sum-exps over all units, one warp per head.
template <typename Args>
__device__ __forceinline__ void merge_sums(const Args& p, const float2 (&of_blocks)[kMaxSelectBlocks][kMaxSlotGroup],
                                           float* lse) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int g = warp; g < p.group; g += kSelectWarps) {
    const float2 part = lane < p.blocks ? of_blocks[lane][g] : float2{-INFINITY, 0};
    float max = part.x;
#pragma unroll
    for (int k = kMaxSelectBlocks / 2; k > 0; k /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, k));
    float sum = max == -INFINITY ? 0.0f : part.y * __expf(part.x - max);
#pragma unroll
    for (int k = kMaxSelectBlocks / 2; k > 0; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
    if (lane == 0) lse[g] = max == -INFINITY ? -INFINITY : max + __logf(sum);
  }
}

// Whether a unit's values are log probabilities.
__device__ __forceinline__ bool pools_logs(Pool pool) {
  return pool == Pool::kMaxS || pool == Pool::kMeanS;
}

// A head's score as pool_unit() takes it; `logs`: as a log probability with this log-sum-exp.
__device__ __forceinline__ float pooled_value(float score, bool logs, float alpha, const float& lse) {
  return !logs || score != score ? score : lse == -INFINITY ? -INFINITY : fminf(alpha * score, 3.4028235e38f) - lse;
}

// group_pool.h for one unit: v [n] are its heads' values, log probabilities for kMaxS and kMeanS. Values from
// `group` on are ignored.
template <int kMost>
__device__ __forceinline__ std::uint32_t pool_unit(Pool pool, int group, const float (&v)[kMost]) {
  float most = -INFINITY, sum = 0;
  bool nan = false;
#pragma unroll
  for (int g = 0; g < kMost; ++g) {
    if (g >= group) continue;
    nan = nan || v[g] != v[g];
    most = fmaxf(most, v[g]);
    sum += v[g];
  }
  if (nan) return 0;
  if (pool == Pool::kMeanQk) return sort_key(sum / static_cast<float>(group));
  if (pool != Pool::kMeanS || most == -INFINITY || most == INFINITY) return sort_key(most);
  float total = 0;
#pragma unroll
  for (int g = 0; g < kMost; ++g)
    if (g < group) total += __expf(v[g] - most);
  return sort_key(most + __logf(total));
}

// Converts the block's scores to keys in the cluster's first block, whose `bounds` (least, most) get theirs; one thread
// per unit. Called by all blocks.
template <int kMost, typename Args, typename Bounds>
__device__ __forceinline__ void pool_share(const Args& p, const SelectionPlan& plan, const Share& at,
                                           const float* scores, const float* lse, std::uint32_t* keys, Bounds& bounds) {
  const bool logs = pools_logs(plan.scores.pool);
  const std::uint32_t to = address_in(keys + at.begin, 0);
  std::uint32_t least = ~0u, most = 0;
#pragma unroll 1
  for (int u = threadIdx.x; u < at.own; u += kSelectThreads) {
    float v[kMost];
#pragma unroll
    for (int g = 0; g < kMost; ++g) {
      if (g >= p.group) continue;
      const float x = scores[g * p.width + u];
      v[g] = pooled_value(x, logs, plan.scores.alpha, lse[g]);
    }
    const std::uint32_t key = pool_unit(plan.scores.pool, p.group, v);
    put(to + u * 4, key);
    least = min(least, key), most = max(most, key);
  }
  least = __reduce_min_sync(~0u, least), most = __reduce_max_sync(~0u, most);
  if (threadIdx.x % kWarp == 0)
    put_least(address_in(&bounds.least, 0), least), put_most(address_in(&bounds.most, 0), most);
  cluster_sync();
}

// From scores of the block's share to keys in the cluster's first block. Called by all blocks, whose warps have left
// their parts of the log-sum-exps.
template <bool kWide, typename Args, typename Bounds>
__device__ __forceinline__ void pool_cluster(const Args& p, const SelectionPlan& plan, const Share& at,
                                             const float* scores, ClusterSums& s, std::uint32_t* keys, Bounds& bounds) {
  __syncthreads();
  publish_sums(p, at.rank, s.of_warps, s.of_blocks);
  cluster_sync();
  merge_sums(p, s.of_blocks, s.lse);
  __syncthreads();
  if constexpr (kWide) {
    pool_share<kMaxSlotGroup>(p, plan, at, scores, s.lse, keys, bounds);
  } else if (p.group <= 4) {
    pool_share<4>(p, plan, at, scores, s.lse, keys, bounds);
  } else {
    pool_share<8>(p, plan, at, scores, s.lse, keys, bounds);
  }
}

template <typename Index>
__device__ __forceinline__ void begin_selection(Index& index) {
  cluster_begin();
  launch_dependents();
  index.prefetch();
  grid_dependency_wait();
  cluster_begun();
}
// Returns whether the item uses the cluster's shared memory. again: an item before it did.
template <typename Index>
__device__ __forceinline__ bool select_item(Index& index, int item, bool again) {
  if (!index.takes(item)) return false;
  const Share at = index.share();
  if (again) cluster_sync();  // the first block has ranked
  index.score(at);
  if (!index.pools()) return true;
  index.pool(at);
  if (at.rank == 0) index.mark(at);
  return true;
}
// The kernel of a grid that has as many clusters of `blocks` thread blocks as items, or fewer; and of one with a cluster
// for each item, without the loop, which took 48 registers more of the unfused selection.
template <typename Index>
__device__ __forceinline__ void select_items(Index& index, int n_items, int blocks) {
  begin_selection(index);
  const int n_clusters = gridDim.x / blocks;
  bool used = false;
  for (int item = blockIdx.x / blocks; item < n_items; item += n_clusters)
    if (select_item(index, item, used)) used = true;
}
template <typename Index>
__device__ __forceinline__ void select_own_item(Index& index, int blocks) {
  begin_selection(index);
  select_item(index, blockIdx.x / blocks, false);
}

// Clusters per KV head, at most: as many as the device runs at once, so that few KV heads use all of it.
constexpr int kMaxClusters = 1024;
inline int blocks_for(std::int64_t items, int most) {
  int blocks = 1;
  while (2 * blocks <= most && 2 * blocks * items <= sm_count()) blocks *= 2;
  return blocks;
}

}  // namespace mneme::cuda
