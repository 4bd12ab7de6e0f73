// Scan of all tokens by the sketches of their pages, in place of the scan by 1-bit keys (token_scan_cuda.cu): the same
// scores and statistics for token_select_cuda.cu. A warp takes a stage of eight pages at a time (sketch_stage.cuh).
//
// Where few thread blocks take a KV head, they form a cluster, and each computes a share of its HeadTerms first.
#include <algorithm>
#include <limits>

#include "src/selection/topk/sketch/sketch_stage.cuh"
#include "src/selection/topk/token_selection_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT
using cuda::sketches::Heads, cuda::sketches::kPages, cuda::sketches::kRing, cuda::sketches::kTokens,
    cuda::sketches::PageParts, cuda::sketches::Pages, cuda::sketches::Queries;
using cuda::tokens::TokenArgs, cuda::tokens::HeadStats, cuda::tokens::kScanWarps, cuda::tokens::TokenRegion,
    cuda::tokens::scaled;

constexpr int kThreads = 32 * kScanWarps, kMaxCluster = 8;
static_assert(kScanWarps == sketches::kWarps);

// Adds a page's four scores of a lane. NaN is ignored.
//   skip, stop  of the tokens from the first of the four on, those that count
__device__ __forceinline__ void take(HeadStats& stats, float alpha, bool logs, const float (&v)[4], int skip,
                                     int stop) {
  float most = stats.max, least = stats.min;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < skip || i >= stop || !(v[i] > -INFINITY)) continue;
    most = fmaxf(most, v[i]), least = fminf(least, v[i]);
  }
  if (logs && most > -INFINITY) {
    const float base = scaled(alpha, most);
    float sum = stats.max > -INFINITY ? stats.sum * __expf(scaled(alpha, stats.max) - base) : 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i >= skip && i < stop && v[i] > -INFINITY) sum += __expf(scaled(alpha, v[i]) - base);
    stats.sum = sum;
  }
  stats.max = most, stats.min = least;
}

// Statistics of head t over the lanes 4 g + t.
__device__ __forceinline__ void reduce(HeadStats& x, float alpha) {
  const float own = x.max;
#pragma unroll
  for (int d = 4; d < kWarp; d *= 2)
    x.max = fmaxf(x.max, __shfl_xor_sync(~0u, x.max, d)), x.min = fminf(x.min, __shfl_xor_sync(~0u, x.min, d));
  x.sum = own > -INFINITY ? x.sum * __expf(scaled(alpha, own) - scaled(alpha, x.max)) : 0.0f;
#pragma unroll
  for (int d = 4; d < kWarp; d *= 2) x.sum += __shfl_xor_sync(~0u, x.sum, d);
}

// The KV head's terms by all thread blocks of its cluster, a share each; they are there when this returns.
template <int kDim>
struct ClusterTerms {
  Item item;
  int first, stop;  // parts

  __device__ __forceinline__ ClusterTerms(const TokenArgs& p, int number, std::int64_t index) {
    const int rank = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    first = rank * kTermParts / blocks, stop = (rank + 1) * kTermParts / blocks;
    item.index = index, item.n_scored = p.group;
    item.terms = p.terms + static_cast<std::int64_t>(number) * p.group;
  }
  __device__ __forceinline__ void prefetch(const TokenArgs& p) const {
    for (int part = first; part < stop; ++part) prefetch_frame(p.s, item, part);
  }
  //   q, queries: room for the group's, as f32
  __device__ __forceinline__ void compute(const TokenArgs& p, const Queries<kDim>& q, float* queries) const {
    for (int i = threadIdx.x; i < p.group * (kDim / 4); i += kThreads) {
      const int head = i / (kDim / 4), channel = i % (kDim / 4) * 4;
      const uint2 four = q.of_lanes[channel / 16][head * 4 + channel % 16 / 4];
      const float2 low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(four.x)),
                   high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(four.y));
      *reinterpret_cast<float4*>(queries + head * kDim + channel) = {low.x, low.y, high.x, high.y};
    }
    __syncthreads();
    for (int part = first; part < stop; ++part) {
      frame_terms(p.s, item, queries, part);
      __syncthreads();
    }
    cluster_sync();
  }
};

