// A cluster of thread blocks takes one KV head of a row: each block scores a share of the boxes and keeps the scores in
// its shared memory; the blocks exchange their parts of the heads' log-sum-exps; then each pools its share and writes
// keys to the shared memory of the cluster's first block, which ranks them and writes the selection. Through device
// memory, with fences and one block pooling, the same took 22 us for 4,065 pages and 8 KV heads.
//
// For this step, whose attention waits, a thread has as many loads in flight as registers allow; for the next step only
// as many as let a block run concurrently with one of attention.
#include <algorithm>
#include <type_traits>

#include "src/selection/topk/block_topk.cuh"
#include "src/selection/topk/missing_mass.cuh"
#include "src/selection/topk/select_common.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = kSelectThreads, kWarps = kSelectWarps;
constexpr int kMaxBlocks = kMaxSelectBlocks, kMaxGroup = kMaxSlotGroup;
static_assert(kThreads == kRankThreads);
constexpr int kStaticShared = 9 << 10;

struct Args {
  KvSlots s;
  SlotRows rows;
  SelectWhen when;
  int layer, group;
  int blocks;     // per cluster
  int width;      // of a row of scores: the most boxes of a block's share
  float* scores;  // [clusters][blocks][group][width]; null: scores fit in shared memory
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

// Dot products with boxes directly from device memory: which 16 of the 2 D channels an mma takes is free as long as
// both operands agree, so lane (g, t) loads 16 bytes of box g, and of queries g and g + 8. No shared memory and few
// registers: blocks run concurrently with those of attention.
template <typename T, int kDim, bool kWide>
struct BoxQueries {
  static constexpr int kChunks = kDim / 32;    // of 64 bytes per box: a chunk is two mma
  static constexpr int kRows = kWide ? 2 : 1;  // groups of more than 8 have row g + 8 too
  std::uint32_t q[kChunks][kRows][4];

  __device__ __forceinline__ void load(const __nv_bfloat16* head, int group) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        uint4 v{0, 0, 0, 0};
        if (g + 8 * r < group) v = __ldcg(reinterpret_cast<const uint4*>(head + (g + 8 * r) * kDim + c * 32 + t * 8));
        q[c][r][0] = convert(v.x), q[c][r][1] = convert(v.y), q[c][r][2] = convert(v.z), q[c][r][3] = convert(v.w);
      }
  }
  static __device__ __forceinline__ std::uint32_t convert(std::uint32_t v) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) return v;
    const float2 f = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(v));
    return pack<T>(f.x, f.y);
  }

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

// Writes scores of the block's boxes to `scores` [group][width], with each warp's part of the heads' log-sum-exps.
template <typename T, int kDim, bool kWide, SelectWhen kWhen>
__device__ __forceinline__ void score_share(const Args& p, const SlotRules& rules, int first_page, const Share& at,
                                            float* scores, float2 (&of_warps)[kWarps][kMaxGroup]) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, warp = threadIdx.x / kWarp;
  const std::byte* boxes = p.s.boxes + (at.index * p.s.max_pages + first_page + at.begin) * (4 * kDim);
  BoxQueries<T, kDim, kWide> queries;
  queries.load(static_cast<const __nv_bfloat16*>(p.s.last_q) + at.index * p.group * kDim, p.group);
  constexpr int kHalves = kWide ? 2 : 1;
  float max[kHalves], sum[kHalves];  // of this lane's units, rows g and g + 8
#pragma unroll
  for (int h = 0; h < kHalves; ++h) max[h] = -INFINITY, sum[h] = 0;
#pragma unroll 1
  for (int first = warp * 8; first < at.own; first += kWarps * 8) {
    float s[4];
    queries.template score<kWhen == SelectWhen::kNow ? 2 : 1>(s, boxes + first * 4 * kDim);
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int u = first + 2 * t + i, row = g + 8 * h;
        if (u >= at.own) continue;
        const float v = s[2 * h + i];
        if (row < p.group) scores[row * p.width + u] = v;
        if (isnan(v)) continue;
        const float scaled = fminf(rules.alpha * v, 3.4028235e38f), m = fmaxf(max[h], scaled);
        if (m == -INFINITY) continue;
        sum[h] = sum[h] * __expf(max[h] - m) + __expf(scaled - m);
        max[h] = m;
      }
  }
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
#pragma unroll
    for (int k = 1; k < 4; k *= 2)
      add_sum(max[h], sum[h], __shfl_xor_sync(~0u, max[h], k), __shfl_xor_sync(~0u, sum[h], k));
    if (t == 0) of_warps[warp][g + 8 * h] = {max[h], sum[h]};
  }
}

std::int64_t keys_of(const KvSlots& s) {
  return eights(s.max_pages);
}

