// A cluster of thread blocks takes one KV head of a row: each block scores a share of the boxes and keeps the scores in
// its shared memory; the blocks exchange their parts of the heads' log-sum-exps; then each pools its share and writes
// keys to the shared memory of the cluster's first block, which ranks them and writes the selection. Through device
// memory, with fences and one block pooling, the same took 22 us for 4,065 pages and 8 KV heads.
//
// Pages of 32 have their boxes in UnitIndexes::boxes and are selected as units. Pages of another size have them in
// UnitEntries, in the same layout, and are selected as their tokens.
//
// For this step, whose attention waits, a thread has as many loads in flight as registers allow; for the next step only
// as many as let a block run concurrently with one of attention.
#include <algorithm>
#include <type_traits>

#include "src/selection/topk/block_topk.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = kSelectThreads;
constexpr int kMaxBlocks = kMaxSelectBlocks;
static_assert(kThreads == kRankThreads);
constexpr int kStaticShared = 9 << 10;

struct PageArgs {
  DeviceCache s;
  SlotRows rows;
  SelectWhen when;
  bool of_entries;  // SelectPages::of_entries
  int layer, group;
  int blocks;              // per cluster
  int width;               // of a row of scores: the most boxes of a block's share
  const std::byte* boxes;  // [layers][seq slots][KV heads][max_boxes]
  int max_boxes;
  float* scores;        // [clusters][blocks][group][width]; null: scores fit in shared memory
  std::int32_t* units;  // [clusters][max_listed]: selected pages, where these are selected as tokens
};

// Positive (or negative) part of a fragment's two values. NaN stays in both.
template <typename T>
__device__ __forceinline__ std::uint32_t half_of(std::uint32_t v, bool positive);
template <>
__device__ __forceinline__ std::uint32_t half_of<__nv_bfloat16>(std::uint32_t v, bool positive) {
  const __nv_bfloat162 zero = __floats2bfloat162_rn(0, 0), x = reinterpret_cast<const __nv_bfloat162&>(v);
  const __nv_bfloat162 r = positive ? __hmax2_nan(x, zero) : __hmin2_nan(x, zero);
  return reinterpret_cast<const std::uint32_t&>(r);
}
template <>
__device__ __forceinline__ std::uint32_t half_of<__half>(std::uint32_t v, bool positive) {
  const __half2 zero = __floats2half2_rn(0, 0), x = reinterpret_cast<const __half2&>(v);
  const __half2 r = positive ? __hmax2_nan(x, zero) : __hmin2_nan(x, zero);
  return reinterpret_cast<const std::uint32_t&>(r);
}

// Dot products with boxes, directly from device memory.
template <typename T, int kDim, bool kWide>
struct BoxQueries : QueryTiles<T, kDim, kWide> {
  using QueryTiles<T, kDim, kWide>::kChunks;
  using QueryTiles<T, kDim, kWide>::q;

  // s = the queries' bounds on box g of the eight at `boxes`: [q+ | q-] . [hi | lo]. Reads all eight, valid or not: the
  // array of boxes is padded at its end.
  template <int kHalvesAtOnce>
  __device__ __forceinline__ void score(float (&s)[4], const std::byte* boxes) const {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
    for (int first = 0; first < 2; first += kHalvesAtOnce) {
      uint4 b[kHalvesAtOnce][kChunks];
#pragma unroll
      for (int half = 0; half < kHalvesAtOnce; ++half)
#pragma unroll
        for (int c = 0; c < kChunks; ++c)
          b[half][c] = load_stream(boxes + (g * 4 * kDim + (first + half) * 2 * kDim + c * 64 + t * 16));
#pragma unroll
      for (int half = 0; half < kHalvesAtOnce; ++half)
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          std::uint32_t a[4], w[4] = {0, 0, 0, 0};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            a[i] = half_of<T>(q[c][0][i], first + half == 0);
            if constexpr (kWide) w[i] = half_of<T>(q[c][1][i], first + half == 0);
          }
          const uint4 v = b[half][c];
          mma<T>(s, a[0], w[0], a[1], w[1], v.x, v.y);
          mma<T>(s, a[2], w[2], a[3], w[3], v.z, v.w);
        }
    }
  }
};

// Boxes of a KV head: of UnitIndexes::boxes, or of UnitEntries.
int boxes_of(const DeviceCache& s, bool of_entries) {
  return of_entries ? s.index.entries.most : s.max_pages;
}
std::size_t key_bytes(const DeviceCache& s, bool of_entries) {
  return static_cast<std::size_t>(eights(boxes_of(s, of_entries))) * sizeof(std::uint32_t);
}

