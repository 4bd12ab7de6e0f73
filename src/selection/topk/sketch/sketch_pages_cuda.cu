// Fused selection of pages of 32 by the sketches of their keys: a cluster of thread blocks takes one KV head of a row, each
// block scores a share of the pages into its shared memory, and the cluster ranks them as the unfused selection does
// (unfused_rank.cuh). Before Hopper, and where shares do not fit, the scores go to device memory and a launch of its own
// ranks them.
//
// A page's score is the log-sum-exp of its tokens', to base 2, over the lanes of a head (sketch_stage.cuh).
#include <algorithm>

#include "src/selection/topk/sketch/sketch_stage.cuh"
#include "src/selection/topk/unfused_rank.cuh"

namespace mneme {
namespace {

using namespace cuda;            // NOLINT
using namespace cuda::sketches;  // NOLINT

constexpr int kThreads = kScoreThreads;
constexpr int kBatch = 4;  // pages at a time
constexpr float kLn2 = 0.6931471805599453f;
constexpr int kStaticShared = 16 << 10;

struct Shape {
  int blocks;  // of a KV head
  int width;   // of a block's row of scores in shared memory; 0: scores go to UnfusedArgs::scores, nothing is ranked
  int keys;    // bytes of the rings, or of the keys that replace them
};

__device__ __forceinline__ float power_of(float x) {
  float v;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
  return v;
}

// Logarithms to base 2, of each tile's head t, of sums over the tokens of kBatch pages from `first` on: largest, and sum of
// powers less it. Step by step for all pages: shuffles and mma keep their order, and one page after another is latency.
template <int kDim, int kTiles>
__device__ __forceinline__ void page_sums(const Heads<kTiles>& heads, const std::uint8_t* stage, int entry_bytes,
                                          int rank, const PageParts& parts, int first, float2 (&sums)[kBatch][kTiles]) {
  float x[kBatch][kTiles][4];
#pragma unroll
  for (int i = 0; i < kBatch; ++i) page_tokens<kDim>(heads, stage, entry_bytes, rank, parts, first + i, x[i]);
  const auto for_all = [&](auto&& f) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) f(x[i][tile], sums[i][tile].x, sums[i][tile].y);
  };
  for_all([](const float(&v)[4], float& most, float&) { most = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])); });
#pragma unroll
  for (int d = 4; d < kWarp; d *= 2)
    for_all([&](const float(&)[4], float& most, float&) { most = fmaxf(most, __shfl_xor_sync(~0u, most, d)); });
  for_all([](const float(&v)[4], float& most, float& sum) {
    sum = power_of(v[0] - most) + power_of(v[1] - most) + (power_of(v[2] - most) + power_of(v[3] - most));
  });
#pragma unroll
  for (int d = 4; d < kWarp; d *= 2)
    for_all([&](const float(&)[4], float&, float& sum) { sum += __shfl_xor_sync(~0u, sum, d); });
}

// The warp's first page of the block's.
__device__ __forceinline__ int first_page() {
  return static_cast<int>(threadIdx.x) / kWarp * kPages;
}

// Scores the block's pages, whose first stages are being fetched.   scores [n_scored][width]; of_heads: the warp's parts
// of the heads' log-sum-exps
template <int kDim, int kTiles>
__device__ __forceinline__ void score_share(const UnfusedArgs& p, const Item& item, const Queries<kDim>& q,
                                            const Pages& pages, PageParts& parts, float* scores, std::int64_t width,
                                            float2 (&of_heads)[kMaxGroup]) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, rank = p.s.entries.rank;
  Heads<kTiles> heads;
  heads.load(item.terms, p.group, rank, item.rules.alpha);
  const float alpha = item.rules.alpha, inverse = 1.0f / alpha;
  const int step = kWarps * kPages;
  float most[kTiles], sum[kTiles];  // over the lane's pages
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) most[tile] = -INFINITY, sum[tile] = 0;
  int slot = 0;
