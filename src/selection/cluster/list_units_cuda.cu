#include "src/selection/cluster/list_units_cuda.h"

#include <algorithm>

#include "src/kv/kv_codes.cuh"
#include "src/offload/device_cache_cuda.cuh"
#include "src/offload/list_dim.cuh"
#include "src/selection/cluster/kmeans_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kCountThreads = 1024;
constexpr int kMaxSegments = 96;  // per launch: they are kernel arguments

// Lists of one (layer, sequence slot, KV head).
struct Lists {
  std::int32_t *ends, *members, *n_units;
};
__device__ __forceinline__ Lists lists_at(const DeviceCache& s, const IndexedLayer& of, int kv_head) {
  const std::int64_t index = slot_index(s, of.slot_layer, of.seq_slot, kv_head);
  const UnitLists& l = s.index.lists;
  return {l.ends + index * l.max_units, l.members + index * l.max_tokens, l.n_units + index};
}
// kDim: list_dim() of the keys' channels.
template <int kDim>
__device__ __forceinline__ std::byte* centroid_at(const DeviceCache& s, const IndexedLayer& of, int kv_head, int unit) {
  const std::int64_t index = slot_index(s, of.slot_layer, of.seq_slot, kv_head) * s.index.lists.max_units + unit;
  return s.index.lists.centroids + index * (2 * kDim);
}

// One thread: where the units of a sequence end.
__device__ __forceinline__ void set_grouped(const DeviceCache& s, const IndexedLayer& of, int grouped) {
  s.index.lists.grouped[kept_index(s, of.slot_layer, of.seq_slot)] = grouped;
}

// A warp's means, a lane has kDim / 32 adjacent channels. NaN encoded as on the host.
template <typename T, int kDim>
struct Mean {
  static constexpr int kEach = kDim / kWarp;
  float sum[kEach] = {};
  int n = 0;
  using E = ReadAs<T>;
  struct alignas(kEach * 2) Channels {
    E v[kEach];
  };
  // dim: channels of the key, a multiple of kEach; the others are zeros.
  static __device__ __forceinline__ Channels load(const std::byte* key, int dim = kDim,
                                                  KvCodes codes = KvCodes::kNone) {
    const int lane = threadIdx.x % kWarp;
    if constexpr (std::is_same_v<T, EightBit>) {
      Channels row{};
      const KvRow<T> from(key, dim, codes);
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (lane * kEach < dim) row.v[i] = from[lane * kEach + i];
      return row;
    } else {
      return lane * kEach < dim ? reinterpret_cast<const Channels*>(key)[lane] : Channels{};
    }
  }
  __device__ __forceinline__ void take(const Channels& row) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum[i] += widen(row.v[i]);
    ++n;
  }
  __device__ __forceinline__ void write(std::byte* centroid) const {
    constexpr std::uint16_t kQuiet = std::is_same_v<E, __half> ? 0x7e00 : 0x7fc0;
    auto* to = reinterpret_cast<std::uint16_t*>(centroid) + threadIdx.x % kWarp * kEach;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float mean = __fdiv_rn(sum[i], static_cast<float>(n));
      const E rounded = narrow<E>(mean);
      to[i] = isnan(mean) ? kQuiet : reinterpret_cast<const std::uint16_t&>(rounded);
    }
  }
};

// width: channels of a row of `to`.
__global__ void __launch_bounds__(kThreads) gather_keys_kernel(GatherKeys c, KvTables keys, int width) {
  const int kv_head = blockIdx.y, row = 2 * width, pieces = row / 16, total = c.n * pieces;
  std::byte* to = c.to + static_cast<std::int64_t>(kv_head) * c.n * row;
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < total; i += gridDim.x * kThreads) {
    const int token = c.first + i / pieces;
    const std::byte* from = token_at(keys, c.of.key_layer, c.of.key_slot, kv_head, token);
    uint4 v{};
    if (i % pieces < keys.head_dim / 8)
      v = keys.codes == KvCodes::kNone ? load_stream(from + i % pieces * 16)
                                       : KvRow<EightBit>(from, keys.head_dim, keys.codes).eight(i % pieces * 8);
    reinterpret_cast<uint4*>(to)[i] = v;
  }
}

