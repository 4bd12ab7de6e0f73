// Scores are a GEMM of keys with probes on tensor cores. A warp takes a page, and lane (g, t) loads 16 bytes of the
// keys of tokens g, g + 8, g + 16 and g + 24 directly from device memory: which channels an mma takes is free as long
// as both operands agree. Squares of the keys are summed on the fly, so that nothing else is stored per key.
#include <algorithm>
#include <cmath>

#include "src/cuda/block_reduce.cuh"
#include "src/cuda/bulk_copy.cuh"
#include "src/offload/device_cache_cuda.cuh"
#include "src/ops/attention/head_dims_cuda.h"
#include "src/selection/layer/layer_select_cuda.h"
#include "src/selection/topk/block_topk.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256;
// A decode row's few pages are scored by small thread blocks, so that all SMs have work.
constexpr int kRowThreads = 128;
constexpr int kTileProbes = 4;  // of an mma's 8 columns: 4 probes, each in two parts
constexpr int kMaxTiles = 4;
constexpr int kPadding = 64;  // bytes after a column, so that columns are in different banks

struct KeyPage {
  const std::byte* first;  // the first token's key
  int stride;              // bytes between tokens
};
__device__ __forceinline__ std::byte* chunk_page(const LayerKeys& k, int seq_slot, int kv_head, int page) {
  const std::int64_t token =
      ((static_cast<std::int64_t>(k.layer) * k.pages.n_kv_heads + kv_head) * kKeyChunkPages + page % kKeyChunkPages) *
      kKvPageTokens;
  return k.chunks[static_cast<std::int64_t>(seq_slot) * k.max_chunks + page / kKeyChunkPages] +
         token * 2 * k.pages.head_dim;
}
__device__ __forceinline__ KeyPage key_page(const LayerKeys& k, int seq_slot, int kv_head, int page) {
  if (k.chunks == nullptr) return {block_at(k.pages, k.layer, seq_slot, kv_head, page), 4 * k.pages.head_dim};
  return {chunk_page(k, seq_slot, kv_head, page), 2 * k.pages.head_dim};
}

struct ScoreArgs {
  LayerKeys keys;
  const float* probes;            // [n, width]; null: the rows' queries
  const __nv_bfloat16* remote_q;  // [rows, heads * D]
  DeviceCache cache;              // of rows
  SlotRows rows;
  int n, group, seq_slot, first, n_candidates;
  float scale;
  std::uint32_t* ranks;
  std::int64_t rank_stride;
};

// One element of a probe.
__device__ __forceinline__ float probe_at(const ScoreArgs& p, int probe, int channel) {
  const int d = p.keys.pages.head_dim, width = p.keys.pages.n_kv_heads * d;
  if (p.probes != nullptr) return p.probes[static_cast<std::int64_t>(probe) * width + channel];
  const __nv_bfloat16* q =
      p.remote_q + (static_cast<std::int64_t>(probe) * width + channel / d * d) * p.group + channel % d;
  float sum = 0;
  for (int g = 0; g < p.group; ++g) sum += widen(q[g * d]);
  return sum;
}

// Columns of probes [first, first + count): 8 per tile, the two parts of a probe four apart.
template <typename T>
__device__ void load_probes(const ScoreArgs& p, int first, int count, int n_tiles, std::uint8_t* to) {
  const int width = p.keys.pages.n_kv_heads * p.keys.pages.head_dim, bytes = 2 * width + kPadding;
  for (int i = threadIdx.x; i < n_tiles * kTileProbes * width; i += blockDim.x) {
    const int probe = i / width, channel = i % width, column = probe / kTileProbes * 8 + probe % kTileProbes;
    const float x = probe < count ? probe_at(p, first + probe, channel) : 0.0f;
    const T high = narrow<T>(x);
    reinterpret_cast<T*>(to + column * bytes)[channel] = high;
    reinterpret_cast<T*>(to + (column + kTileProbes) * bytes)[channel] = narrow<T>(x - widen(high));
  }
  __syncthreads();
}

