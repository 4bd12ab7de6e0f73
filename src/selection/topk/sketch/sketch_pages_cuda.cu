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
__device__ __forceinline__ void page_sums(const Heads<kTiles, 1>& heads, const std::uint8_t* stage, int entry_bytes,
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
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, rank = p.s.index.entries.rank;
  Heads<kTiles, 1> heads;
  heads.load(item.terms, p.group, rank, item.plan.scores.alpha);
  const float alpha = item.plan.scores.alpha, inverse = 1.0f / alpha;
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
__device__ __forceinline__ void prefetch_share(const UnfusedArgs& p, const SlotRow& r, int number, int rank,
                                               int blocks) {
  if (!r.sparse || p.when != SelectWhen::kNow || r.plan.schedule == ScheduleKind::kBoundary) return;
  const int kv_head = number % p.s.n_kv_heads, each = r.plan.units.tokens == 1 ? kTokens : 1;
  const PageRegion region = page_region(r.plan, r.length);
  const int first = region.first / each, n = region.last / each - first;
  const Share at = share_of(r.seq_slot, kv_head, slot_index(p.s, p.slot_layer, r.seq_slot, kv_head), n, rank, blocks);
  const UnitEntries& e = p.s.index.entries;
  const Pages pages(e.data + (at.index * e.most + first + at.begin) * static_cast<std::int64_t>(e.bytes), e.bytes,
                    at.own, nullptr);
  for (int page = first_page(); page < at.own; page += kWarps * kPages) pages.prefetch(page);
}

// Prefetches what the gate compares with this step's selection.
__device__ __forceinline__ void prefetch_speculative(const UnfusedArgs& p, const SlotRow& r, int number) {
  if (!r.sparse || !by_mass(r)) return;
  const std::int64_t index = slot_index(p.s, p.slot_layer, r.seq_slot, number % p.s.n_kv_heads);
  prefetch_lines(p.s.selection.ids[1] + index * p.s.max_listed,
                 p.s.max_listed * static_cast<int>(sizeof(std::int32_t)));
  prefetch_lines(p.s.selection.n[1] + index, static_cast<int>(sizeof(std::int32_t)));
}

// ---- what the query heads add to all pages (HeadTerms), in parts by the blocks of the cluster. In few instructions: between
// two layers a GEMM's weights leave none of them in L2, and a kernel that runs once waits for each line of its code.

// Parts of warps, in shared memory.
template <int kMost>
struct TermParts {
  float spread[kWarps][kMost];
  float2 fixed[kWarps][kHeads];
};

// Terms of the head's frame, as frame_terms().   q [group][D]
template <int kDim, int kMost>
__device__ __forceinline__ void frame_part(const UnfusedArgs& p, const Item& item, const float* q, int part,
                                           TermParts<kMost>& parts) {
  constexpr int kGroups = kThreads / kDim,
                kRows = kDim / kTermParts / kGroups;  // threads of a column; rows of a thread
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp, column = tid % kDim,
            row = part * (kDim / kTermParts) + tid / kDim;
  const Frame f = frame_of(p.s, item);
  float x[kRows], sum[kMost] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) x[i] = __ldcg(f.covariance + (row + kGroups * i) * kDim + column);
  base_terms(p.s, item, q, f, part);
  basis_terms(p.s, item, q, f, part);
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int g = 0; g < kMost; ++g)
      if (g < p.group) sum[g] = fmaf(x[i], q[g * kDim + row + kGroups * i], sum[g]);
#pragma unroll
  for (int g = 0; g < kMost; ++g)
    if (g < p.group) sum[g] *= q[g * kDim + column];
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2)
#pragma unroll
    for (int g = 0; g < kMost; ++g) sum[g] += __shfl_xor_sync(~0u, sum[g], d);
#pragma unroll
  for (int g = 0; g < kMost; ++g)
    if (lane == 0) parts.spread[warp][g] = sum[g];
  __syncthreads();
  if (tid >= p.group) return;
  float spread = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) spread += parts.spread[w][tid];
  item.terms[tid].spread[part] = spread;
}

