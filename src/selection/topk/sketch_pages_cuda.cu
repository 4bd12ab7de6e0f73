// Fused selection of pages of 32 by the sketches of their keys (sketch.h): a cluster of thread blocks takes one KV head of
// a row, each block scores a share of the pages into its shared memory, and the cluster ranks them as the unfused selection
// does (unfused_rank.cuh). Before Hopper, and where shares do not fit, the scores go to device memory and a launch of its
// own ranks them.
//
// A warp takes a stage of eight pages, which cp.async copies to shared memory while the stage before is scored:
//
//   means         tensor cores, the eight pages at once: rows are query heads, columns pages
//   coefficients  tensor cores, a page at a time: rows are tokens, columns the upper and lower bf16 halves of four heads'
//                 weights, so that lane (g, t) has four tokens of head t. A nibble n becomes 16 + n, taken off the products
//   page          the log-sum-exp of the tokens, to base 2, over the lanes of a head
//
// Which coefficients and tokens an mma takes at once is free as long as both operands agree: a lane reads four
// coefficients of four neighbouring tokens, two bytes each, and a warp's reads have no bank conflict.
#include <algorithm>

#include "src/selection/topk/head_terms.cuh"
#include "src/selection/topk/unfused_rank.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = kScoreThreads, kWarps = kScoreWarps;
constexpr int kTokens = kKvPageTokens, kPages = 8, kRing = 2;  // pages of a stage
constexpr int kHeads = 8;                                      // query heads of a KV head, at most
constexpr int kSteps = kMaxSketchRank / 16;                    // of 16 coefficients
constexpr float kBias = 24;                                    // of 16 + n over n - 8
constexpr float kLn2 = 0.6931471805599453f;
constexpr int kStaticShared = 16 << 10;

// A stage with up to 16 bytes before and behind it, in units of 16 bytes.
__host__ __device__ constexpr int stage_bytes(int entry_bytes) {
  return (kPages * entry_bytes + 15) / 16 * 16 + 16;
}

struct Shape {
  int blocks;  // of a KV head
  int width;   // of a block's row of scores in shared memory; 0: scores go to UnfusedArgs::scores, nothing is ranked
  int keys;    // bytes of the rings, or of the keys that replace them
};

// What a stage's pages add to all of their tokens, and the factor of their coefficients; to base 2.
struct PageParts {
  float all[kPages][kHeads], step[kPages];
};

__device__ __forceinline__ int word_at(const std::uint8_t* at) {
  return *reinterpret_cast<const std::uint16_t*>(at);
}
__device__ __forceinline__ float half_at(const std::uint8_t* at) {
  return __half2float(__ushort_as_half(*reinterpret_cast<const std::uint16_t*>(at)));
}
__device__ __forceinline__ float power_of(float x) {
  float v;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
  return v;
}

// Two signed bytes as bf16: 128 + the lower seven bits, less 128 or, where the sign is set, 256.
__device__ __forceinline__ std::uint32_t signed_pair(int word) {
  const std::uint32_t y = __byte_perm(static_cast<std::uint32_t>(word), 0, 0x4140);
  const std::uint32_t low = (y & 0x007f007fu) | 0x43004300u, sign = (y & 0x00800080u) | 0x43004300u;
  const __nv_bfloat162 v =
      __hsub2(reinterpret_cast<const __nv_bfloat162&>(low), reinterpret_cast<const __nv_bfloat162&>(sign));
  return reinterpret_cast<const std::uint32_t&>(v);
}

// Nibble kAt of two words, as bf16 values 16 + n.
template <int kAt>
__device__ __forceinline__ std::uint32_t nibble_pair(std::uint32_t words) {
  const std::uint32_t at = kAt == 0 ? words << 3 : words >> (kAt > 0 ? 4 * kAt - 3 : 0);
  return (at & 0x00780078u) | 0x41804180u;
}

// A lane's part of the queries, and what its query head, g, adds to all pages. Groups of at most eight.
template <int kDim, int kTiles>
struct Heads {
  std::uint32_t q[kDim / 16][2];             // channels 16 i + 4 t .. + 3 of head g
  std::uint32_t weights[kTiles][kSteps][2];  // of column g: half g % 2 of head 4 tile + g / 2
  float base, spread, bias;                  // of head g; bias: kBias times the sum of its weights