__device__ __forceinline__ float squares(std::uint32_t v, __nv_bfloat16) {
  const float2 f = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(v));
  return f.x * f.x + f.y * f.y;
}
__device__ __forceinline__ float squares(std::uint32_t v, __half) {
  const float2 f = __half22float2(reinterpret_cast<const __half2&>(v));
  return f.x * f.x + f.y * f.y;
}

// The best cosine of each probe over the page's tokens, from its dot products c and the scaled inverse norms of the keys.
template <int kTiles>
__device__ __forceinline__ void write_page_ranks(const ScoreArgs& p, int page, const float (&c)[2][kTiles][4],
                                                 const float (&inverse)[4], int first_probe, int count) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float best = __int_as_float(0x7fffffff);  // NaN, which any number replaces
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float v = c[m][j][2 * r + i];
          best = fmaxf(best, (v + __shfl_xor_sync(~0u, v, 2)) * inverse[2 * m + r]);
        }
#pragma unroll
      for (int k = 4; k < kWarp; k *= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, k));
      const int probe = j * kTileProbes + 2 * t + i;
      if (g == 0 && t < 2 && probe < count)
        p.ranks[(first_probe + probe) * p.rank_stride + page - p.first] = sort_key(best);
    }
}

template <typename T, int kDim, int kTiles>
__device__ __forceinline__ void score_page(const ScoreArgs& p, int seq_slot, int page, const std::uint8_t* probes,
                                           int first_probe, int count) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, heads = p.keys.pages.n_kv_heads;
  const int bytes = 2 * heads * kDim + kPadding;
  constexpr int kChunks = (kDim + 31) / 32;
  constexpr bool kPartial = kDim % 32 != 0;  // heads of 80: half of the last chunk, zeros else
  float c[2][kTiles][4] = {}, square[4] = {};
  for (int head = 0; head < heads; ++head) {
    const KeyPage keys = key_page(p.keys, seq_slot, head, page);
    uint4 k[kChunks][4];
#pragma unroll
    for (int i = 0; i < kChunks; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        k[i][r] = kPartial && i * 32 + t * 8 >= kDim
                      ? uint4{}
                      : load_stream(keys.first + (g + 8 * r) * keys.stride + i * 64 + t * 16);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
        square[r] +=
            squares(k[i][r].x, T()) + squares(k[i][r].y, T()) + squares(k[i][r].z, T()) + squares(k[i][r].w, T());
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        uint4 b{};
        if (!kPartial || i * 32 + t * 8 < kDim)
          b = *reinterpret_cast<const uint4*>(probes + (j * 8 + g) * bytes + (head * kDim + i * 32) * 2 + t * 16);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint4 &low = k[i][2 * m], &high = k[i][2 * m + 1];
          mma<T>(c[m][j], low.x, high.x, low.y, high.y, b.x, b.y);
          mma<T>(c[m][j], low.z, high.z, low.w, high.w, b.z, b.w);
        }
      }
    }
  }
  float inverse[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const float s = warp_sum<4>(square[r]);
    inverse[r] = s > 0 ? __fdiv_rn(p.scale, __fsqrt_rn(s)) : 1.0f;
  }
  write_page_ranks<kTiles>(p, page, c, inverse, first_probe, count);
}

// kRows: block row y scores the query of row y; else the next probes of the one sequence.
template <typename T, int kDim, int kTiles, bool kRows>
__global__ void __launch_bounds__(kThreads, 2) score_kernel(ScoreArgs p) {
  extern __shared__ __align__(16) std::uint8_t probes[];
  launch_dependents();
  grid_dependency_wait();
  int first_probe = blockIdx.y * kTiles * kTileProbes, count = min(kTiles * kTileProbes, p.n - first_probe);
  if constexpr (kRows) {
    const SlotRow r = row_at(p.cache, p.rows, blockIdx.y);
    if (!r.sparse) return;
    const PageRegion region = page_region(r.plan, r.length);
    p.seq_slot = r.seq_slot, p.first = region.first, p.n_candidates = region.last - region.first;
    first_probe = blockIdx.y, count = 1;
  }
  const int warps = blockDim.x / kWarp, warp = blockIdx.x * warps + threadIdx.x / kWarp;
  if (blockIdx.x * warps >= p.n_candidates) return;
  load_probes<T>(p, first_probe, count, kTiles, probes);
  for (int i = warp; i < p.n_candidates; i += gridDim.x * warps)
    score_page<T, kDim, kTiles>(p, p.seq_slot, p.first + i, probes, first_probe, count);
}