// Prefetches the boxes of a block's share to L2 while the preceding kernel runs: candidate pages are complete, and so
// are their boxes. Rows with speculative selection read them in any case, here or concurrently with the step.
__device__ __forceinline__ void ask_for_boxes(const PageArgs& p, const SlotRow& r, int kv_head, int rank) {
#if __CUDA_ARCH__ >= 900
  const ScheduleKind schedule = r.plan.schedule;
  if (!r.sparse || r.plan.scores.own_arrays == p.of_entries) return;
  if (schedule != ScheduleKind::kEveryStep && schedule != ScheduleKind::kSpeculative) return;
  const Candidates all = candidates_of(r.plan, r.length);
  const Share at = share_of(r.seq_slot, kv_head, slot_index(p.s, p.layer, r.seq_slot, kv_head), all.n, rank, p.blocks);
  const std::int64_t bytes = at.own * p.s.box_bytes(), piece = 8 * p.s.box_bytes();
  const std::byte* from = p.boxes + (at.index * p.max_boxes + all.first + at.begin) * p.s.box_bytes();
  for (std::int64_t at = threadIdx.x * piece; at < bytes; at += kThreads * piece)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from + at),
                 "r"(static_cast<std::uint32_t>(min(piece, bytes - at))));
#endif
}

// Pages by their boxes, for select_items().
template <typename T, int kDim, bool kWide, SelectWhen kWhen>
struct PageIndex {
  const PageArgs& p;
  std::uint32_t* keys;
  float* scores;
  Ranker& ranker;
  ClusterSums& sums;
  // Of the item.
  SlotRow first, row;  // first: the cluster's first item's
  Candidates all;
  int kv_head;

  static constexpr bool kNow = kWhen == SelectWhen::kNow;
  __device__ __forceinline__ int cluster() const { return blockIdx.x / p.blocks; }
  __device__ __forceinline__ int rank() const { return blockIdx.x % p.blocks; }

  __device__ __forceinline__ void prefetch() {
    if constexpr (!kNow) return;
    first = row_at(p.s, p.rows, cluster() / p.s.n_kv_heads);
    ask_for_boxes(p, first, cluster() % p.s.n_kv_heads, rank());
  }
  __device__ __forceinline__ bool takes(int item) {
    kv_head = item % p.s.n_kv_heads;
    row = kNow && item == cluster() ? first : row_at(p.s, p.rows, item / p.s.n_kv_heads);
    if (row.sparse && row.plan.scores.own_arrays == p.of_entries) return false;
    if constexpr (kNow) {
      if (!selects_now(p.s, row, p.layer, kv_head, rank() == 0)) return false;
    } else {
      if (!row.sparse || !selects(row, p.when, any_needs_now(p.s, row, p.layer))) return false;
    }
    all = candidates_of(row.plan, row.length + (kNow ? 0 : 1));
    return all.n_select > 0;
  }
  __device__ __forceinline__ Share share() const {
    return share_of(row.seq_slot, kv_head, slot_index(p.s, p.layer, row.seq_slot, kv_head), all.n, rank(), p.blocks);
  }
  __device__ __forceinline__ void score(const Share& at) {
    if (threadIdx.x == 0) ranker.least = ~0u, ranker.most = 0;
    const std::byte* boxes = p.boxes + (at.index * p.max_boxes + all.first + at.begin) * (4 * kDim);
    BoxQueries<T, kDim, kWide> queries;
    queries.load(static_cast<const __nv_bfloat16*>(p.s.selection.last_q) + at.index * p.group * kDim, p.group, kDim);
    score_units<1, kWide>(
        p, row.plan, at, scores, sums,
        [&](float(&s)[4], int from) { queries.template score<kNow ? 2 : 1>(s, boxes + from * 4 * kDim); },
        [](int, float v) { return v; });
  }
  __device__ __forceinline__ bool pools() const { return true; }
  __device__ __forceinline__ void pool(const Share& at) {
    pool_cluster<kWide>(p, row.plan, at, scores, sums, keys, ranker);
  }
  __device__ __forceinline__ void mark(const Share& at) {
    std::int32_t* ids = p.s.selection.ids[static_cast<int>(kWhen)] + at.index * p.s.max_listed;
    write_units(p.s, row.plan, kWhen, {all, at.index}, keys,
                all.each == 1 ? ids : p.units + static_cast<std::int64_t>(cluster()) * p.s.max_listed, ranker);
  }
};

template <typename T, int kDim, bool kWide, SelectWhen kWhen>
__global__ void __launch_bounds__(kThreads, kWhen == SelectWhen::kNow ? 2 : 3) select_kernel(PageArgs p, int n_keys) {
  extern __shared__ __align__(16) std::uint32_t keys[];  // of the cluster's KV head, in its first block; then scores
  __shared__ Ranker ranker;
  __shared__ ClusterSums sums;
  float* scores = p.scores == nullptr ? reinterpret_cast<float*>(keys + n_keys)
                                      : p.scores + static_cast<std::int64_t>(blockIdx.x) * p.group * p.width;
  PageIndex<T, kDim, kWide, kWhen> index{p, keys, scores, ranker, sums};
  select_items(index, p.rows.n * p.s.n_kv_heads, p.blocks);
}