  __device__ __forceinline__ void load(const UnfusedArgs& p, const Item& item) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const auto* from = static_cast<const __nv_bfloat16*>(p.s.last_q) + (item.index * p.group + g) * kDim + 4 * t;
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      const uint2 four = g < p.group ? __ldcg(reinterpret_cast<const uint2*>(from + 16 * i)) : uint2{0, 0};
      q[i][0] = four.x, q[i][1] = four.y;
    }
    static_assert(kTermParts == 16, "four lanes of a head, four parts each");
    const HeadTerms& own = item.terms[min(g, p.group - 1)];
    const auto parts = [&](const float(&of)[kTermParts]) {
      const float4 four = __ldcg(reinterpret_cast<const float4*>(of) + t);
      return warp_sum<4>(four.x + four.y + four.z + four.w);
    };
    const float alpha = item.rules.alpha;
    base = alpha * parts(own.base), spread = fmaxf(0.0f, alpha * alpha * parts(own.spread));
    load_weights(item.terms, p.group, p.s.entries.rank);
  }

  __device__ __forceinline__ void load_weights(const HeadTerms* terms, int n_heads, int rank) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    bias = 0;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int head = 4 * tile + g / 2;
      float sum = 0;
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float v[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int c = 16 * step + 8 * half + 4 * i + t;
            const float x = head < n_heads && c < rank ? __ldcg(terms[head].of_basis + c) : 0.0f;
            v[i] = widen(narrow<__nv_bfloat16>(x));
            if (g % 2 == 1) v[i] = widen(narrow<__nv_bfloat16>(x - v[i]));
            sum += v[i];
          }
          weights[tile][step][half] = pack<__nv_bfloat16>(v[0], v[1]);
        }
      sum = warp_sum<4>(sum);
      sum += __shfl_xor_sync(~0u, sum, 4);                      // both halves
      const float of_own = __shfl_sync(~0u, sum, 8 * (g % 4));  // head 4 tile + g % 4
      if (g / 4 == tile) bias = kBias * of_own;
    }
  }
};

// Copies up to eight pages behind `first` of a share of n to the ring.
__device__ __forceinline__ void fetch(const std::byte* entries, int entry_bytes, int first, int n, std::uint32_t to) {
  if (first < n) {
    const std::byte* from = entries + static_cast<std::int64_t>(first) * entry_bytes;
    const int skew = static_cast<int>(reinterpret_cast<std::uintptr_t>(from) % 16),
              bytes = min(kPages, n - first) * entry_bytes + skew;
    for (int i = static_cast<int>(threadIdx.x) % kWarp * 16; i < bytes; i += kWarp * 16)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + static_cast<std::uint32_t>(i)),
                   "l"(from - skew + i), "r"(min(16, bytes - i))
                   : "memory");
  }
  copy_async_commit();
}

// The parts of a stage's pages. Columns of the mma are pages, so that lane (g, t) has pages 2 t and 2 t + 1 of head g.
template <int kDim, int kTiles>
__device__ __forceinline__ void page_parts(const Heads<kDim, kTiles>& heads, const std::uint8_t* stage, int entry_bytes,
                                           int rank, float alpha, float limit, PageParts& parts) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const std::uint8_t* mean = stage + g * entry_bytes + 4 * t;
  float even[4] = {}, odd[4] = {};  // two chains of sums
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i)
    mma<__nv_bfloat16>(i % 2 == 0 ? even : odd, heads.q[i][0], 0, heads.q[i][1], 0, signed_pair(word_at(mean + 16 * i)),
                       signed_pair(word_at(mean + 16 * i + 2)));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int page = 2 * t + i;
    const std::uint8_t* scales = stage + page * entry_bytes + kDim + rank * (kTokens / 2);
    const float step = alpha * half_at(scales + 2), variance = variance_of(scales[4]);
    const float all = fmaf(alpha * half_at(scales), even[i] + odd[i], heads.base) +
                      gain_of(heads.spread * variance, limit) - step * heads.bias;
    parts.all[page][g] = kLog2e * all;
    if (g == 0) parts.step[page] = kLog2e * step;
  }
  __syncwarp();
}

// Logarithm to base 2, of each tile's head t, of a page's sum over tokens, as largest and sum of powers less it.
//   nibbles  the lane's four tokens of coefficient 0
template <int kDim, int kTiles>
__device__ __forceinline__ void page_sums(const Heads<kDim, kTiles>& heads, const std::uint8_t* nibbles, int rank,
                                          const PageParts& parts, int page, float2 (&sums)[kTiles]) {
  const int t = threadIdx.x % 4;
  float dots[kTiles][2][4] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (16 * step >= rank) break;
    const auto at = [&](int i) {
      return static_cast<std::uint32_t>(word_at(nibbles + min(16 * step + 4 * i + t, rank - 1) * (kTokens / 2)));
    };
    const std::uint32_t low = at(0) | at(1) << 16, high = at(2) | at(3) << 16;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const std::uint32_t(&w)[2] = heads.weights[tile][step];
      mma<__nv_bfloat16>(dots[tile][0], nibble_pair<0>(low), nibble_pair<1>(low), nibble_pair<0>(high),
                         nibble_pair<1>(high), w[0], w[1]);
      mma<__nv_bfloat16>(dots[tile][1], nibble_pair<2>(low), nibble_pair<3>(low), nibble_pair<2>(high),
                         nibble_pair<3>(high), w[0], w[1]);
    }
  }
  const float step = parts.step[page];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const float all = parts.all[page][4 * tile + t];
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      x[i] = fmaf(step, dots[tile][i / 2][2 * (i % 2)] + dots[tile][i / 2][2 * (i % 2) + 1], all);
    float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
#pragma unroll
    for (int d = 4; d < kWarp; d *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    float sum = power_of(x[0] - most) + power_of(x[1] - most) + power_of(x[2] - most) + power_of(x[3] - most);
#pragma unroll
    for (int d = 4; d < kWarp; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    sums[tile] = {most, sum};
  }
}