// Bounds of keys[0, n) for a Ranker. Called by the whole block.
__device__ void bound_keys(Ranker& r, const std::uint32_t* keys, int n) {
  if (threadIdx.x == 0) r.least = ~0u, r.most = 0;
  __syncthreads();
  std::uint32_t least = ~0u, most = 0;
  for_keys(keys, n, [&](int, std::uint32_t key) { least = min(least, key), most = max(most, key); });
  least = __reduce_min_sync(~0u, least), most = __reduce_max_sync(~0u, most);
  if (threadIdx.x % kWarp == 0) atomicMin(&r.least, least), atomicMax(&r.most, most);
  __syncthreads();
}

struct SelectArgs {
  SelectLayer c;
  DeviceCache s;
  int layer;
};

// Entropy of softmax(values / length) of keys[0, n), divided by ln(n): score_entropy of entropy_cut.h; NaN counts as 1.
__device__ double normal_entropy(const Ranker& r, const std::uint32_t* keys, int n, float length,
                                 double (&parts)[kRankWarps]) {
  const auto cosine = [&](std::uint32_t key) { return length == 0 ? 0.0f : value_of_key(key) / length; };
  const float top = cosine(r.most);
  double sum = 0, weighted = 0;
  for_keys(keys, n, [&](int, std::uint32_t key) {
    const double x = static_cast<double>(cosine(key)) - static_cast<double>(top), e = exp(x);
    sum += e, weighted += e * x;
  });
  sum = block_sum(sum, parts), weighted = block_sum(weighted, parts);
  if (n < 2) return 0;
  const double theta = r.least == 0 ? NAN : (log(sum) - weighted / sum) / log(static_cast<double>(n));
  return isnan(theta) ? 1 : theta;
}

// EntropyCut::take of entropy_cut.h, by one thread.
__device__ int share_units(const LayerCut& cut, int layer, double theta, double later, double& pool, int n) {
  if (layer == 0) pool = static_cast<double>(cut.n_layers) * cut.k;
  if (n == 0) return 0;
  const double mine = cut.reversed ? 1 / fmax(theta, 1e-6) : theta;
  const double part = mine + later > 0 ? mine / (mine + later) : 1;
  const int low = max(1, cut.k / 2), left = cut.n_layers - 1 - layer, room = static_cast<int>(pool) - left * low;
  const int high = min(max(room, low), 2 * cut.k);
  const int units = min(n, min(max(static_cast<int>(lround(part * pool)), low), high));
  pool -= units;
  return units;
}

// Units that a window selects where layers share a budget. Called by the whole block.
__device__ int share_of_window(const WindowCut& cut, const Ranker& ranker, const std::uint32_t* keys, int n,
                               double (&parts)[kRankWarps]) {
  __shared__ int wanted;
  const float* probe = cut.probes + static_cast<std::int64_t>(blockIdx.x) * cut.width;
  double square = 0;
  for (int i = threadIdx.x; i < cut.width; i += kRankThreads)
    square += static_cast<double>(probe[i]) * static_cast<double>(probe[i]);
  const auto length = static_cast<float>(sqrt(block_sum(square, parts)));
  const double theta = normal_entropy(ranker, keys, n, length, parts);
  if (threadIdx.x == 0) {
    wanted = share_units(cut.rules, cut.layer, theta, cut.later, cut.pools[blockIdx.x], n);
    cut.shares[blockIdx.x] = {theta, wanted};
  }
  __syncthreads();
  return wanted;
}