// ---- clusters

struct ClusterArgs {
  DeviceCache s;
  AppendClusters a;
  std::int32_t *unit_of, *first_of;  // [KV heads][clusters]: the cluster's unit, -1: none; its first member
};

__device__ __forceinline__ int2 operator+(int2 a, int2 b) {
  return {a.x + b.x, a.y + b.y};
}

// Assigns units to the clusters of a KV head: one thread block.
__global__ void __launch_bounds__(kCountThreads) count_kernel(ClusterArgs p) {
  __shared__ int sizes[kMaxKmeansTokens];
  __shared__ int2 of_warps[kCountThreads / kWarp];
  const int tid = threadIdx.x, kv_head = blockIdx.x, n = p.a.n;
  const Lists lists = lists_at(p.s, p.a.of, kv_head);
  for (int c = tid; c < p.a.n_clusters; c += kCountThreads) sizes[c] = p.a.cluster == nullptr ? 1 : 0;
  __syncthreads();
  if (p.a.cluster != nullptr)
    for (int t = tid; t < n; t += kCountThreads)
      atomicAdd(&sizes[p.a.cluster[static_cast<std::int64_t>(kv_head) * n + t]], 1);
  __syncthreads();
  const int each = (p.a.n_clusters + kCountThreads - 1) / kCountThreads, begin = min(p.a.n_clusters, tid * each),
            end = min(p.a.n_clusters, begin + each);
  int2 own{0, 0};  // units, tokens
  for (int c = begin; c < end; ++c) own = own + int2{sizes[c] > 0, sizes[c]};
  const int n_before = *lists.n_units;
  int2 at = block_exclusive_scan(own, of_warps);
  const int first = p.a.first - p.a.sink;  // index of the first member
  for (int c = begin; c < end; ++c) {
    const std::int64_t to = static_cast<std::int64_t>(kv_head) * p.a.n_clusters + c;
    p.unit_of[to] = sizes[c] == 0 ? -1 : n_before + at.x;
    p.first_of[to] = first + at.y;
    at = at + int2{sizes[c] > 0, sizes[c]};
    if (sizes[c] > 0) lists.ends[n_before + at.x - 1] = first + at.y;
  }
  if (tid != 0) return;
  int n_units = n_before;
  for (const int2& w : of_warps) n_units += w.x;
  *lists.n_units = n_units;
  if (kv_head == 0) set_grouped(p.s, p.a.of, p.a.first + n);
}

// Rows loaded before the first is used: a cluster may have a thousand tokens, summed by one warp.
constexpr int kMembersAtOnce = kWarp;

// Calls rows(tokens, count) for the tokens of cluster c, ascending, kMembersAtOnce at a time and the rest at the end.
// Called by a whole warp; `found` [2 * kWarp] is its own.
template <typename KeyOf>
__device__ __forceinline__ void for_members(const std::uint16_t* cluster, int n, int c, std::uint16_t* found,
                                            KeyOf&& rows) {
  const int lane = threadIdx.x % kWarp;
  const auto load = [&](int t) { return t < n ? cluster[t] : -1; };
  int n_found = 0, next = load(lane);
#pragma unroll 1
  for (int base = 0; base < n; base += kWarp) {
    const bool own = next == c;
    next = load(base + kWarp + lane);
    const unsigned all = __ballot_sync(~0u, own);
    if (own) found[n_found + __popc(all & ((1u << lane) - 1))] = static_cast<std::uint16_t>(base + lane);
    n_found += __popc(all);
    __syncwarp();
    const bool last = base + kWarp >= n;
    while (n_found >= (last ? 1 : kMembersAtOnce)) {
      rows(found, min(n_found, kMembersAtOnce));
      n_found -= kMembersAtOnce;
      const std::uint16_t rest = found[kMembersAtOnce + lane];
      __syncwarp();
      found[lane] = rest;
      __syncwarp();
    }
  }
}

