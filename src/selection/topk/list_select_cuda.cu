// Selects units that are lists, structured as the selection of pages (select_skeleton.cuh), but units have sizes. The
// first thread block finds the score above which units have as many tokens as are wanted, in a histogram that counts
// tokens; sorts the candidates, and writes members.
#include <algorithm>

#include "src/offload/list_dim.cuh"
#include "src/selection/topk/select_skeleton.cuh"
#include "src/selection/topk/topk_marks.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = kSelectThreads, kWarps = kSelectWarps;
constexpr int kFew = 256;  // units sorted beyond those that are taken
constexpr int kStaticShared = 14 << 10;

struct ListArgs {
  DeviceCache s;
  SlotRows rows;
  int layer, group;
  int blocks;         // per cluster
  int width;          // of a row of scores
  float* scores;      // as select_pages_cuda's
  std::byte* sorted;  // per cluster: sorted candidates; null: in shared memory
};

// Dot products with centroids directly from device memory, as BoxQueries of page_select_cuda.cu.
template <typename T, int kDim, bool kWide>
struct CentroidQueries : QueryTiles<T, kDim, kWide> {
  using QueryTiles<T, kDim, kWide>::kChunks;
  using QueryTiles<T, kDim, kWide>::q;

  // s = dot products of the queries with centroid g of the eight at `centroids`, of which n are valid.
  __device__ __forceinline__ void score(float (&s)[4], const std::byte* centroids, int n) const {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    s[0] = s[1] = s[2] = s[3] = 0;
    uint4 b[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) b[c] = load_stream(centroids + (min(g, n - 1) * 2 * kDim + c * 64 + t * 16));
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      std::uint32_t w[4] = {0, 0, 0, 0};
      if constexpr (kWide)
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = q[c][1][i];
      mma<T>(s, q[c][0][0], w[0], q[c][0][1], w[1], b[c].x, b[c].y);
      mma<T>(s, q[c][0][2], w[2], q[c][0][3], w[3], b[c].z, b[c].w);
    }
  }
};

// ---- the best units

using topk::rank_of;
constexpr int kBins = topk::kBins, kBinsEach = kBins / kThreads;
using ListTeam = topk::Team<kThreads>;

struct Ranker {
  topk::Histogram<ListTeam, true> histogram;  // tokens, and units
  int of_warps[kWarps];
  std::uint32_t least, most;  // bounds of the keys
  int n;                      // candidates
};

// Least rank of candidates: they have at least `wanted` of all `total` tokens, and are at most kFew units more than
// needed for that.
__device__ std::uint64_t find_low(Ranker& r, const std::uint32_t* keys, const std::uint16_t* sizes, int n, int wanted,
                                  int total) {
  using topk::Range;
  topk::Threshold t{Range::of(r.least, r.most), Range::of(0, static_cast<std::uint32_t>(n - 1)), wanted, total, n};
  topk::search(ListTeam{}, r.histogram, t, kFew, [&](auto&& f) {
    for (int u = threadIdx.x; u < n; u += kThreads) f(keys[u], u, sizes[u]);
  });
  __syncthreads();  // the histogram has been read
  return rank_of(t.keys.low, static_cast<int>(t.indices.low));
}

// Sorted candidates. In shared memory, unless more may be attended than fits: where tokens have no cache slots, a
// budget set by the prompt may be nearly all of them.
struct Sorted {
  std::uint64_t* ranks;                 // [most], unsorted
  std::int32_t *units, *starts, *ends;  // [most], best first: the unit, its first member, tokens up to its end
  static __host__ __device__ std::size_t bytes(int most) { return static_cast<std::size_t>(most) * 20; }
  __device__ Sorted(void* memory, int most) : ranks(static_cast<std::uint64_t*>(memory)) {
    units = reinterpret_cast<std::int32_t*>(ranks + most);
    starts = units + most, ends = starts + most;
  }
};
// Every unit has at least one token.
__host__ __device__ int most_sorted(const DeviceCache& s) {
  const int most = s.max_listed + kFew;
  return ((most < s.index.lists.max_units ? most : s.index.lists.max_units) + 1) / 2 * 2;
}

