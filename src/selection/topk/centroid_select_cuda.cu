// A cluster of thread blocks takes a KV head of a row: each block computes its part of the heads' terms, which the
// blocks exchange; scores its share of the pages to shared memory; pools it; and the first block ranks all of them
// (unfused_rank.cuh). Entries are prefetched to L2 while the kernel before this one runs.
//
// A warp takes the 16 centroids of two pages at a time by tensor cores. Lane 4 g + t loads a quarter of the nibbles of
// centroid g of both. Nibbles n become the bf16 values 128 + n by one or two instructions; what that adds is taken off
// the products. Columns of the mma: four queries' upper halves, then their lower halves.
#include <algorithm>

#include "src/selection/topk/centroid_select_cuda.h"
#include "src/selection/topk/head_terms.cuh"
#include "src/selection/topk/unfused_rank.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = kScoreThreads, kWarps = kScoreWarps;
constexpr int kHeads = 4, kCentroids = 8, kTilePages = 2;
constexpr int kStaticShared = 12 << 10;
constexpr float kBias = 136;  // of 128 + n over n - 8

struct Args {
  UnfusedArgs u;
  int blocks;  // of a cluster
  int width;   // of a row of scores: the most pages of a block's share
};

// Dynamic shared memory.
struct Arrays {
  std::uint32_t* keys;   // [width of UnfusedArgs]
  float* scores;         // [kHeads][width]
  float* q;              // [kHeads][D]
  __nv_bfloat16* split;  // [2 kHeads][D]: upper halves, lower halves, in the order of nibbles_at()
  std::int32_t* units;   // [max_listed]

  __device__ Arrays(std::uint32_t* base, const Args& a)
      : keys(base),
        scores(reinterpret_cast<float*>(keys + a.u.width)),
        q(scores + kHeads * a.width),
        split(reinterpret_cast<__nv_bfloat16*>(q + kHeads * a.u.s.head_dim)),
        units(reinterpret_cast<std::int32_t*>(split + 2 * kHeads * a.u.s.head_dim)) {}
  static std::size_t bytes(const Args& a) {
    const std::int64_t words = a.u.width + kHeads * a.width + 2 * kHeads * a.u.s.head_dim + a.u.s.max_listed;
    return static_cast<std::size_t>(words) * 4;
  }
};

// What a query head adds to every page.
struct Terms {
  float base, spread;  // alpha q . mean; alpha^2 q^T C q
  float bias;          // of its products
};

struct Shared {
  ClusterRank rank;
  HeadTerms heads[kHeads];
  Terms terms[kHeads];
};

// Prefetches a block's share of the entries to L2: those of candidate pages are complete.
__device__ __forceinline__ void ask_for_entries(const UnfusedArgs& p, int number, int rank, int blocks) {
#if __CUDA_ARCH__ >= 900
  const RowOfSlots r = row_at(p.s, p.rows, number / p.s.n_kv_heads);
  if (!r.sparse || p.when != SelectWhen::kNow || r.rules.schedule == SlotSchedule::kKept) return;
  const PageRegion region = page_region(r.rules, r.length);
  const int n = region.last - region.first, each = eights((n + blocks - 1) / blocks), begin = min(n, rank * each);
  const UnitEntries& e = p.s.entries;
  const std::int64_t bytes = static_cast<std::int64_t>(min(n - begin, each)) * e.bytes, piece = 8 * e.bytes;
  const std::byte* from =
      e.data + (slot_index(p.s, p.slot_layer, r.seq_slot, number % p.s.n_kv_heads) * e.most + region.first + begin) *
                   static_cast<std::int64_t>(e.bytes);
  for (std::int64_t at = threadIdx.x * piece; at < bytes; at += kThreads * piece)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from + at),
                 "r"(static_cast<std::uint32_t>(min(piece, bytes - at))));
#endif
}

// The heads' terms, in parts over the cluster's blocks, which send one another theirs.
template <typename T>
__device__ void exchange_terms(const UnfusedArgs& p, const Item& item, const float* q, int rank, int blocks) {
  for (int part = rank; part < kTermParts; part += blocks) {
    head_terms<T>(p, item, q, part);
    __syncthreads();
  }
  const int parts = kTermParts / blocks;
  for (int i = threadIdx.x; i < parts * item.n_scored * blocks; i += kThreads) {
    const int part = rank + i % parts * blocks, g = i / parts % item.n_scored, to = i / parts / item.n_scored;
    if (to == rank) continue;
    HeadTerms& terms = item.terms[g];
    put(address_in(&terms.base[part], to), __float_as_uint(terms.base[part]));
    put(address_in(&terms.spread[part], to), __float_as_uint(terms.spread[part]));
    if (item.rules.whole_attention != 0) put(address_in(&terms.fixed[part], to), terms.fixed[part]);
  }
}