// Members and means, one warp per cluster.
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, 2) members_kernel(ClusterArgs p) {
  __shared__ std::uint16_t found[kWarps][2 * kWarp];
  const int kv_head = blockIdx.y, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, n = p.a.n;
  const int c = blockIdx.x * kWarps + warp;
  if (c >= p.a.n_clusters) return;
  const std::int64_t from = static_cast<std::int64_t>(kv_head) * p.a.n_clusters + c;
  const int unit = p.unit_of[from];
  if (unit < 0) return;
  const Lists lists = lists_at(p.s, p.a.of, kv_head);
  std::int32_t* members = lists.members + p.first_of[from];
  const std::byte* keys = p.a.keys + static_cast<std::int64_t>(kv_head) * n * kDim * 2;
  Mean<T, kDim> mean;
  if (p.a.cluster == nullptr) {
    if (lane == 0) *members = p.a.first + c;
    mean.take(mean.load(keys + static_cast<std::int64_t>(c) * kDim * 2));
  } else {
    const std::uint16_t* cluster = p.a.cluster + static_cast<std::int64_t>(kv_head) * n;
    for_members(cluster, n, c, found[warp], [&](const std::uint16_t* tokens, int count) {
      typename Mean<T, kDim>::Channels rows[kMembersAtOnce];
#pragma unroll
      for (int k = 0; k < kMembersAtOnce; ++k)
        rows[k] = mean.load(keys + static_cast<std::int64_t>(tokens[min(k, count - 1)]) * kDim * 2);
      if (lane < count) members[mean.n + lane] = p.a.first + tokens[lane];
#pragma unroll
      for (int k = 0; k < kMembersAtOnce; ++k)
        if (k < count) mean.take(rows[k]);
    });
  }
  mean.write(centroid_at<kDim>(p.s, p.a.of, kv_head, unit));
}

// ---- segments

struct SegmentArgs {
  DeviceCache s;
  KvTables keys;
  int n, n_kv_splits;
  Segment segments[kMaxSegments];
  std::int16_t begins[kMaxSegments + 1];  // start of each (sequence slot, layer)'s segments
};

// One thread block per (sequence slot, layer) and KV head, one warp per segment.
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) segments_kernel(SegmentArgs p) {
  constexpr int kAtOnce = 16;  // loads in flight: keys may be in host memory
  const int kv_head = blockIdx.y, first = p.begins[blockIdx.x], stop = p.begins[blockIdx.x + 1];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const IndexedLayer& of = p.segments[first].of;
  const Lists lists = lists_at(p.s, of, kv_head);
  const int n_before = *lists.n_units, sink = p.segments[first].sink;
  for (int i = first + warp; i < stop; i += kWarps) {
    const Segment& g = p.segments[i];
    const auto key = [&](int token) { return token_at(p.keys, g.of.key_layer, g.of.key_slot, kv_head, token); };
    Mean<T, kDim> mean;
    for (int base = g.begin; base < g.end; base += kAtOnce) {
      typename Mean<T, kDim>::Channels rows[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) rows[k] = mean.load(key(min(base + k, g.end - 1)), p.s.head_dim, p.s.codes);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (base + k < g.end) mean.take(rows[k]);
    }
    const int unit = n_before + i - first;
    mean.write(centroid_at<kDim>(p.s, of, kv_head, unit));
    for (int t = g.begin + lane; t < g.end; t += kWarp) lists.members[t - sink] = t;
    if (lane == 0) lists.ends[unit] = g.end - sink;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  *lists.n_units = n_before + stop - first;
  if (kv_head == 0) set_grouped(p.s, of, p.segments[stop - 1].end);
}

__global__ void truncate_kernel(DeviceCache s, IndexedLayer of, int grouped, int sink) {
  const int kv_head = blockIdx.x;
  const Lists lists = lists_at(s, of, kv_head);
  int low = 0, high = grouped <= sink ? 0 : *lists.n_units;
  while (low < high) {
    const int mid = (low + high) / 2;
    if (lists.ends[mid] <= grouped - sink) {
      low = mid + 1;
    } else {
      high = mid;
    }
  }
  *lists.n_units = low;
  if (kv_head == 0) set_grouped(s, of, grouped);
}

// Calls f with the type of the keys and their number of channels.
template <typename F>
void with_keys(const DeviceCache& s, F&& f) {
  const auto of = [&]<typename T>(T) { with_list_dim(s.head_dim, [&](auto dim) { f(T(), dim); }); };
  with_kv_type(s, of);
}

}  // namespace