// Prefetches the boxes of a block's share to L2 while the preceding kernel runs: candidate pages are complete, and so
// are their boxes. Rows with speculative selection read them in any case, here or concurrently with the step.
__device__ __forceinline__ void ask_for_boxes(const Args& p, const RowOfSlots& r, int kv_head, int rank) {
#if __CUDA_ARCH__ >= 900
  const SlotSchedule schedule = r.rules.schedule;
  if (!r.sparse || r.rules.score != SlotScore::kIndex) return;
  if (schedule != SlotSchedule::kEveryStep && schedule != SlotSchedule::kSpeculative) return;
  const PageRegion region = page_region(r.rules, r.length);
  const int n = region.last - region.first, each = eights((n + p.blocks - 1) / p.blocks), begin = min(n, rank * each);
  const std::int64_t bytes = min(n - begin, each) * box_bytes(p.s), piece = 8 * box_bytes(p.s);
  const std::byte* from =
      p.s.boxes +
      (slot_index(p.s, p.layer, r.seq_slot, kv_head) * p.s.max_pages + region.first + begin) * box_bytes(p.s);
  for (std::int64_t at = threadIdx.x * piece; at < bytes; at += kThreads * piece)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from + at),
                 "r"(static_cast<std::uint32_t>(min(piece, bytes - at))));
#endif
}

template <typename T, int kDim, bool kWide, SelectWhen kWhen>
__global__ void __launch_bounds__(kThreads, kWhen == SelectWhen::kNow ? 2 : 3) select_kernel(Args p, int n_keys) {
  extern __shared__ __align__(16) std::uint32_t keys[];  // of the cluster's KV head, in its first block; then scores
  __shared__ Ranker ranker;
  __shared__ float lse[kMaxGroup];
  __shared__ float2 of_warps[kWarps][kMaxGroup], of_blocks[kMaxBlocks][kMaxGroup];
  cluster_begin();
  launch_dependents();
  const int tid = threadIdx.x, heads = p.s.n_kv_heads;
  const int cluster = blockIdx.x / p.blocks, n_clusters = gridDim.x / p.blocks;
  RowOfSlots first;
  if constexpr (kWhen == SelectWhen::kNow) {
    first = row_at(p.s, p.rows, cluster / heads);
    ask_for_boxes(p, first, cluster % heads, blockIdx.x % p.blocks);
  }
  grid_dependency_wait();
  cluster_begun();
  float* scores = p.scores == nullptr ? reinterpret_cast<float*>(keys + n_keys)
                                      : p.scores + static_cast<std::int64_t>(blockIdx.x) * p.group * p.width;
  bool used = false;  // shared memory of the cluster is in use
  for (int item = cluster; item < p.rows.n * heads; item += n_clusters) {
    const bool has = kWhen == SelectWhen::kNow && item == cluster;
    const RowOfSlots r = has ? first : row_at(p.s, p.rows, item / heads);
    if (r.sparse && r.rules.score != SlotScore::kIndex) continue;
    if constexpr (kWhen == SelectWhen::kNow) {
      if (!selects_now(p.s, r, p.layer, item % heads, blockIdx.x % p.blocks == 0)) continue;
    } else {
      if (!r.sparse || !selects(r, p.when, any_needs_now(p.s, r, p.layer))) continue;
    }
    const PageRegion region = page_region(r.rules, r.length + (p.when == SelectWhen::kNext ? 1 : 0));
    if (region.n_select == 0) continue;
    Share at;
    at.seq_slot = r.seq_slot, at.kv_head = item % heads;
    at.index = slot_index(p.s, p.layer, r.seq_slot, at.kv_head);
    at.rank = blockIdx.x % p.blocks;
    at.n = region.last - region.first;
    const int each = eights((at.n + p.blocks - 1) / p.blocks);
    at.begin = min(at.n, at.rank * each);
    at.own = min(at.n - at.begin, each);
    if (used) cluster_sync();  // the first block has ranked
    used = true;

    if (tid == 0) ranker.least = ~0u, ranker.most = 0;
    score_share<T, kDim, kWide, kWhen>(p, r.rules, region.first, at, scores, of_warps);
    __syncthreads();
    publish_sums(p, at.rank, of_warps, of_blocks);
    cluster_sync();
    merge_sums(p, of_blocks, lse);
    __syncthreads();
    std::uint32_t least = ~0u, most = 0;
    const auto pool = [&]<int kMost>(std::integral_constant<int, kMost>) {
      pool_share<kMost>(p, r.rules, at, scores, lse, keys, least, most);
    };
    if constexpr (kWide) {
      pool(std::integral_constant<int, kMaxGroup>());
    } else if (p.group <= 4) {
      pool(std::integral_constant<int, 4>());
    } else {
      pool(std::integral_constant<int, 8>());
    }
    least = __reduce_min_sync(~0u, least), most = __reduce_max_sync(~0u, most);
    if (tid % kWarp == 0) put_least(address_in(&ranker.least, 0), least), put_most(address_in(&ranker.most, 0), most);
    cluster_sync();
    if (at.rank > 0) continue;

    const int when = static_cast<int>(p.when);
    std::int32_t* out = p.s.selected_ids[when] + at.index * p.s.max_listed;
    write_best(ranker, keys, at.n, region.n_select, region.first, out);
    if constexpr (kWhen == SelectWhen::kNow) {
      if (by_mass(r)) {
        __syncthreads();
        compute_missing_mass(p.s, r.rules, {at.index, region.first, at.n, region.n_select, 1}, ranker.most, keys, out);
      }
    }
    if (r.rules.turnover >= 0) {
      __syncthreads();
      inject_units(r.rules, r.length, at.index, region.first, at.n, region.n_select, out);
    }
    if (tid == 0) p.s.n_selected[when][at.index] = region.n_select;
    __syncthreads();
  }
}