// Queries in units of the channels' deviations, in two halves each; after the exchange of terms, a warp a head.
__device__ void split_queries(const UnfusedArgs& p, const Item& item, const Arrays& a) {
  const int d = p.s.head_dim;
  const float* deviation = frame_of(p, item).deviation;
  for (int i = threadIdx.x; i < kHeads * d; i += kThreads) {
    const int g = i / d, c = i % d, at = c / 8 * 8 + c % 4 * 2 + c % 8 / 4;  // 0 4 1 5 2 6 3 7
    const float x = g < item.n_scored ? a.q[i] * __ldg(deviation + c) : 0.0f;
    const __nv_bfloat16 high = narrow<__nv_bfloat16>(x);
    a.split[g * d + at] = high;
    a.split[(kHeads + g) * d + at] = narrow<__nv_bfloat16>(x - widen(high));
  }
}
__device__ void sum_terms(const UnfusedArgs& p, const Item& item, const Arrays& a, Terms* terms) {
  const int g = threadIdx.x / kWarp, d = p.s.head_dim;
  if (g >= kHeads) return;
  float bias = 0;
  for (int c = threadIdx.x % kWarp; c < d; c += kWarp)
    bias += widen(a.split[g * d + c]) + widen(a.split[(kHeads + g) * d + c]);
  bias = kBias * warp_sum(bias);
  if (threadIdx.x % kWarp != 0) return;
  const HeadTerms& head = item.terms[min(g, item.n_scored - 1)];
  const float alpha = item.rules.alpha;
  terms[g] = {alpha * head.sum(head.base), fmaxf(0.0f, alpha * alpha * head.sum(head.spread)), bias};
}

// Values i and i + 4 of a word of nibbles, as two bf16: 128 + n is 0x4300 | n.
__device__ __forceinline__ std::uint32_t nibbles_at(std::uint32_t word, int i) {
  return (word >> (4 * i) & 0x000f000fu) | 0x43004300u;
}

// A warp's two pages: a lane's words of centroid g of both; of centroid g of page t / 2 scale, keys, code of variance.
template <int kWords>
struct Tile {
  std::uint32_t words[kTilePages][kWords];
  float scale;
  int n, code;  // n 0: no weight

  // first: page of the share, whose entries begin at `entries`
  __device__ __forceinline__ void load(const std::byte* entries, int bytes, int first, int own) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int page = 0; page < kTilePages; ++page) {
      const bool there = first + page < own;
      const std::byte* from =
          entries + static_cast<std::int64_t>(first + page) * bytes + g * (16 * kWords) + t * (4 * kWords);
      if constexpr (kWords == 4) {
        const uint4 v = there ? __ldg(reinterpret_cast<const uint4*>(from)) : uint4{};
        words[page][0] = v.x, words[page][1] = v.y, words[page][2] = v.z, words[page][3] = v.w;
      } else {
        const uint2 v = there ? __ldg(reinterpret_cast<const uint2*>(from)) : uint2{};
        words[page][0] = v.x, words[page][1] = v.y;
      }
    }
    scale = 0, n = code = 0;
    if (first + t / 2 >= own) return;
    const std::byte* scales = entries + static_cast<std::int64_t>(first + t / 2) * bytes + kCentroids * 16 * kWords;
    scale = __half2float(__ushort_as_half(*reinterpret_cast<const std::uint16_t*>(scales + 2 * g)));
    n = static_cast<int>(scales[2 * kCentroids + g]), code = static_cast<int>(scales[3 * kCentroids + g]);
  }

  // Products of centroid g of page t / 2 with heads 2 (t % 2) and the next.
  __device__ __forceinline__ float2 multiply(const uint2 (&q)[kWords][2]) const {
    float c[4] = {};
#pragma unroll
    for (int i = 0; i < kWords; ++i)
#pragma unroll
      for (int step = 0; step < 2; ++step)
        mma<__nv_bfloat16>(c, nibbles_at(words[0][i], 2 * step), nibbles_at(words[1][i], 2 * step),
                           nibbles_at(words[0][i], 2 * step + 1), nibbles_at(words[1][i], 2 * step + 1), q[i][step].x,
                           q[i][step].y);
    const bool second = threadIdx.x % 4 >= 2;  // has the lower halves, and takes the second page
    const float x = __shfl_xor_sync(~0u, second ? c[0] : c[2], 2), y = __shfl_xor_sync(~0u, second ? c[1] : c[3], 2);
    return {(second ? c[2] : c[0]) + x, (second ? c[3] : c[1]) + y};
  }
};

// log(sum of exp) over the eight lanes 4 g + t of a page.
__device__ __forceinline__ float sum_logs(float log) {
  float max = log;
#pragma unroll
  for (int d = 4; d < kWarp; d *= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, d));
  float sum = __expf(log - (max == -INFINITY ? 0.0f : max));
#pragma unroll
  for (int d = 4; d < kWarp; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
  return max + __logf(sum);
}