void gather_keys_cuda(const GatherKeys& c, const KvTables& keys, const CudaContext& context) {
  const int width = list_dim(keys.head_dim), pieces = c.n * (width / 8);
  const int blocks = std::clamp((pieces + kThreads - 1) / kThreads, 1, 64);
  launch(context, "gather_keys", gather_keys_kernel, grid_of(blocks, keys.n_kv_heads), kThreads, 0, c, keys, width);
}

std::size_t append_clusters_scratch_bytes(std::int32_t n_kv_heads, std::int32_t n_clusters) {
  return static_cast<std::size_t>(n_kv_heads) * static_cast<std::size_t>(n_clusters) * 2 * sizeof(std::int32_t);
}

void append_clusters_cuda(const AppendClusters& a, const DeviceCache& s, const CudaContext& context) {
  auto* scratch = reinterpret_cast<std::int32_t*>(a.scratch);
  const ClusterArgs args{s, a, scratch, scratch + static_cast<std::int64_t>(s.n_kv_heads) * a.n_clusters};
  launch(context, "count_clusters", count_kernel, grid_of(s.n_kv_heads), kCountThreads, 0, args);
  with_keys(s, [&]<typename T, int kDim>(T, std::integral_constant<int, kDim>) {
    launch(context, "append_clusters", members_kernel<ReadAs<T>, kDim>,
           grid_of((a.n_clusters + kWarps - 1) / kWarps, s.n_kv_heads), kThreads, 0, args);
  });
}

void append_segments_cuda(std::span<const Segment> segments, const DeviceCache& s, const KvTables& keys,
                          const CudaContext& context) {
  for (std::size_t at = 0; at < segments.size();) {
    SegmentArgs args{s, keys, 0, 0, {}, {}};
    for (; at < segments.size() && args.n < kMaxSegments; ++at, ++args.n) {
      const Segment &next = segments[at], *before = args.n == 0 ? nullptr : &args.segments[args.n - 1];
      if (before == nullptr || before->of.seq_slot != next.of.seq_slot || before->of.slot_layer != next.of.slot_layer)
        args.begins[args.n_kv_splits++] = static_cast<std::int16_t>(args.n);
      args.segments[args.n] = next;
    }
    args.begins[args.n_kv_splits] = static_cast<std::int16_t>(args.n);
    with_keys(s, [&]<typename T, int kDim>(T, std::integral_constant<int, kDim>) {
      launch(context, "append_segments", segments_kernel<T, kDim>, grid_of(args.n_kv_splits, s.n_kv_heads), kThreads, 0,
             args);
    });
  }
}

void truncate_units_cuda(const IndexedLayer& of, std::int32_t grouped, std::int32_t sink, const DeviceCache& s,
                         const CudaContext& context) {
  launch(context, "truncate_units", truncate_kernel, grid_of(s.n_kv_heads), dim3(1), 0, s, of, grouped, sink);
}

}  // namespace mneme