// Sorts units of rank `low` and better, best first. A unit's rank is the number of better ones: all in the parts of the
// range above its own, and some in its part. A prompt's budget may give thousands of units, too many for all-pairs
// comparison.
__device__ void sort_units(Ranker& r, std::uint64_t low, const Sorted& sorted, const std::uint32_t* keys,
                           const std::uint16_t* sizes, const std::int32_t* list_ends, int n) {
  const int tid = threadIdx.x;
  const std::uint64_t top = rank_of(r.most, n - 1);
  const int shift = max(0, 64 - __clzll(static_cast<long long>(top - low)) - topk::kBinBits);
  const auto bin_of = [&](std::uint64_t rank) { return static_cast<int>((top - rank) >> shift); };
  auto *begins = reinterpret_cast<int*>(r.histogram.weights()),  // of the parts, best first: start, and
      *left = reinterpret_cast<int*>(r.histogram.counts());      // units without a rank yet
  for (int i = tid; i < kBins; i += kThreads) left[i] = 0;
  __syncthreads();
  for (int u = tid; u < n; u += kThreads) {
    const std::uint64_t rank = rank_of(keys[u], u);
    if (rank >= low) atomicAdd(&left[bin_of(rank)], 1);
  }
  __syncthreads();
  int in_bins = 0;
#pragma unroll
  for (int i = 0; i < kBinsEach; ++i) in_bins += left[tid * kBinsEach + i];
  int before = block_exclusive_scan(in_bins, r.of_warps);
#pragma unroll
  for (int i = 0; i < kBinsEach; ++i) begins[tid * kBinsEach + i] = before, before += left[tid * kBinsEach + i];
  if (tid == kThreads - 1) r.n = before;
  __syncthreads();
  for (int u = tid; u < n; u += kThreads) {
    const std::uint64_t rank = rank_of(keys[u], u);
    if (rank < low) continue;
    const int bin = bin_of(rank);
    sorted.ranks[begins[bin] + atomicSub(&left[bin], 1) - 1] = rank;
  }
  __syncthreads();
  const int m = r.n;
  for (int i = tid; i < m; i += kThreads) {
    const std::uint64_t own = sorted.ranks[i];
    const int bin = bin_of(own), stop = bin + 1 < kBins ? begins[bin + 1] : m;
    int above = begins[bin];
#pragma unroll 4
    for (int j = above; j < stop; ++j) above += sorted.ranks[j] > own;
    const int unit = topk::index_of(own);
    sorted.units[above] = unit;
    sorted.starts[above] = unit == 0 ? 0 : __ldcg(list_ends + unit - 1);
  }
  __syncthreads();
  const int each = (m + kThreads - 1) / kThreads, begin = min(m, tid * each), end = min(m, begin + each);
  int own = 0;
  for (int i = begin; i < end; ++i) own += sizes[sorted.units[i]];
  int at = block_exclusive_scan(own, r.of_warps);
  for (int i = begin; i < end; ++i) sorted.ends[i] = at += sizes[sorted.units[i]];
  __syncthreads();
}