struct Layout {
  int clusters, width;
  std::size_t shared;         // bytes
  std::size_t scores, units;  // bytes of scratch; 0: scores are in shared memory, pages are selected as units
  Layout(const DeviceCache& s, bool of_entries, std::int64_t items, int blocks)
      : clusters(static_cast<int>(std::min<std::int64_t>(items, kMaxClusters))),
        width(eights((boxes_of(s, of_entries) + blocks - 1) / blocks)) {
    const std::size_t keys = key_bytes(s, of_entries), each = static_cast<std::size_t>(s.n_heads / s.n_kv_heads) *
                                                              static_cast<std::size_t>(width) * sizeof(float);
    // Fits next to a thread block of attention, which has 128 KiB; 524,288 tokens need 81 KiB with groups of four.
    const bool fits = keys + each <= (84 << 10);
    shared = keys + (fits ? each : 0);
    scores = fits ? 0 : static_cast<std::size_t>(clusters) * static_cast<std::size_t>(blocks) * each;
    units = of_entries ? static_cast<std::size_t>(clusters) * s.max_listed * sizeof(std::int32_t) : 0;
  }
};

int shared_limit() {
  return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kStaticShared;
}

// Thread blocks per cluster. For this step two where one an SM would leave a KV head with one, as long as three an SM
// hold them: 20 sequences of 32,768 in int8 with 13 % corrections take 9.9 ms a step in place of 10.0 to 10.4. For the
// next step two change nothing, or cost 1 %.
template <SelectWhen kWhen>
int cluster_blocks(std::int64_t items, int most) {
  const int blocks = blocks_for(items, most);
  return kWhen == SelectWhen::kNow && blocks == 1 && most > 1 && 2 * items <= 3 * sm_count() ? 2 : blocks;
}

template <typename T, int kDim, bool kWide, SelectWhen kWhen>
void run_as(PageArgs args, std::byte* scratch, const CudaContext& context) {
  const auto kernel = select_kernel<T, kDim, kWide, kWhen>;
  // The largest cluster depends on how the device's SMs are grouped (GPCs).
  static const int most = [&] {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_limit()),
               "the selection of pages' shared memory");
    return most_cluster(kernel, kThreads, kMaxBlocks);
  }();
  const std::int64_t items = std::int64_t{args.rows.n} * args.s.n_kv_heads;
  args.blocks = cluster_blocks<kWhen>(items, most);
  const Layout layout(args.s, args.of_entries, items, args.blocks);
  args.width = layout.width;
  args.scores = layout.scores > 0 ? reinterpret_cast<float*>(scratch) : nullptr;
  args.units = reinterpret_cast<std::int32_t*>(scratch + layout.scores);
  launch_clusters(context, "select_pages", kernel, dim3(static_cast<unsigned>(layout.clusters * args.blocks)),
                  dim3(kThreads), static_cast<unsigned>(args.blocks), layout.shared, args, eights(args.max_boxes));
}

template <typename T, int kDim>
void run(const PageArgs& args, std::byte* scratch, const CudaContext& context) {
  if (args.when == SelectWhen::kNow) {
    args.group > 8 ? run_as<T, kDim, true, SelectWhen::kNow>(args, scratch, context)
                   : run_as<T, kDim, false, SelectWhen::kNow>(args, scratch, context);
  } else {
    args.group > 8 ? run_as<T, kDim, true, SelectWhen::kNext>(args, scratch, context)
                   : run_as<T, kDim, false, SelectWhen::kNext>(args, scratch, context);
  }
}

}  // namespace

std::size_t select_scratch_bytes(const DeviceCache& s, std::int32_t n_rows, bool of_entries) {
  std::size_t most = 0;
  for (std::int32_t n = 1; n <= n_rows; ++n)
    for (int blocks = 1; blocks <= kMaxBlocks; blocks *= 2) {
      const Layout layout(s, of_entries, std::int64_t{n} * s.n_kv_heads, blocks);
      most = std::max(most, layout.scores + layout.units);
    }
  return most;
}

bool select_pages_takes(const DeviceCache& s, bool of_entries) {
  return key_bytes(s, of_entries) <= static_cast<std::size_t>(shared_limit());
}

void select_pages_cuda(const SelectPages& c, const DeviceCache& s, std::int32_t slot_layer,
                       const CudaContext& context) {
  if (c.rows.n == 0) return;
  PageArgs a{};
  a.s = of_layer(s, slot_layer);
  a.rows = c.rows;
  a.when = c.when;
  a.of_entries = c.of_entries;
  a.boxes = c.of_entries ? s.index.entries.data : s.index.boxes, a.max_boxes = boxes_of(s, c.of_entries);
  a.layer = slot_layer;
  a.group = s.n_heads / s.n_kv_heads;
  if (s.head_dim == 128) {
    s.f16 ? run<__half, 128>(a, c.scratch, context) : run<__nv_bfloat16, 128>(a, c.scratch, context);
  } else {
    s.f16 ? run<__half, 64>(a, c.scratch, context) : run<__nv_bfloat16, 64>(a, c.scratch, context);
  }
}

}  // namespace mneme