__global__ void __launch_bounds__(kRankThreads) rank_windows_kernel(SelectWindows p) {
  __shared__ Ranker ranker;
  __shared__ double parts[kRankWarps];
  launch_dependents();
  grid_dependency_wait();
  const SelectionWindow w = p.windows[blockIdx.x];
  const bool shares = p.cut.rules.k > 0;
  int n_select = w.n_select;
  if (n_select > 0) {
    std::uint32_t* keys = p.ranks + blockIdx.x * p.rank_stride;
    bound_keys(ranker, keys, w.n_candidates);
    if (shares) n_select = share_of_window(p.cut, ranker, keys, w.n_candidates, parts);
    write_best(ranker, keys, w.n_candidates, n_select, p.first_unit,
               p.units + static_cast<std::int64_t>(blockIdx.x) * p.unit_stride);
  } else if (shares && threadIdx.x == 0) {
    // Nothing to select from: a step of the shared budget all the same.
    share_units(p.cut.rules, p.cut.layer, 0, p.cut.later, p.cut.pools[blockIdx.x], 0);
    p.cut.shares[blockIdx.x] = {-1, 0};
  }
  if (threadIdx.x == 0) p.n_units[blockIdx.x] = n_select;
}

// Without cache slots: lists the blocks of n pages, each KV head's own, for attention. Called by the whole block.
template <typename F>
__device__ __forceinline__ void list_pages(const SelectArgs& p, int seq_slot, int n, F&& page) {
  for (int i = threadIdx.x; i < n * p.s.n_kv_heads; i += kRankThreads) {
    const int head = i / n, at = i % n;
    p.s.slots.listed[slot_index(p.s, p.layer, seq_slot, head) * p.s.max_listed + at] =
        block_number(p.c.keys.pages, p.c.keys.layer, seq_slot, head, page(at));
  }
}

__global__ void __launch_bounds__(kRankThreads) select_rows_kernel(SelectArgs p) {
  __shared__ Ranker ranker;
  __shared__ double parts[kRankWarps];
  __shared__ int wanted;
  launch_dependents();
  grid_dependency_wait();
  const int row = blockIdx.x, tid = threadIdx.x;
  const SlotRow r = row_at(p.s, p.c.rows, row);
  if (r.seq_slot < 0) return;
  const LayerCut cut = p.c.cuts[r.seq_slot];
  double* theta_out = p.c.thetas + static_cast<std::int64_t>(r.seq_slot) * p.s.n_layers + p.layer;
  if (!r.sparse) {
    if (tid == 0) *theta_out = -1;
    if (p.s.n_slots == 0)
      list_pages(p, r.seq_slot, (r.length + kKvPageTokens - 1) / kKvPageTokens, [](int i) { return i; });
    return;
  }
  const PageRegion region = page_region(r.plan, r.length);
  const int n = region.last - region.first;
  std::uint32_t* keys = p.c.ranks + row * p.c.rank_stride;
  bound_keys(ranker, keys, n);
  double theta = -1;
  if (cut.k > 0) {
    double square = 0;
    const auto* q =
        static_cast<const __nv_bfloat16*>(p.c.remote_q) + static_cast<std::int64_t>(row) * p.s.n_heads * p.s.head_dim;
    for (int i = tid; i < p.s.n_heads * p.s.head_dim; i += kRankThreads) {
      const auto x = static_cast<double>(widen(q[i]));
      square += x * x;
    }
    const auto length = static_cast<float>(sqrt(block_sum(square, parts)));
    theta = normal_entropy(ranker, keys, n, length, parts);
  }
  if (tid == 0) {
    wanted = region.n_select;
    if (cut.k > 0)
      wanted =
          share_units(cut, p.layer, theta, p.c.later[static_cast<std::int64_t>(r.seq_slot) * p.s.n_layers + p.layer],
                      p.c.pools[r.seq_slot], n);
    *theta_out = n > 0 ? theta : -1;
    p.c.remote_to[row] = r.plan.region.sink + wanted * kKvPageTokens;
  }
  __syncthreads();
  const int k = wanted;
  const std::int64_t first = slot_index(p.s, p.layer, r.seq_slot, 0);
  std::int32_t* out = p.s.selection.ids[0] + first * p.s.max_listed;
  if (k > 0) write_best(ranker, keys, n, k, region.first, out);
  __syncthreads();
  for (int head = 0; head < p.s.n_kv_heads; ++head) {
    for (int i = tid; head > 0 && i < k; i += kRankThreads) out[head * p.s.max_listed + i] = out[i];
    if (tid == 0) p.s.selection.n[0][first + head] = k;
  }
  if (p.s.n_slots > 0) return;
  list_pages(p, r.seq_slot, region.first + k, [&](int i) { return i < region.first ? i : out[i - region.first]; });
  if (tid == 0) {
    add_count(p.s.counts[kept_index(p.s, p.layer, r.seq_slot)].selected, k * p.s.n_kv_heads);
  }
}