// Scores the block's share of the pages.   rings [warps][kRing] stages; scores [n_scored][width]; of_heads: the warp's
// parts of the heads' log-sum-exps
template <int kDim, int kTiles>
__device__ __forceinline__ void score_share(const UnfusedArgs& p, const Item& item, const Share& at, std::byte* rings,
                                            PageParts& parts, float* scores, std::int64_t width,
                                            float2 (&of_heads)[kMaxGroup]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const UnitEntries& e = p.s.entries;
  const std::byte* entries = entries_of(p, item) + std::int64_t{item.first + at.begin} * e.bytes;
  const int bytes = stage_bytes(e.bytes);
  std::byte* ring = rings + warp * kRing * bytes;
#pragma unroll
  for (int i = 0; i < kRing; ++i)
    fetch(entries, e.bytes, (warp + i * kWarps) * kPages, at.own, shared_address(ring + i * bytes));
  Heads<kDim, kTiles> heads;
  heads.load(p, item);
  const float alpha = item.rules.alpha, inverse = 1.0f / alpha, limit = spread_limit_of(static_cast<float>(kTokens));
  float most[kTiles], sum[kTiles];  // over the lane's pages
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) most[tile] = -INFINITY, sum[tile] = 0;
  int slot = 0;
#pragma unroll 1
  for (int first = warp * kPages; first < at.own; first += kWarps * kPages, slot = slot + 1 == kRing ? 0 : slot + 1) {
    copy_async_wait<kRing - 1>();
    __syncwarp();
    const std::byte* from = entries + std::int64_t{first} * e.bytes;
    const auto* stage =
        reinterpret_cast<const std::uint8_t*>(ring + slot * bytes) + reinterpret_cast<std::uintptr_t>(from) % 16;
    page_parts(heads, stage, e.bytes, e.rank, alpha, limit, parts);
    float2 own[kTiles] = {};  // of page g
#pragma unroll 4
    for (int page = 0; page < kPages; ++page) {
      float2 sums[kTiles];
      page_sums(heads, stage + page * e.bytes + kDim + 2 * g, e.rank, parts, page, sums);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        if (page == g) own[tile] = sums[tile];
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (first + g >= at.own || 4 * tile + t >= p.group) continue;
      const float log = kLn2 * (own[tile].x + __log2f(own[tile].y));
      scores[(4 * tile + t) * width + first + g] = inverse * log;
      if (!isnan(log)) add_sum(most[tile], sum[tile], fminf(log, 3.4028235e38f), 1.0f);
    }
    __syncwarp();
    fetch(entries, e.bytes, first + kRing * kWarps * kPages, at.own, shared_address(ring + slot * bytes));
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
#if __CUDA_ARCH__ >= 900
  if (!r.sparse || p.when != SelectWhen::kNow || r.rules.schedule == SlotSchedule::kKept) return;
  const int kv_head = number % p.s.n_kv_heads, each = r.rules.unit_tokens == 1 ? kTokens : 1;
  const PageRegion region = page_region(r.rules, r.length);
  const int first = region.first / each, n = region.last / each - first;
  const Share at = share_of(r.seq_slot, kv_head, slot_index(p.s, p.slot_layer, r.seq_slot, kv_head), n, rank, blocks);
  const UnitEntries& e = p.s.entries;
  const std::byte* from = e.data + (at.index * e.most + first + at.begin) * static_cast<std::int64_t>(e.bytes);
  const int skew = static_cast<int>(reinterpret_cast<std::uintptr_t>(from) % 16), piece = 2048,
            bytes = (at.own * e.bytes + skew) / 16 * 16;
  for (int i = static_cast<int>(threadIdx.x) * piece; i < bytes; i += kThreads * piece)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from - skew + i),
                 "r"(static_cast<std::uint32_t>(min(piece, bytes - i))));
#endif
}

template <int kDim, int kTiles>
__global__ void __launch_bounds__(kThreads, 2) sketch_pages_kernel(UnfusedArgs p, Shape shape) {
  extern __shared__ __align__(16) std::byte memory[];  // rings of the warps, then keys; behind them scores
  __shared__ Item item;                                // its rules would take the registers that scores need
  __shared__ ClusterRank ranks;
  __shared__ PageParts parts[kWarps];
  cluster_begin();
  launch_dependents();
  const int number = static_cast<int>(blockIdx.x) / shape.blocks, rank = static_cast<int>(blockIdx.x) % shape.blocks;
  const bool selects = shape.width > 0;
  const RowOfSlots row = row_of(p, number);
  prefetch_share(p, row, number, rank, shape.blocks);
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
  if (selects) load_fixed(item, ranks.sums);
  const int warp = threadIdx.x / kWarp;
  score_share<kDim, kTiles>(p, item, at, memory, parts[warp], scores, selects ? shape.width : p.width,
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
  const std::int64_t all = shape.keys + std::int64_t{4} * a.group * shape.width;
  const bool ranks = has_hopper_code() && all <= limit;
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