// Writes the first n tokens of the units in their order.
__device__ void write_members(const Sorted& sorted, int m, const std::int32_t* members, int n, std::int32_t* out) {
  constexpr int kAtOnce = 4;
  for (int first = threadIdx.x; first < n; first += kAtOnce * kThreads) {
    std::int32_t token[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = min(first + k * kThreads, n - 1);
      int low = 0, high = m - 1;  // the unit whose end is above i
      while (low < high) {
        const int mid = (low + high) / 2;
        if (sorted.ends[mid] <= i) {
          low = mid + 1;
        } else {
          high = mid;
        }
      }
      token[k] = __ldcg(members + sorted.starts[low] + i - (low == 0 ? 0 : sorted.ends[low - 1]));
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (first + k * kThreads < n) out[first + k * kThreads] = token[k];
  }
}

// Writes the selection of a KV head whose keys are in shared memory; one thread block.
//   sizes  of all units; rest: shared memory behind them
__device__ void write_selection(const ListArgs& p, const SlotRow& r, const Share& at, int cluster, std::uint32_t* keys,
                                const std::uint16_t* sizes, void* rest, Ranker& ranker) {
  const PageRegion region = region_of(p.s, r.plan, p.layer, r.seq_slot, r.length);
  const int total = region.window - region.first, wanted = min(total, max(region.n_select, r.plan.region.n_select));
  if (threadIdx.x == 0) p.s.selection.n[0][at.index] = wanted;
  if (wanted > 0) {
    const std::uint64_t low = find_low(ranker, keys, sizes, at.n, wanted, total);
    const int most = most_sorted(p.s);
    const Sorted sorted(
        p.sorted == nullptr ? rest : p.sorted + cluster * static_cast<std::int64_t>(Sorted::bytes(most)), most);
    sort_units(ranker, low, sorted, keys, sizes, p.s.index.lists.ends + at.index * p.s.index.lists.max_units, at.n);
    write_members(sorted, ranker.n, p.s.index.lists.members + at.index * p.s.index.lists.max_tokens, wanted,
                  p.s.selection.ids[0] + at.index * p.s.max_listed);
  }
  __syncthreads();
}

// Lists by their centroids, for select_items().
template <typename T, int kDim, bool kWide>
struct ListIndex {
  const ListArgs& p;
  std::uint32_t* keys;
  std::uint16_t* sizes;  // of all units, in the first block
  void* rest;            // shared memory behind them
  float* scores;
  Ranker& ranker;
  ClusterSums& sums;
  // Of the item.
  SlotRow row;
  int kv_head;
  std::int64_t index;

  __device__ __forceinline__ int rank() const { return blockIdx.x % p.blocks; }

  __device__ __forceinline__ void prefetch() {}
  __device__ __forceinline__ bool takes(int item) {
    row = row_at(p.s, p.rows, item / p.s.n_kv_heads);
    kv_head = item % p.s.n_kv_heads;
    if (!selects_now(p.s, row, p.layer, kv_head, rank() == 0)) return false;
    index = slot_index(p.s, p.layer, row.seq_slot, kv_head);
    return true;
  }
  __device__ __forceinline__ Share share() const {
    return share_of(row.seq_slot, kv_head, index, __ldcg(p.s.index.lists.n_units + index), rank(), p.blocks);
  }
  __device__ __forceinline__ void score(const Share& at) {
    if (threadIdx.x == 0) ranker.least = ~0u, ranker.most = 0;
    const UnitLists& lists = p.s.index.lists;
    const std::byte* centroids = lists.centroids + (at.index * lists.max_units + at.begin) * (std::int64_t{2} * kDim);
    const std::int32_t* ends = lists.ends + at.index * lists.max_units + at.begin;
    const SelectionPlan& plan = row.plan;
    const bool by_size = plan.scores.by_size;
    CentroidQueries<T, kDim, kWide> queries;
    queries.load(static_cast<const __nv_bfloat16*>(p.s.selection.last_q) + at.index * p.group * p.s.head_dim, p.group,
                 p.s.head_dim);
    score_units<2, kWide>(
        p, plan, at, scores, sums,
        [&](float(&s)[4], int first) {
          queries.score(s, centroids + static_cast<std::int64_t>(first) * 2 * kDim, at.own - first);
        },
        [&](int u, float v) {
          if (!by_size) return v;
          return v + __logf(static_cast<float>(ends[u] - (at.begin + u == 0 ? 0 : ends[u - 1]))) / plan.scores.alpha;
        });
  }
  __device__ __forceinline__ bool pools() const { return true; }
  __device__ __forceinline__ void pool(const Share& at) {
    const std::int32_t* ends = p.s.index.lists.ends + index * p.s.index.lists.max_units;
    if (at.rank == 0)
      for (int u = threadIdx.x; u < at.n; u += kThreads)
        sizes[u] = static_cast<std::uint16_t>(__ldcg(ends + u) - (u == 0 ? 0 : __ldcg(ends + u - 1)));
    pool_cluster<kWide>(p, row.plan, at, scores, sums, keys, ranker);
  }
  __device__ __forceinline__ void mark(const Share& at) {
    write_selection(p, row, at, blockIdx.x / p.blocks, keys, sizes, rest, ranker);
  }
};

template <typename T, int kDim, bool kWide>
__global__ void __launch_bounds__(kThreads, 2) select_kernel(ListArgs p, int n_keys) {
  extern __shared__ __align__(16) std::uint32_t keys[];  // of the cluster's KV head, in its first block; see Layout
  __shared__ Ranker ranker;
  __shared__ ClusterSums sums;
  auto* sizes = reinterpret_cast<std::uint16_t*>(keys + n_keys);
  void* rest = sizes + n_keys;
  float* scores = p.scores == nullptr ? static_cast<float*>(rest)
                                      : p.scores + static_cast<std::int64_t>(blockIdx.x) * p.group * p.width;
  ListIndex<T, kDim, kWide> index{p, keys, sizes, rest, scores, ranker, sums};
  select_items(index, p.rows.n * p.s.n_kv_heads, p.blocks);
}

// Memory of a thread block: keys and sizes of all units of a KV head, then scores of its share, or the sorted
// candidates.
struct Layout {
  int clusters, width, n_keys;
  std::size_t shared;          // bytes
  std::size_t scores, sorted;  // bytes of scratch, consecutive; 0: in shared memory
  Layout(const DeviceCache& s, std::int64_t items, int blocks)
      : clusters(static_cast<int>(std::min<std::int64_t>(items, kMaxClusters))),
        width(eights((s.index.lists.max_units + blocks - 1) / blocks)),
        n_keys(eights(s.index.lists.max_units)) {
    const std::size_t units = static_cast<std::size_t>(n_keys) * 6, of_sorted = Sorted::bytes(most_sorted(s)),
                      of_scores =
                          static_cast<std::size_t>(s.n_heads / s.n_kv_heads) * static_cast<std::size_t>(width) * 4;
    const bool sorts_here = units + of_sorted <= static_cast<std::size_t>(most_shared());
    const std::size_t here = sorts_here ? of_sorted : 0;
    const bool fits = of_scores <= std::max<std::size_t>(here, 32 << 10);
    shared = units + std::max(here, fits ? of_scores : 0);
    scores = fits ? 0 : static_cast<std::size_t>(clusters) * static_cast<std::size_t>(blocks) * of_scores;
    sorted = sorts_here ? 0 : static_cast<std::size_t>(clusters) * of_sorted;
  }
  std::size_t scratch() const { return scores + sorted; }
  static int most_shared() {
    static const int most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kStaticShared;
    return most;
  }
};

template <typename T, int kDim, bool kWide>
void run_as(ListArgs args, std::byte* scratch, const CudaContext& context) {
  const auto kernel = select_kernel<T, kDim, kWide>;
  static const int most = [&] {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout::most_shared()),
               "the selection of lists' shared memory");
    return most_cluster(kernel, kThreads, kMaxSelectBlocks);
  }();
  const std::int64_t items = std::int64_t{args.rows.n} * args.s.n_kv_heads;
  args.blocks = blocks_for(items, most);
  while (args.blocks > 1 &&
         clusters_at_once(kernel, args.blocks, kThreads, Layout(args.s, items, args.blocks).shared) == 0)
    args.blocks /= 2;
  const Layout layout(args.s, items, args.blocks);
  args.width = layout.width;
  args.scores = layout.scores > 0 ? reinterpret_cast<float*>(scratch) : nullptr;
  args.sorted = layout.sorted > 0 ? scratch + layout.scores : nullptr;
  launch_clusters(context, "select_lists", kernel, dim3(static_cast<unsigned>(layout.clusters * args.blocks)),
                  dim3(kThreads), static_cast<unsigned>(args.blocks), layout.shared, args, layout.n_keys);
}