template <int kDim, int kTiles>
__global__ void __launch_bounds__(kThreads, 2) scan_kernel(TokenArgs p) {
  extern __shared__ __align__(16) std::byte rings[];
  __shared__ PageParts of_warps[kScanWarps];
  __shared__ Queries<kDim> q;
  __shared__ __align__(16) float queries[sketches::kHeads * kDim];
  launch_dependents();
  const int item = blockIdx.y, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const UnitEntries& e = p.s.index.entries;
  const int n_warps = static_cast<int>(gridDim.x) * kScanWarps, part = static_cast<int>(blockIdx.x) * kScanWarps + warp,
            step = n_warps * kPages;
  const TokenRegion info = cuda::tokens::row_info(p, item / p.s.n_kv_heads);  // there before the step's first kernel
  if (info.n_select + info.n_select_now == 0) {
    grid_dependency_wait();  // kernels behind this one wait for it alone
    return;
  }
  const std::int64_t index = slot_index(p.s, p.layer, info.seq_slot, item % p.s.n_kv_heads);
  const int page = info.base / kTokens;
  const Pages pages(e.data + (index * e.most + page) * static_cast<std::int64_t>(e.bytes), e.bytes,
                    min(e.most - page, (info.n + kTokens - 1) / kTokens), rings);
#pragma unroll
  for (int i = 0; i < kRing; ++i) pages.prefetch((part + i * n_warps) * kPages);
  const ClusterTerms<kDim> terms(p, item, index);
  if (p.terms_of_scan) terms.prefetch(p);
  grid_dependency_wait();
  pages.fetch_first(part * kPages, step);
  Heads<kTiles, kMaxSketchRank / 16> heads;
  const float alpha = info.alpha;
  q.load(static_cast<const __nv_bfloat16*>(p.s.selection.last_q) + index * p.group * kDim, p.group);
  __syncthreads();
  if (p.terms_of_scan) terms.compute(p, q, queries);
  heads.load(terms.item.terms, p.group, e.rank, alpha);
  const bool logs = info.logs(p.group);
  HeadStats stats[kTiles];
  float* scores[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    stats[tile].clear();
    const int head = min(4 * tile + t, p.group - 1);
    scores[tile] = p.scores + (static_cast<std::int64_t>(item) * p.group + head) * p.width + 4 * g;
  }
  int slot = 0;
#pragma unroll 1
  for (int first = part * kPages; first < pages.n; first += step, slot = slot + 1 == kRing ? 0 : slot + 1) {
    copy_async_wait<kRing - 1>();
    __syncwarp();
    const std::uint8_t* stage = pages.stage(first, slot);
    page_parts(q, heads, stage, e.bytes, e.rank, alpha, 1.0f / alpha, of_warps[warp]);
    const int n = min(kPages, pages.n - first);
#pragma unroll 2
    for (int i = 0; i < n; ++i) {
      float x[kTiles][4];
      page_tokens<kDim>(heads, stage, e.bytes, e.rank, of_warps[warp], i, x);
      const int at = (first + i) * kTokens, own = at + 4 * g;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (4 * tile + t >= p.group) continue;
        *reinterpret_cast<float4*>(scores[tile] + at) = {x[tile][0], x[tile][1], x[tile][2], x[tile][3]};
        take(stats[tile], alpha, logs, x[tile], info.skip - own, info.n_now - own);
      }
    }
    __syncwarp();
    pages.fetch(first + kRing * step, slot);
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    reduce(stats[tile], alpha);
    if (g == 0 && 4 * tile + t < p.group)
      p.partial[(static_cast<std::int64_t>(item) * p.group + 4 * tile + t) * p.max_parts + part] = {
          stats[tile].max, stats[tile].sum, stats[tile].min, 0};
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) p.n_parts[item] = n_warps;
  copy_async_wait<0>();
}

// Thread blocks of a KV head, where `items` KV heads are scanned at once.
int blocks_of(const DeviceCache& s, int items) {
  const int stages = (s.max_pages + kPages - 1) / kPages;
  return std::clamp(2 * sm_count() / items, 1, std::max(1, stages / kScanWarps));
}

template <int kDim, int kTiles>
void scan_as(const TokenArgs& a, const CudaContext& context) {
  static std::size_t allowed = kDefaultSharedBytes;
  const auto bytes = static_cast<std::size_t>(kScanWarps * kRing * sketches::stage_bytes(a.s.index.entries.bytes));
  allow_shared(scan_kernel<kDim, kTiles>, bytes, allowed, "the shared memory of a scan of sketches");
  const int items = a.rows.n * a.s.n_kv_heads,
            blocks = std::min(blocks_of(a.s, items), a.terms_of_scan ? kMaxCluster : std::numeric_limits<int>::max());
  launch_clusters(context, "scan_sketches", scan_kernel<kDim, kTiles>,
                  dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(items)), dim3(kThreads),
                  static_cast<unsigned>(a.terms_of_scan ? blocks : 1), bytes, a);
}

}  // namespace

bool scan_computes_terms(const DeviceCache& s, std::int32_t n_rows) {
  static const int most = most_cluster(scan_kernel<128, 1>, kThreads, kMaxCluster);
  return most == kMaxCluster && blocks_of(s, n_rows * s.n_kv_heads) <= kMaxCluster;
}

void cuda::tokens::scan_sketches(const TokenArgs& a, const CudaContext& context) {
  if (a.s.head_dim == 128) return a.group > 4 ? scan_as<128, 2>(a, context) : scan_as<128, 1>(a, context);
  return a.group > 4 ? scan_as<64, 2>(a, context) : scan_as<64, 1>(a, context);
}

}  // namespace mneme
