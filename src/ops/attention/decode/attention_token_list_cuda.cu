// Decode attention over tables of single tokens. The thread blocks of an item form a cluster, where the device can run
// as many clusters at once as there are items: they merge through distributed shared memory.
#include "src/cuda/cluster.cuh"
#include "src/ops/attention/decode/attention_decode.cuh"

namespace mneme {
namespace {

using namespace cuda;          // NOLINT
using namespace cuda::decode;  // NOLINT

constexpr int kStages = 2, kMaxCluster = 16;

template <typename Page>
struct KvSplit {  // one item's part of a thread block's work
  static constexpr int kDim = Page::kDim;
  const DecodeArgs& p;
  const DecodeItem& item;
  const std::int32_t* table;
  std::uint32_t ring;  // shared address of this warp's pages
  int begin, end;      // pages of the item

  // The lane's entry among a page's tokens: loaded before the page is requested, because it has its own latency.
  __device__ __forceinline__ std::int32_t entry_at(int page) const {
    const int at = (item.first_page + page) * kKvPageTokens + threadIdx.x % kWarp;
    return page < end && at < item.length ? table[at] : 0;
  }
  __device__ __forceinline__ void fetch(int page, int stage, std::int32_t entry) const {
    if (page < end) {
      const int at = (item.first_page + page) * kKvPageTokens;
      Page::fetch_listed(ring + stage * Page::kBytes, p.tables.base, entry, item.from - at, item.length - at);
    }
    copy_async_commit();
  }