template <typename T, int kDim>
void run(const ListArgs& args, std::byte* scratch, const CudaContext& context) {
  args.group > 8 ? run_as<T, kDim, true>(args, scratch, context) : run_as<T, kDim, false>(args, scratch, context);
}

}  // namespace

std::size_t select_lists_scratch_bytes(const DeviceCache& s, std::int32_t n_rows) {
  std::size_t most = 0;
  for (std::int32_t n = 1; n <= n_rows; ++n)
    for (int blocks = 1; blocks <= kMaxSelectBlocks; blocks *= 2)
      most = std::max(most, Layout(s, std::int64_t{n} * s.n_kv_heads, blocks).scratch());
  return most;
}

void select_lists_cuda(const SelectPages& c, const DeviceCache& s, std::int32_t slot_layer,
                       const CudaContext& context) {
  if (c.rows.n == 0) return;
  ListArgs a{};
  a.s = of_layer(s, slot_layer);
  a.rows = c.rows;
  a.layer = slot_layer;
  a.group = s.n_heads / s.n_kv_heads;
  with_list_dim(s.head_dim, [&]<int kDim>(std::integral_constant<int, kDim>) {
    s.f16 ? run<__half, kDim>(a, c.scratch, context) : run<__nv_bfloat16, kDim>(a, c.scratch, context);
  });
}

}  // namespace mneme