#pragma unroll 1
  for (int first = first_page(); first < pages.n; first += step, slot = slot + 1 == kRing ? 0 : slot + 1) {
    copy_async_wait<kRing - 1>();
    __syncwarp();
    const std::uint8_t* stage = pages.stage(first, slot);
    page_parts(q, heads, stage, pages.bytes, rank, alpha, kLog2e, parts);
    float2 own[kTiles] = {};  // of page g
#pragma unroll 1
    for (int page = 0; page < kPages; page += kBatch) {
      float2 sums[kBatch][kTiles];
      page_sums<kDim>(heads, stage, pages.bytes, rank, parts, page, sums);
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
          if (page + i == g) own[tile] = sums[i][tile];
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (first + g >= pages.n || 4 * tile + t >= p.group) continue;
      const float log = kLn2 * (own[tile].x + __log2f(own[tile].y));
      scores[(4 * tile + t) * width + first + g] = inverse * log;
      if (!isnan(log)) add_sum(most[tile], sum[tile], fminf(log, 3.4028235e38f), 1.0f);
    }
    __syncwarp();
    pages.fetch(first + kRing * step, slot);
  }
  copy_async_wait<0>();
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int d = 4; d < kWarp; d *= 2)
      add_sum(most[tile], sum[tile], __shfl_xor_sync(~0u, most[tile], d), __shfl_xor_sync(~0u, sum[tile], d));
    if (g == 0) of_heads[4 * tile + t] = {most[tile], sum[tile]};
  }
}

// Prefetches the share's entries to L2 while the preceding kernel runs: which are read does not depend on it.
__device__ __forceinline__ void prefetch_share(const UnfusedArgs& p, const RowOfSlots& r, int number, int rank,
                                               int blocks) {
  if (!r.sparse || p.when != SelectWhen::kNow || r.rules.schedule == SlotSchedule::kKept) return;
  const int kv_head = number % p.s.n_kv_heads, each = r.rules.unit_tokens == 1 ? kTokens : 1;
  const PageRegion region = page_region(r.rules, r.length);
  const int first = region.first / each, n = region.last / each - first;
  const Share at = share_of(r.seq_slot, kv_head, slot_index(p.s, p.slot_layer, r.seq_slot, kv_head), n, rank, blocks);
  const UnitEntries& e = p.s.entries;
  const Pages pages(e.data + (at.index * e.most + first + at.begin) * static_cast<std::int64_t>(e.bytes), e.bytes,
                    at.own, nullptr);
  for (int page = first_page(); page < at.own; page += kWarps * kPages) pages.prefetch(page);
}

// The KV head's terms, in parts by the blocks of the cluster. Those of sinks and window are there after the cluster's next
// barrier, when ranks need them.   q: room for the queries
__device__ __noinline__ void cluster_terms(const UnfusedArgs& p, const Item& item, float* q, int first, int stop) {
  load_queries(p, item, q);
  for (int part = first; part < stop; ++part) {
    frame_terms(p, item, q, part);
    __syncthreads();
  }
  cluster_arrive();
  for (int part = first; part < stop && item.rules.whole_attention != 0; ++part) {
    fixed_terms_of(p, item, q, part);
    __syncthreads();
  }
  cluster_wait();
}