  __device__ __forceinline__ void run(RunningSoftmax<kDim>& rows) const {
    const int n_warps = blockDim.x / kWarp, first = begin + static_cast<int>(threadIdx.x) / kWarp;
    rows.clear();
    std::int32_t entries[kStages];
#pragma unroll
    for (int i = 0; i < kStages; ++i) entries[i] = entry_at(first + i * n_warps);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(first + i * n_warps, i, entries[i]);
    std::int32_t entry = entries[kStages - 1];
    typename Page::Queries q;
    load_item_queries<Page>(q, p, item);
    int stage = 0, next_stage = kStages - 1;
    for (int page = first; page < end; page += n_warps) {
      fetch(page + (kStages - 1) * n_warps, next_stage, entry);
      entry = entry_at(page + kStages * n_warps);
      copy_async_wait<kStages - 1>();
      __syncwarp();
      const std::uint32_t at = ring + stage * Page::kBytes;
      float s[kTokenTiles][4];
      Page::score(s, q, at);
      mask_scores<Page>(s, p, item, page, ~0u);
      Page::take(rows, s, at);
      __syncwarp();
      next_stage = stage;
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    copy_async_wait<0>();
    rows.finish();
  }
};

// A row of a part in another thread block of the cluster.
struct ClusterResult {
  std::uint32_t max_and_sum, row;  // shared addresses in that block
  __device__ __forceinline__ float2 ml() const { return get_two(max_and_sum); }
  __device__ __forceinline__ float4 columns(int lane) const {
    const uint4 v = get_four(row + lane * 16);
    return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
  }
};

// Merges the item over the cluster's first n_parts thread blocks: each block merges every n-th row. All blocks call
// this, and return when no shared memory is read any more.
template <typename Page>
__device__ void finish_item(const DecodeArgs& p, const DecodeItem& item, int n_parts, int blocks,
                            const RunningSoftmax<Page::kDim>& rows, float* shared, float2* ml) {
  constexpr int kDim = Page::kDim;
  static_assert(2 * Page::kBytes >= 2 * kRows * kDim * static_cast<int>(sizeof(float)), "a warp's ring, for two parts");
  __shared__ float2 of_rows[kRows];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, n_warps = blockDim.x / kWarp,
            rank = static_cast<int>(blockIdx.x) % blocks;
  float* part = shared + kRows * kDim;  // behind the first warp's rows, in its ring
  if (rank < n_parts)
    merge_warps<Page>(p.group, rows, shared, ring_numbers<Page>(p), ml, [&](int row, int column, const Merged& m) {
      if (has_columns(kDim, column, lane)) reinterpret_cast<float4*>(part + row * kDim + column)[lane] = m.out;
      if (lane == 0) of_rows[row] = {m.max, m.sum};
    });
  cluster_sync();
  for (int row = rank + warp * blocks; row < p.group; row += n_warps * blocks) {
#pragma unroll
    for (int column = 0; column < kDim; column += kColumns) {
      const Merged m = merge(n_parts, lane, has_columns(kDim, column, lane), [&](int i) {
        return ClusterResult{address_in(of_rows + row, i), address_in(part + row * kDim + column, i)};
      });
      write_row<kDim>(p, item, row, column, lane, m);
    }
  }
  cluster_leave();
}

// One thread block per SM, one warp on each of its four partitions. Without the launch bound nvcc limits registers as
// for three blocks, and every mma waits for its operands.
template <typename Page>
__global__ void __launch_bounds__(kWarp* kFewWarps, 1) listed_kernel(DecodeArgs p, int cluster) {
  constexpr int kDim = Page::kDim;
  extern __shared__ __align__(128) std::uint8_t ring[];
  __shared__ int first[kMaxItems / 4 + 1];
  __shared__ float2 ml[kMaxWarps * kRows];
  launch_dependents();
  const int n_items = p.a.n * p.tables.n_kv_heads, warp = threadIdx.x / kWarp;
  if (p.a.tables_late && !p.a.lengths_early) grid_dependency_wait();
  const Pages pages = count_pages<false>(p, n_items, first);
  if (static_cast<int>(blockIdx.x) >= pages.used) {
    grid_dependency_wait();
    write_empty<kDim, false>(p, n_items);
    return;
  }
  const Split split(static_cast<unsigned>(pages.all), static_cast<unsigned>(pages.used));
  int at = split.begin(blockIdx.x);
  const int stop = split.begin(blockIdx.x + 1);
  int i = item_of(first, n_items, at);
  DecodeItem item = item_at<false>(p, i);
  const auto table_of = [&](const DecodeItem& of) {
    return p.tables.blocks + table_at(p.tables, p.layer, p.a.slots[of.row], of.kv_head);
  };
  const std::int32_t* table = table_of(item);
  grid_dependency_wait();  // nothing above depends on preceding kernels
  while (true) {
    const int begin = at - first[i], end = min(item.n_pages, stop - first[i]);
    RunningSoftmax<kDim> rows;
    if (begin < end)  // else an item without pages, or only padding pages
      KvSplit<Page>{p, item, table, shared_address(ring) + warp * p.n_stages * Page::kBytes, begin, end}.run(rows);
    if (cluster > 1 && pages.share > 0) {
      finish_item<Page>(p, item, (item.n_pages + pages.share - 1) / pages.share, cluster, rows,
                        reinterpret_cast<float*>(ring), ml);
      return;
    }
    if (begin < end)
      finish_kv_split<Page>(p, item, {i, begin, end, at}, split, rows, reinterpret_cast<float*>(ring), ml);
    at = first[++i];
    if (at >= stop) break;
    item = item_at<false>(p, i);
    table = table_of(item);
  }
  write_empty<kDim, false>(p, n_items);
}

// Cluster size per item; 1: no clusters. Clusters must use at least seven eighths of the possible thread blocks.
int cluster_for(const std::vector<int>& clusters, int n_items) {
  int blocks = std::min(static_cast<int>(clusters.size()), sm_count() / n_items);
  while (blocks > 1 && clusters[static_cast<std::size_t>(blocks - 1)] < n_items) --blocks;
  return blocks > 1 && 8 * blocks * n_items >= 7 * sm_count() ? blocks : 1;
}

template <typename Page>
void run(const DecodeArgs& args, const CudaContext& context) {
  static const Shape shape = shape_of(listed_kernel<Page>, Page::kBytes, kFewWarps);
  static const std::vector<int> clusters =
      active_clusters(listed_kernel<Page>, shape.n_warps * kWarp, kMaxCluster, shape.shared_bytes);
  DecodeArgs a = args;
  a.n_stages = shape.n_stages;
  const int n_items = a.a.n * a.tables.n_kv_heads, cluster = cluster_for(clusters, n_items);
  launch_clusters(context, "attend_listed", listed_kernel<Page>,
                  dim3(static_cast<unsigned>(cluster > 1 ? cluster * n_items : sm_count())),
                  dim3(static_cast<unsigned>(shape.n_warps * kWarp)), static_cast<unsigned>(cluster),
                  shape.shared_bytes, a, cluster);
}

}  // namespace

void cuda::decode::attend_listed(const DecodeArgs& args, const CudaContext& context) {
  with_page(args.tables, [&]<typename Page>(std::type_identity<Page>) { run<Page>(args, context); });
}

}  // namespace mneme