__global__ void __launch_bounds__(kThreads)
    copy_keys_kernel(KvTables from, int slot, int from_layer, LayerKeys to, int seq_slot, int first, int stop) {
  grid_dependency_wait();
  const int kv_head = blockIdx.y, pieces = kKvPageTokens * from.head_dim / 8;  // 16-byte pieces
  for (int page = first + blockIdx.x; page < stop; page += gridDim.x) {
    const std::byte* source = block_at(from, from_layer, slot, kv_head, page);
    std::byte* target = chunk_page(to, seq_slot, kv_head, page);
    for (int i = threadIdx.x; i < pieces; i += kThreads) {
      const int token = i / (from.head_dim / 8), at = i % (from.head_dim / 8);
      reinterpret_cast<uint4*>(target)[i] = load_stream(source + (token * from.head_dim * 2 + at * 8) * 2);
    }
  }
}

// list[0]: count; then the pages to fetch.
__global__ void __launch_bounds__(1024) list_missing_kernel(FetchUnits p) {
  __shared__ int n;
  grid_dependency_wait();
  if (threadIdx.x == 0) n = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < p.n_windows * p.unit_stride; i += blockDim.x) {
    if (i % p.unit_stride >= p.n_units[i / p.unit_stride]) continue;
    const int unit = p.units[i];
    if (unit < p.there && atomicExch(&p.stamps[unit], p.stamp) != p.stamp) p.list[1 + atomicAdd(&n, 1)] = unit;
  }
  __syncthreads();
  if (threadIdx.x == 0) p.list[0] = n;
}

constexpr int kFetchCtas = 2;  // per KV head: four to eight thread blocks in total saturate the link

__global__ void __launch_bounds__(512) fetch_kernel(FetchUnits p) {
  grid_dependency_wait();
  const int kv_head = blockIdx.y, warps = blockDim.x / kWarp;
  const int page_bytes = 4 * p.to.head_dim * kKvPageTokens, shift = page_piece_shift(page_bytes, kPieceBytes),
            pieces = 1 << shift, piece = page_bytes >> shift, n = p.list[0] * pieces;
  for (int i = blockIdx.x * warps + threadIdx.x / kWarp; i < n; i += gridDim.x * warps) {
    const int page = p.list[1 + i / pieces], offset = i % pieces * piece;
    copy_piece(block_at(p.to, 0, 0, kv_head, page) + offset,
               block_at(p.from, p.from_layer, p.from_slot, kv_head, page) + offset, piece);
  }
}

std::size_t probe_bytes(int width, int tiles) {
  return static_cast<std::size_t>(tiles) * 8 * static_cast<std::size_t>(2 * width + kPadding);
}

template <typename T, int kDim, int kTiles, bool kRows>
void score(const ScoreArgs& a, int n_rows, const CudaContext& context) {
  const auto kernel = score_kernel<T, kDim, kTiles, kRows>;
  const std::size_t shared = probe_bytes(a.keys.pages.n_kv_heads * kDim, kTiles);
  static std::size_t allowed = kDefaultSharedBytes;
  allow_shared(kernel, shared, allowed, "the scores' shared memory");
  // Only the device knows a row's pages: launch as many thread blocks as fill it.
  constexpr int kWarps = kThreads / kWarp;
  const int blocks = kRows ? sm_count() * 4 : std::min((a.n_candidates + kWarps - 1) / kWarps, sm_count() * 2);
  launch(context, "score_layer", kernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(n_rows)),
         dim3(kRows ? kRowThreads : kThreads), shared, a);
}