template <int kDim, int kTiles>
__global__ void __launch_bounds__(kThreads, 2) sketch_pages_kernel(const __grid_constant__ UnfusedArgs p, Shape shape) {
  extern __shared__ __align__(16) std::byte memory[];  // rings of the warps, then keys; behind them scores
  __shared__ Item item;                                // its rules would take the registers that scores need
  __shared__ Queries<kDim> q;
  __shared__ ClusterRank ranks;
  __shared__ PageParts parts[kWarps];
  cluster_begin();
  launch_dependents();
  const int number = static_cast<int>(blockIdx.x) / shape.blocks, rank = static_cast<int>(blockIdx.x) % shape.blocks;
  const bool selects = shape.width > 0;
  const int first_part = rank * kTermParts / shape.blocks, stop_part = (rank + 1) * kTermParts / shape.blocks;
  const RowOfSlots row = row_of(p, number);
  prefetch_share(p, row, number, rank, shape.blocks);
  if (selects) {
    prefetch_terms(p, row, number, false, first_part, stop_part);
    prefetch_terms(p, row, number, true, first_part, stop_part);
  }
  grid_dependency_wait();
  cluster_begun();
  {
    Item own;
    if (!item_at(p, row, number, selects && rank == 0, own)) return;
    if (threadIdx.x == 0) item = own;
  }
  __syncthreads();
  const Share at = share_of(item.seq_slot, item.kv_head, item.index, item.n, rank, shape.blocks);
  float* scores = selects ? reinterpret_cast<float*>(memory + shape.keys) : item.scores + at.begin;
  const UnitEntries& e = p.s.entries;
  const Pages pages(entries_of(p, item) + std::int64_t{item.first + at.begin} * e.bytes, e.bytes, at.own, memory);
  pages.fetch_first(first_page(), kWarps * kPages);
  q.load(static_cast<const __nv_bfloat16*>(p.s.last_q) + item.index * p.group * kDim, p.group);
  if (selects) cluster_terms(p, item, scores, first_part, stop_part);
  __syncthreads();
  const int warp = threadIdx.x / kWarp;
  score_share<kDim, kTiles>(p, item, q, pages, parts[warp], scores, selects ? shape.width : p.width,
                            ranks.of_warps[warp]);
  if (!selects) return;
  const ClusterArgs cluster{item.n_scored, shape.blocks, shape.width};
  rank_share<4 * kTiles>(p, item, cluster, at, scores, reinterpret_cast<std::uint32_t*>(memory),
                         p.units + static_cast<std::int64_t>(number) * p.s.max_listed, ranks);
}

// Whether the launch ranks too.
template <int kDim, int kTiles>
bool select_as(const UnfusedArgs& a, const CudaContext& context) {
  const auto kernel = sketch_pages_kernel<kDim, kTiles>;
  static const int limit = [&] {
    const int bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kStaticShared;
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "the shared memory of a selection by sketches");
    return bytes;
  }();
  static const int most = most_cluster(kernel, kThreads, kMaxSelectBlocks);
  const UnitEntries& e = a.s.entries;
  const int items = a.rows.n * a.s.n_kv_heads, blocks = blocks_for(items, most),
            rings = kWarps * kRing * stage_bytes(e.bytes);
  Shape shape{.blocks = blocks,
              .width = eights((e.most + blocks - 1) / blocks),
              .keys = std::max(rings, static_cast<int>(4 * a.width))};
  const std::int64_t all = shape.keys + std::int64_t{4} * a.group * std::max(shape.width, kDim);  // scores, or queries
  const bool ranks = has_hopper_code() && all <= limit;
  if (!ranks) compute_head_terms_cuda(a, context);
  if (!ranks) shape = {.blocks = summary_blocks(a, kPages), .width = 0, .keys = rings};
  launch_clusters(context, "select_sketches", kernel, dim3(static_cast<unsigned>(items * shape.blocks)), dim3(kThreads),
                  ranks ? static_cast<unsigned>(blocks) : 1,
                  static_cast<std::size_t>(ranks ? all : std::int64_t{rings}), a, shape);
  return ranks;
}

}  // namespace

bool select_sketches_cuda(const cuda::UnfusedArgs& a, const CudaContext& context) {
  if (a.s.head_dim == 128) return a.group > 4 ? select_as<128, 2>(a, context) : select_as<128, 1>(a, context);
  return a.group > 4 ? select_as<64, 2>(a, context) : select_as<64, 1>(a, context);
}

}  // namespace mneme