// Four channels of a key, as readers see them; and two of a query, in the same type.
template <typename T>
__device__ __forceinline__ uint2 four_of(const KvRow<T>& key, int channel) {
  if constexpr (std::is_same_v<T, EightBit>) {
    const auto two = [&](int c) { return pack<__nv_bfloat16>(widen(key[c]), widen(key[c + 1])); };
    return {two(channel), two(channel + 2)};
  } else {
    return __ldcg(reinterpret_cast<const uint2*>(key.p + channel));
  }
}
template <typename T>
__device__ __forceinline__ std::uint32_t query_of(std::uint32_t two) {
  if constexpr (!std::is_same_v<T, __half>) return two;
  const float2 v = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(two));
  return pack<__half>(v.x, v.y);
}

// Terms of the part's tokens of sinks and window, as fixed_terms(): a warp takes eight tokens, columns of an mma.
template <typename T, int kDim, int kMost>
__device__ __forceinline__ void fixed_part(const UnfusedArgs& p, const Item& item, const Queries<kDim>& q, int part,
                                           TermParts<kMost>& parts) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const FixedTokens fixed(p, item);
  const PartRange tokens(part, fixed.n);
  float most = -INFINITY, sum = 0;  // of head g
#pragma unroll 1
  for (int first = tokens.first + 8 * warp; first < tokens.stop; first += 8 * kWarps) {
    const int position = fixed.position(min(first + g, tokens.stop - 1));
    const KvRow<T> key(fixed_token(p, item, position, item.stored), kDim, p.s.codes);
    uint2 k[kDim / 16];
    float c[4] = {};
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) k[i] = four_of(key, 16 * i + 4 * t);
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i)
      mma<ReadAs<T>>(c, query_of<T>(q.of_lanes[i][lane].x), 0, query_of<T>(q.of_lanes[i][lane].y), 0, k[i].x, k[i].y);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (first + 2 * t + i < tokens.stop) add_sum(most, sum, item.plan.scores.alpha * c[i], 1.0f);
  }
#pragma unroll
  for (int d = 1; d < 4; d *= 2) add_sum(most, sum, __shfl_xor_sync(~0u, most, d), __shfl_xor_sync(~0u, sum, d));
  if (t == 0) parts.fixed[warp][g] = {most, sum};
  __syncthreads();
  if (threadIdx.x >= p.group) return;
  float2 all{-INFINITY, 0};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) all.x = fmaxf(all.x, parts.fixed[w][threadIdx.x].x);
#pragma unroll
  for (int w = 0; w < kWarps; ++w)
    if (all.x > -INFINITY) all.y += parts.fixed[w][threadIdx.x].y * __expf(parts.fixed[w][threadIdx.x].x - all.x);
  item.terms[threadIdx.x].fixed[part] = all;
}

// Parts [first, stop) of the KV head's terms. Those of sinks and window are there after the cluster's next barrier, when
// ranks need them.   queries: room for [group][D]
template <int kDim, int kMost>
__device__ __forceinline__ void cluster_terms(const UnfusedArgs& p, const Item& item, const Queries<kDim>& q,
                                              float* queries, TermParts<kMost>& parts, int first, int stop) {
  const auto* from = reinterpret_cast<const std::uint32_t*>(p.s.selection.last_q) + item.index * p.group * (kDim / 2);
  for (int i = threadIdx.x; i < p.group * (kDim / 2); i += kThreads) {
    const std::uint32_t two = __ldcg(from + i);
    reinterpret_cast<float2*>(queries)[i] = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(two));
  }
  __syncthreads();
#pragma unroll 1
  for (int part = first; part < stop; ++part) {
    frame_part<kDim>(p, item, queries, part, parts);
    __syncthreads();
  }
  cluster_arrive();
#pragma unroll 1
  for (int part = first; part < stop && item.plan.scores.domain == Domain::kAttention; ++part) {
    if (p.s.codes != KvCodes::kNone) {
      fixed_part<EightBit>(p, item, q, part, parts);
    } else if (p.s.f16) {
      fixed_part<__half>(p, item, q, part, parts);
    } else {
      fixed_part<__nv_bfloat16>(p, item, q, part, parts);
    }
    __syncthreads();
  }
  cluster_wait();
}