template <int kWords>
__device__ void score_share(const Args& args, const Item& item, const Share& at, const Arrays& a, const Terms* terms) {
  const UnitEntries& e = args.u.s.entries;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, head = t % 2 * 2, d = 32 * kWords;
  const std::byte* entries = entries_of(args.u, item) + static_cast<std::int64_t>(item.first + at.begin) * e.bytes;
  uint2 q[kWords][2];
#pragma unroll
  for (int i = 0; i < kWords; ++i)
#pragma unroll
    for (int step = 0; step < 2; ++step)
      q[i][step] = *reinterpret_cast<const uint2*>(a.split + g * d + 8 * (kWords * t + i) + 4 * step);
  const Terms own[2] = {terms[head], terms[head + 1]};
  const float alpha = item.rules.alpha, inverse = 1.0f / alpha,
              limit = spread_limit_of(static_cast<float>(e.tokens) / static_cast<float>(kCentroids));
  constexpr int kStep = kWarps * kTilePages;
  int first = static_cast<int>(threadIdx.x) / kWarp * kTilePages;
  Tile<kWords> next;
  next.load(entries, e.bytes, first, at.own);
#pragma unroll 1
  for (; first < at.own; first += kStep) {
    const Tile<kWords> tile = next;
    if (first + kStep < at.own) next.load(entries, e.bytes, first + kStep, at.own);
    const float2 dots = tile.multiply(q);
    const float scale = alpha * tile.scale, variance = variance_of(tile.code),
                log_n = tile.n == 0 ? -INFINITY : __logf(static_cast<float>(tile.n));
    const int page = first + t / 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float dot = (i == 0 ? dots.x : dots.y) - own[i].bias;
      const float log = fmaf(scale, dot, own[i].base) + gain_of(own[i].spread * variance, limit) + log_n;
      const float score = sum_logs(log) * inverse;
      if (g == 0 && page < at.own && head + i < item.n_scored) a.scores[(head + i) * args.width + page] = score;
    }
  }
}

template <typename T, int kWords>
__global__ void __launch_bounds__(kThreads, 1) select_kernel(Args args) {
  extern __shared__ __align__(16) std::uint32_t dynamic[];
  __shared__ Shared shared;
  const UnfusedArgs& p = args.u;
  const int number = static_cast<int>(blockIdx.x) / args.blocks, rank = static_cast<int>(blockIdx.x) % args.blocks;
  cluster_begin();
  launch_dependents();
  ask_for_entries(p, number, rank, args.blocks);
  grid_dependency_wait();
  cluster_begun();
  Item item;
  if (!item_at(p, number, rank == 0, item)) return;
  item.terms = shared.heads;
  const Arrays a(dynamic, args);
  const Share at = share_of(item, rank, args.blocks);
  load_queries(p, item, a.q);
  exchange_terms<T>(p, item, a.q, rank, args.blocks);
  cluster_arrive();
  split_queries(p, item, a);
  cluster_wait();
  __syncthreads();
  sum_terms(p, item, a, shared.terms);
  __syncthreads();
  score_share<kWords>(args, item, at, a, shared.terms);
  __syncthreads();
  rank_share<kHeads>(p, item, {item.n_scored, args.blocks, args.width}, at, a.scores, a.keys, a.units, shared.rank);
}

template <typename T, int kWords>
bool run(const UnfusedArgs& u, const CudaContext& context) {
  const auto kernel = select_kernel<T, kWords>;
  static const int limit = [&] {
    const int bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kStaticShared;
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "the shared memory of a selection by centroids");
    return bytes;
  }();
  static const int most = most_cluster(kernel, kThreads, kMaxSelectBlocks);
  const int items = u.rows.n * u.s.n_kv_heads;
  Args a{u, blocks_for(items, most), 0};
  a.width = eights((static_cast<int>(u.width) + a.blocks - 1) / a.blocks);
  if (Arrays::bytes(a) > static_cast<std::size_t>(limit)) return false;
  launch_clusters(context, "select_by_centroids", kernel, dim3(static_cast<unsigned>(items * a.blocks)), dim3(kThreads),
                  static_cast<unsigned>(a.blocks), Arrays::bytes(a), a);
  return true;
}

}  // namespace

bool select_by_centroids_cuda(const UnfusedArgs& u, const CudaContext& context) {
  const KvSlots& s = u.s;
  const bool fits = s.entries.kind == EntryKind::kCentroidSet && s.entries.rank == kCentroids && u.group <= kHeads &&
                    s.unit_tokens == kKvPageTokens && s.entries.tokens == kKvPageTokens && has_hopper_code();
  if (!fits || u.rows.n == 0) return false;
  if (s.head_dim == 128) return s.f16 ? run<__half, 4>(u, context) : run<__nv_bfloat16, 4>(u, context);
  if (s.head_dim == 64) return s.f16 ? run<__half, 2>(u, context) : run<__nv_bfloat16, 2>(u, context);
  return false;
}

}  // namespace mneme