struct Layout {
  int clusters, width;
  std::size_t shared;   // bytes
  std::size_t scratch;  // bytes; 0: scores are in shared memory
  Layout(const KvSlots& s, std::int64_t items, int blocks)
      : clusters(static_cast<int>(std::min<std::int64_t>(items, kMaxClusters))),
        width(eights((s.max_pages + blocks - 1) / blocks)) {
    const auto keys = static_cast<std::size_t>(keys_of(s)) * sizeof(std::uint32_t),
               scores =
                   static_cast<std::size_t>(s.n_heads / s.n_kv_heads) * static_cast<std::size_t>(width) * sizeof(float);
    // Fits next to a thread block of attention, which has 128 KiB.
    const bool fits = keys + scores <= (80 << 10);
    shared = keys + (fits ? scores : 0);
    scratch = fits ? 0 : static_cast<std::size_t>(clusters) * static_cast<std::size_t>(blocks) * scores;
  }
};

template <typename T, int kDim, bool kWide, SelectWhen kWhen>
void run_as(Args args, std::byte* scratch, const CudaContext& context) {
  const auto kernel = select_kernel<T, kDim, kWide, kWhen>;
  // The largest cluster depends on how the device's SMs are grouped (GPCs).
  static const int most = [&] {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kStaticShared),
               "the selection of pages' shared memory");
    return most_cluster(kernel, kThreads, kMaxBlocks);
  }();
  const std::int64_t items = std::int64_t{args.rows.n} * args.s.n_kv_heads;
  args.blocks = blocks_for(items, most);
  const Layout layout(args.s, items, args.blocks);
  args.width = layout.width;
  args.scores = layout.scratch > 0 ? reinterpret_cast<float*>(scratch) : nullptr;
  launch_clusters(context, "select_pages", kernel, dim3(static_cast<unsigned>(layout.clusters * args.blocks)),
                  dim3(kThreads), static_cast<unsigned>(args.blocks), layout.shared, args,
                  static_cast<int>(keys_of(args.s)));
}

template <typename T, int kDim>
void run(const Args& args, std::byte* scratch, const CudaContext& context) {
  if (args.when == SelectWhen::kNow) {
    args.group > 8 ? run_as<T, kDim, true, SelectWhen::kNow>(args, scratch, context)
                   : run_as<T, kDim, false, SelectWhen::kNow>(args, scratch, context);
  } else {
    args.group > 8 ? run_as<T, kDim, true, SelectWhen::kNext>(args, scratch, context)
                   : run_as<T, kDim, false, SelectWhen::kNext>(args, scratch, context);
  }
}

}  // namespace

std::size_t select_scratch_bytes(const KvSlots& s, std::int32_t n_rows) {
  std::size_t most = 0;
  for (std::int32_t n = 1; n <= n_rows; ++n)
    for (int blocks = 1; blocks <= kMaxBlocks; blocks *= 2)
      most = std::max(most, Layout(s, std::int64_t{n} * s.n_kv_heads, blocks).scratch);
  return most;
}

void select_pages_cuda(const SelectPages& c, const KvSlots& s, std::int32_t slot_layer, const CudaContext& context) {
  if (c.rows.n == 0) return;
  Args a{};
  a.s = of_layer(s, slot_layer);
  a.rows = c.rows;
  a.when = c.when;
  a.layer = slot_layer;
  a.group = s.n_heads / s.n_kv_heads;
  if (s.head_dim == 128) {
    s.f16 ? run<__half, 128>(a, c.scratch, context) : run<__nv_bfloat16, 128>(a, c.scratch, context);
  } else {
    s.f16 ? run<__half, 64>(a, c.scratch, context) : run<__nv_bfloat16, 64>(a, c.scratch, context);
  }
}

}  // namespace mneme