template <int kTiles, bool kRows>
void score(const ScoreArgs& a, int n_rows, const CudaContext& context) {
  const KvTables& t = a.keys.pages;
  with_head_dim(t.head_dim, [&]<int kDim>(std::integral_constant<int, kDim>) {
    t.f16 ? score<__half, kDim, kTiles, kRows>(a, n_rows, context)
          : score<__nv_bfloat16, kDim, kTiles, kRows>(a, n_rows, context);
  });
}

float key_scale(int group) {
  return 1.0f / std::sqrt(static_cast<float>(group));
}

}  // namespace

std::size_t key_chunk_bytes(std::int32_t n_layers, std::int32_t n_kv_heads, std::int32_t head_dim) {
  return static_cast<std::size_t>(n_layers) * static_cast<std::size_t>(n_kv_heads) * kKeyChunkPages * kKvPageTokens *
         static_cast<std::size_t>(head_dim) * 2;
}

void copy_keys_cuda(const KvTables& from, std::int32_t slot, std::int32_t from_layer, const LayerKeys& to,
                    std::int32_t seq_slot, std::int32_t first, std::int32_t stop, const CudaContext& context) {
  if (stop <= first) return;
  const dim3 grid(static_cast<unsigned>(std::min(stop - first, 64)), static_cast<unsigned>(from.n_kv_heads));
  launch(context, "copy_keys", copy_keys_kernel, grid, dim3(kThreads), 0, from, slot, from_layer, to, seq_slot, first,
         stop);
}

void select_windows_cuda(const SelectWindows& c, const CudaContext& context) {
  if (c.n_windows == 0) return;
  ScoreArgs a{};
  a.keys = c.keys, a.probes = c.probes;
  a.n = c.n_windows, a.group = c.n_heads / c.keys.pages.n_kv_heads;
  a.seq_slot = c.seq_slot, a.first = c.first_unit, a.n_candidates = c.n_candidates;
  a.scale = key_scale(a.group);
  a.ranks = c.ranks, a.rank_stride = c.rank_stride;
  if (c.n_candidates > 0) {
    // Two thread blocks per SM, if shared memory allows.
    const int width = c.keys.pages.n_kv_heads * c.keys.pages.head_dim;
    if (c.n_windows > kTileProbes && probe_bytes(width, kMaxTiles) <= (100 << 10)) {
      score<kMaxTiles, false>(a, (c.n_windows + kMaxTiles * kTileProbes - 1) / (kMaxTiles * kTileProbes), context);
    } else {
      score<1, false>(a, (c.n_windows + kTileProbes - 1) / kTileProbes, context);
    }
  }
  launch(context, "rank_windows", rank_windows_kernel, dim3(static_cast<unsigned>(c.n_windows)), dim3(kRankThreads), 0,
         c);
}

void select_layer_cuda(const SelectLayer& c, const DeviceCache& s, std::int32_t slot_layer,
                       const CudaContext& context) {
  if (c.rows.n == 0) return;
  ScoreArgs a{};
  a.keys = c.keys, a.remote_q = static_cast<const __nv_bfloat16*>(c.remote_q);
  a.cache = of_layer(s, slot_layer), a.rows = c.rows, a.n = c.rows.n, a.group = s.n_heads / s.n_kv_heads;
  a.scale = key_scale(a.group);
  a.ranks = c.ranks, a.rank_stride = c.rank_stride;
  score<1, true>(a, c.rows.n, context);
  launch(context, "select_layer", select_rows_kernel, dim3(static_cast<unsigned>(c.rows.n)), dim3(kRankThreads), 0,
         SelectArgs{c, a.cache, slot_layer});
}

void fetch_units_cuda(const FetchUnits& b, const CudaContext& context) {
  launch(context, "list_missing", list_missing_kernel, dim3(1), dim3(1024), 0, b);
  launch(context, "fetch_units", fetch_kernel, dim3(kFetchCtas, static_cast<unsigned>(b.to.n_kv_heads)), dim3(512), 0,
         b);
}

}  // namespace mneme