// Shared memory of each block.
template <int kDim, int kTiles>
struct SketchShared {
  Item item;  // its rules would take the registers that scores need
  Queries<kDim> q;
  ClusterRank ranks;
  PageParts parts[kWarps];
  TermParts<4 * kTiles> terms;
};

// Pages by their sketches, for select_own_item().
template <int kDim, int kTiles>
struct SketchIndex {
  const UnfusedArgs& p;
  const Shape& shape;
  std::byte* memory;  // rings of the warps, then keys; behind them scores
  SketchShared<kDim, kTiles>& shared;
  SlotRow row;

  __device__ __forceinline__ int number() const { return static_cast<int>(blockIdx.x) / shape.blocks; }
  __device__ __forceinline__ int rank() const { return static_cast<int>(blockIdx.x) % shape.blocks; }
  // The block's parts of the terms: from this one up to the next block's.
  __device__ __forceinline__ int first_part() const { return rank() * kTermParts / shape.blocks; }
  __device__ __forceinline__ int stop_part() const { return (rank() + 1) * kTermParts / shape.blocks; }
  __device__ __forceinline__ float* scores(const Share& at) const {
    return pools() ? reinterpret_cast<float*>(memory + shape.keys) : shared.item.scores + at.begin;
  }
  __device__ __forceinline__ std::uint32_t* keys() const { return reinterpret_cast<std::uint32_t*>(memory); }

  __device__ __forceinline__ void prefetch() {
    row = row_of(p, number());
    prefetch_share(p, row, number(), rank(), shape.blocks);
    if (!pools()) return;
    if (rank() == 0) prefetch_speculative(p, row, number());
    prefetch_terms(p, row, number(), false, first_part(), stop_part());
    prefetch_terms(p, row, number(), true, first_part(), stop_part());
  }
  __device__ __forceinline__ bool takes(int) {
    Item own;
    if (!item_at(p, row, number(), pools() && rank() == 0, own)) return false;
    if (threadIdx.x == 0) shared.item = own;
    __syncthreads();
    return true;
  }
  __device__ __forceinline__ Share share() const {
    const Item& item = shared.item;
    return share_of(item.seq_slot, item.kv_head, item.index, item.n, rank(), shape.blocks);
  }
  __device__ __forceinline__ void score(const Share& at) {
    const Item& item = shared.item;
    const UnitEntries& e = p.s.index.entries;
    const Pages pages(entries_of(p, item) + std::int64_t{item.first + at.begin} * e.bytes, e.bytes, at.own, memory);
    pages.fetch_first(first_page(), kWarps * kPages);
    shared.q.load(static_cast<const __nv_bfloat16*>(p.s.selection.last_q) + item.index * p.group * kDim, p.group);
    if (pools()) cluster_terms(p, item, shared.q, scores(at), shared.terms, first_part(), stop_part());
    __syncthreads();
    const int warp = threadIdx.x / kWarp;
    score_share<kDim, kTiles>(p, item, shared.q, pages, shared.parts[warp], scores(at), pools() ? shape.width : p.width,
                              shared.ranks.of_warps[warp]);
  }
  __device__ __forceinline__ bool pools() const { return shape.width > 0; }
  __device__ __forceinline__ void pool(const Share& at) {
    const ClusterArgs cluster{shared.item.n_scored, shape.blocks, shape.width};
    pool_with_fixed<4 * kTiles>(shared.item, cluster, at, scores(at), keys(), shared.ranks);
  }
  __device__ __forceinline__ void mark(const Share&) {
    mark_units<4 * kTiles>(p, shared.item, keys(), p.units + static_cast<std::int64_t>(number()) * p.s.max_listed,
                           shared.ranks);
  }
};

template <int kDim, int kTiles>
__global__ void __launch_bounds__(kThreads, 2) sketch_pages_kernel(const __grid_constant__ UnfusedArgs p, Shape shape) {
  extern __shared__ __align__(16) std::byte memory[];
  __shared__ SketchShared<kDim, kTiles> shared;
  SketchIndex<kDim, kTiles> index{p, shape, memory, shared};
  select_own_item(index, shape.blocks);
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
  const UnitEntries& e = a.s.index.entries;
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
