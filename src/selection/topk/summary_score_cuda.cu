// Scores of summarised units (selection/summary) for the unfused selection. Two launches:
//
//   terms   one thread block a query head: what it brings to every unit (HeadTerms)
//   score   a warp takes 16 centroids at a time by tensor cores, or one entry of a sketch or of moments
//
// Which channels an mma takes at once is free as long as both operands agree: lane 4 g + t takes whole words of 8 values
// of rows g and g + 8, so that four lanes read 16 consecutive bytes of a centroid. Queries are split into two bf16 values,
// which hold 16 bits of them.
#include <algorithm>

#include "src/selection/topk/unfused_item.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = kScoreThreads, kWarps = kScoreWarps;
constexpr int kRows = 16;    // centroids of a tile
constexpr int kSkew = 32;    // values behind a row of queries in shared memory, against bank conflicts
constexpr int kCodes = 256;  // variance codes

struct Frame {
  const float *mean, *basis, *covariance, *deviation;
};
__device__ Frame frame_of(const UnfusedArgs& p, const Item& item) {
  const UnitEntries& e = p.s.entries;
  const int d = p.s.head_dim, r = e.kind == EntryKind::kSketch ? e.rank : 0;
  const float* mean = e.frames + item.index * e.frame_floats;
  return {mean, mean + d, mean + d * (1 + r), mean + d * (1 + r + d)};
}

// ---- terms

__device__ float block_sum(float v) {
  __shared__ float of_warps[kWarps];
  v = warp_sum(v);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = v;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += of_warps[w];
  return sum;
}

__device__ float warp_dot(const float* a, const float* b, int d) {
  float sum = 0;
  for (int c = threadIdx.x % kWarp; c < d; c += kWarp) sum = fmaf(a[c], b[c], sum);
  return warp_sum(sum);
}

__device__ void frame_terms(const UnfusedArgs& p, const Item& item, const float* q, HeadTerms& out) {
  const int d = p.s.head_dim, tid = threadIdx.x, warp = tid / kWarp;
  const Frame f = frame_of(p, item);
  const int columns = min(d, kThreads), groups = kThreads / columns;
  float spread = 0;
  for (int c = tid % columns; c < d && tid < groups * columns; c += columns) {
    float sum = 0;
#pragma unroll 8
    for (int i = tid / columns; i < d; i += groups) sum = fmaf(f.covariance[i * d + c], q[i], sum);
    spread = fmaf(sum, q[c], spread);
  }
  spread = block_sum(spread);
  if (warp == 0) {
    const float base = warp_dot(q, f.mean, d);
    if (tid == 0) out.base = base, out.spread = fmaxf(0.0f, spread * item.rules.alpha * item.rules.alpha);
  }
  for (int i = warp; p.s.entries.kind == EntryKind::kSketch && i < p.s.entries.rank; i += kWarps) {
    const float x = warp_dot(q, f.basis + i * d, d);
    if (tid % kWarp == 0) out.of_basis[i] = x * f.deviation[i];
  }
}

// Key of a token of the sinks or of the window.
template <typename T>
__device__ const T* fixed_key(const UnfusedArgs& p, const Item& item, int position, int stored) {
  const KvSlots& s = p.s;
  if (s.n_slots == 0)
    return reinterpret_cast<const T*>(
        p.pages.base + unit_token(p.pages, 1, p.layer, item.seq_slot, item.kv_head, position) * token_bytes(s));
  if (position < item.rules.sink)
    return reinterpret_cast<const T*>(s.slots + (item.index * s.n_slots + position / s.unit_tokens) * unit_bytes(s) +
                                      position % s.unit_tokens * token_bytes(s));
  return reinterpret_cast<const T*>(
      resident_token(s, item.rules, p.slot_layer, item.seq_slot, item.kv_head, position, stored));
}

// log(sum of exp(alpha q . k)) / alpha over sinks and window.
template <typename T>
__device__ float fixed_score(const UnfusedArgs& p, const Item& item, const float* q) {
  __shared__ float2 of_warps[kWarps];
  const int d = p.s.head_dim, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int stored = item.length - (p.when == SelectWhen::kNext ? 1 : 0);
  // The region of the next step may begin its window at a token that is yet to come.
  const int sink = item.rules.sink, window = page_region(item.rules, item.length).window * p.s.unit_tokens,
            n = sink + max(0, stored - window);
  float max = -INFINITY, sum = 0;
  for (int i = warp; i < n; i += kWarps) {
    const T* key = fixed_key<T>(p, item, i < sink ? i : window + i - sink, stored);
    float dot = 0;
    for (int c = lane; c < d; c += kWarp) dot = fmaf(q[c], widen(key[c]), dot);
    add_sum(max, sum, item.rules.alpha * warp_sum(dot), 1.0f);
  }
  if (lane == 0) of_warps[warp] = {max, sum};
  __syncthreads();
  max = -INFINITY, sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) add_sum(max, sum, of_warps[w].x, of_warps[w].y);
  return (max + logf(sum)) / item.rules.alpha;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) terms_kernel(UnfusedArgs p) {
  extern __shared__ float q[];
  launch_dependents();
  grid_dependency_wait();
  Item item;
  if (!item_at(p, static_cast<int>(blockIdx.x), false, item)) return;
  const int g = blockIdx.y;
  if (g >= item.n_scored) return;
  load_queries(p, item, q);
  HeadTerms& out = item.terms[g];
  const float* own = q + g * p.s.head_dim;
  if (p.s.entries.frame_floats > 0) frame_terms(p, item, own, out);
  if (item.rules.whole_attention == 0) return;
  const float fixed = fixed_score<T>(p, item, own);
  if (threadIdx.x == 0) out.fixed = fixed;
}

// ---- spread.h

// c of n samples.
__device__ __forceinline__ float spread_limit_of(float n) {
  return n <= 1.0f ? 0.0f : sqrtf(2.0f * logf(n));
}
__device__ __forceinline__ float gain_of(float variance, float c) {
  return variance <= c * c ? 0.5f * variance : c * sqrtf(variance) - 0.5f * c * c;
}
__device__ __forceinline__ float variance_of(int code) {
  return code == 0 ? 0.0f : exp2f((static_cast<float>(code) - 128.0f) / 6.0f);
}

// ---- centroids

// Values `shift` / 4 and the next one of a word of nibbles, as two bf16: 128 + n is 0x4300 | n.
__device__ __forceinline__ std::uint32_t nibbles_at(std::uint32_t word, int shift) {
  const std::uint32_t v = word >> shift, biased = (v & 0xfu) | (v & 0xf0u) << 12 | 0x43004300u;
  const __nv_bfloat162 x = __hsub2(reinterpret_cast<const __nv_bfloat162&>(biased),
                                   __nv_bfloat162{__ushort_as_bfloat16(0x4308), __ushort_as_bfloat16(0x4308)});
  return reinterpret_cast<const std::uint32_t&>(x);
}

// Shared memory of a thread block that scores centroids by kTiles * 8 query heads.
template <int kTiles>
struct CentroidShared {
  static constexpr int kColumns = 8 * kTiles;
  __nv_bfloat16 *high, *low;  // [kColumns][D + kSkew]: the queries in units of the channels' deviations
  float* logs;                // [kWarps][kRows][kColumns + 1]; before, the queries themselves
  float* variances;           // [kCodes]

  __device__ CentroidShared(std::byte* base, int d)
      : high(reinterpret_cast<__nv_bfloat16*>(base)),
        low(high + kColumns * (d + kSkew)),
        logs(reinterpret_cast<float*>(low + kColumns * (d + kSkew))),
        variances(logs + logs_of(d)) {}
  __host__ __device__ static constexpr int logs_of(int d) {
    const int logs = kWarps * kRows * (kColumns + 1), queries = kColumns * d;
    return logs > queries ? logs : queries;
  }
  static std::size_t bytes(int d) {
    return static_cast<std::size_t>(4 * kColumns * (d + kSkew) + 4 * (logs_of(d) + kCodes));
  }
};

template <int kTiles>
__device__ void load_split_queries(const UnfusedArgs& p, const Item& item, const CentroidShared<kTiles>& s) {
  const int d = p.s.head_dim, stride = d + kSkew;
  float* q = s.logs;
  load_queries(p, item, q);
  const float* deviation = frame_of(p, item).deviation;
  for (int i = threadIdx.x; i < s.kColumns * d; i += kThreads) {
    const int g = i / d, c = i % d;
    const float x = g < item.n_scored ? q[i] * deviation[c] : 0.0f;
    const __nv_bfloat16 high = narrow<__nv_bfloat16>(x);
    s.high[g * stride + c] = high;
    s.low[g * stride + c] = narrow<__nv_bfloat16>(x - widen(high));
  }
  for (int i = threadIdx.x; i < kCodes; i += kThreads) s.variances[i] = variance_of(i);
  __syncthreads();
}

// One row of a tile: a centroid.
struct CentroidRow {
  const std::byte *values, *scale, *count;  // null: no such row
  int k;
  __device__ CentroidRow(const UnfusedArgs& p, const Item& item, int first, int row) : values(nullptr) {
    const UnitEntries& e = p.s.entries;
    k = e.rank;
    const int page = first + row / k, j = row % k;
    if (row >= kRows / k * k || page >= item.n) return;
    const std::byte* entry = entries_of(p, item) + static_cast<std::int64_t>(item.first + page) * e.bytes;
    const int bytes = p.s.head_dim / 2;
    values = entry + j * bytes, scale = entry + k * bytes + 2 * j, count = entry + k * (bytes + 2) + j;
  }
  __device__ std::uint32_t word(int i, int d) const {
    return values == nullptr || 8 * i >= d ? 0x88888888u : __ldg(reinterpret_cast<const std::uint32_t*>(values) + i);
  }
};

// Logarithm of a centroid's weight: alpha q . c + gain + log of its keys.
__device__ __forceinline__ float centroid_log(const CentroidRow& row, const float* variances, float dot, float base,
                                              float spread, float alpha, float limit) {
  if (row.values == nullptr) return -INFINITY;
  const int n = static_cast<int>(row.count[0]), code = static_cast<int>(row.count[row.k]);
  if (n == 0) return -INFINITY;
  const float scale = __half2float(__ushort_as_half(*reinterpret_cast<const std::uint16_t*>(row.scale)));
  return alpha * fmaf(scale, dot, base) + gain_of(spread * variances[code], limit) + __logf(static_cast<float>(n));
}

// Scores of the pages of the tile from page `first` of the candidates.
template <int kTiles>
__device__ void score_tile(const UnfusedArgs& p, const Item& item, const CentroidShared<kTiles>& s, int first,
                           const float (&base)[kTiles][2], const float (&spread)[kTiles][2], float limit) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, d = p.s.head_dim, stride = d + kSkew;
  const CentroidRow rows[2] = {{p, item, first, g}, {p, item, first, g + 8}};
  float dots[kTiles][4] = {};
  for (int i = t; i < (d + 31) / 32 * 4; i += 4) {
    const std::uint32_t upper = rows[0].word(i, d), lower = rows[1].word(i, d);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int at = 16 * step;
      const std::uint32_t a[4] = {nibbles_at(upper, at), nibbles_at(lower, at), nibbles_at(upper, at + 8),
                                  nibbles_at(lower, at + 8)};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (const __nv_bfloat16* part : {s.high, s.low}) {
          const uint2 q = 8 * i < d ? *reinterpret_cast<const uint2*>(part + (tile * 8 + g) * stride + 8 * i + 4 * step)
                                    : uint2{0, 0};
          mma<__nv_bfloat16>(dots[tile], a[0], a[1], a[2], a[3], q.x, q.y);
        }
    }
  }
  constexpr int kStride = CentroidShared<kTiles>::kColumns + 1;
  float* logs = s.logs + threadIdx.x / kWarp * kRows * kStride;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      logs[(g + i / 2 * 8) * kStride + tile * 8 + 2 * t + i % 2] = centroid_log(
          rows[i / 2], s.variances, dots[tile][i], base[tile][i % 2], spread[tile][i % 2], item.rules.alpha, limit);
  __syncwarp();
  const int k = p.s.entries.rank, pages = min(kRows / k, item.n - first);
  for (int at = lane; at < pages * item.n_scored; at += kWarp) {
    const int page = at % pages, head = at / pages;
    const float* log = logs + page * k * kStride + head;
    float max = -INFINITY, sum = 0;
    for (int j = 0; j < k; ++j) max = fmaxf(max, log[j * kStride]);
    for (int j = 0; j < k; ++j) sum += __expf(log[j * kStride] - max);
    item.scores[head * p.width + first + page] = (max + __logf(sum)) / item.rules.alpha;
  }
  __syncwarp();
}

template <int kTiles>
__global__ void __launch_bounds__(kThreads) centroid_kernel(UnfusedArgs p) {
  extern __shared__ __align__(16) std::byte shared[];
  launch_dependents();
  grid_dependency_wait();
  Item item;
  if (!item_at(p, static_cast<int>(blockIdx.y), false, item)) return;
  const CentroidShared<kTiles> s(shared, p.s.head_dim);
  load_split_queries(p, item, s);
  const int k = p.s.entries.rank, pages = kRows / k, column = threadIdx.x % 4 * 2;
  float base[kTiles][2], spread[kTiles][2];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = min(tile * 8 + column + i, item.n_scored - 1);
      base[tile][i] = item.terms[head].base, spread[tile][i] = item.terms[head].spread;
    }
  const float limit = spread_limit_of(static_cast<float>(p.s.entries.tokens) / static_cast<float>(k));
  for (int first = (static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp) * pages;
       first < item.n; first += static_cast<int>(gridDim.x) * kWarps * pages)
    score_tile(p, item, s, first, base, spread, limit);
}

// ---- sketches and moments: a warp takes an entry

__device__ __forceinline__ float signed_at(const std::byte* bytes, int i) {
  return static_cast<float>(static_cast<std::int8_t>(bytes[i]));
}

// A warp's product of q with a row of signed bytes.
__device__ __forceinline__ float dot_bytes(const float* q, const std::byte* bytes, int d) {
  float sum = 0;
  for (int c = threadIdx.x % kWarp; c < d; c += kWarp) sum = fmaf(q[c], signed_at(bytes, c), sum);
  return warp_sum(sum);
}

__device__ __forceinline__ float half_at(const std::byte* at) {
  return __half2float(__ushort_as_half(*reinterpret_cast<const std::uint16_t*>(at)));
}

// Entry `number`: a score for each of its tokens that are candidates, or one for the page.
__device__ void score_sketch(const UnfusedArgs& p, const Item& item, const float* q, const float* of_basis,
                             int number) {
  const UnitEntries& e = p.s.entries;
  const int d = p.s.head_dim, n = e.tokens, r = e.rank, lane = threadIdx.x % kWarp;
  const bool by_token = tokens_of_unit(item) == 1;
  const std::byte* entry = entries_of(p, item) + static_cast<std::int64_t>(number) * e.bytes;
  const std::byte *nibbles = entry + d, *scales = nibbles + r * n / 2;
  const float alpha = item.rules.alpha, of_mean = half_at(scales), step = alpha * half_at(scales + 2),
              variance = variance_of(static_cast<int>(scales[4])), limit = spread_limit_of(static_cast<float>(n));
  for (int g = 0; g < item.n_scored; ++g) {
    const HeadTerms& terms = item.terms[g];
    const float all =
        alpha * fmaf(of_mean, dot_bytes(q + g * d, entry, d), terms.base) + gain_of(terms.spread * variance, limit);
    float max = -INFINITY, sum = 0;
    for (int t = lane; t < n; t += kWarp) {
      float x = 0;
      for (int i = 0; i < r; ++i) {
        const int code = static_cast<int>(nibbles[(i * n + t) / 2]) >> (t % 2 * 4) & 15;
        x = fmaf(of_basis[g * kMaxSketchRank + i], static_cast<float>(code - 8), x);
      }
      x = fmaf(step, x, all);
      if (!by_token) {
        if (isnan(x)) sum = x, max = INFINITY;
        if (!isnan(sum)) add_sum(max, sum, x, 1.0f);
        continue;
      }
      const int u = number * n + t - item.first;
      if (u >= 0 && u < item.n) item.scores[g * p.width + u] = x / alpha;
    }
    if (by_token) continue;
#pragma unroll
    for (int i = 1; i < kWarp; i *= 2) add_sum(max, sum, __shfl_xor_sync(~0u, max, i), __shfl_xor_sync(~0u, sum, i));
    if (lane == 0) item.scores[g * p.width + number - item.first] = (max + logf(sum)) / alpha;
  }
}

__device__ void score_moments(const UnfusedArgs& p, const Item& item, const float* q, int number) {
  const UnitEntries& e = p.s.entries;
  const int d = p.s.head_dim, lane = threadIdx.x % kWarp;
  const std::byte* entry = entries_of(p, item) + static_cast<std::int64_t>(number) * e.bytes;
  const auto* scales = reinterpret_cast<const float*>(entry + 2 * d);
  const auto n = static_cast<float>(e.tokens);
  for (int g = 0; g < item.n_scored; ++g) {
    float m = 0, v = 0;
    for (int c = lane; c < d; c += kWarp) {
      const float x = q[g * d + c];
      m = fmaf(x, signed_at(entry, c), m);
      v = fmaf(x * x, static_cast<float>(static_cast<int>(entry[d + c])), v);
    }
    const float alpha = item.rules.alpha, mean = alpha * scales[0] * warp_sum(m),
                variance = alpha * alpha * scales[1] * warp_sum(v);
    if (lane == 0)
      item.scores[g * p.width + number - item.first] = (mean + logf(n) + gain_of(variance, spread_limit_of(n))) / alpha;
  }
}

__global__ void __launch_bounds__(kThreads) entry_kernel(UnfusedArgs p) {
  extern __shared__ float q[];  // [n_scored][D], then [n_scored][kMaxSketchRank]
  launch_dependents();
  grid_dependency_wait();
  Item item;
  if (!item_at(p, static_cast<int>(blockIdx.y), false, item)) return;
  load_queries(p, item, q);
  const bool sketch = p.s.entries.kind == EntryKind::kSketch;
  float* of_basis = q + item.n_scored * p.s.head_dim;
  for (int i = threadIdx.x; sketch && i < item.n_scored * kMaxSketchRank; i += kThreads)
    of_basis[i] = item.terms[i / kMaxSketchRank].of_basis[i % kMaxSketchRank];
  __syncthreads();
  const int each = tokens_of_unit(item) == 1 ? p.s.entries.tokens : 1;  // units of an entry
  const int begin = item.first / each, stop = (item.first + item.n + each - 1) / each;
  for (int number = begin + static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
       number < stop; number += static_cast<int>(gridDim.x) * kWarps) {
    sketch ? score_sketch(p, item, q, of_basis, number) : score_moments(p, item, q, number);
  }
}

// Thread blocks an item: eight warps for every SM and scheduler, no more than there are entries.
int blocks_of(const UnfusedArgs& a, int per_warp) {
  const int items = a.rows.n * a.s.n_kv_heads, warps = (a.s.entries.most + per_warp - 1) / per_warp;
  return std::clamp(4 * sm_count() / items, 1, std::max(1, (warps + kWarps - 1) / kWarps));
}

template <int kTiles>
void score_centroids(const UnfusedArgs& a, const CudaContext& context) {
  static std::size_t allowed = kDefaultSharedBytes;
  const std::size_t bytes = CentroidShared<kTiles>::bytes(a.s.head_dim);
  allow_shared(centroid_kernel<kTiles>, bytes, allowed, "the shared memory of centroids' scores");
  launch(context, "score_centroids", centroid_kernel<kTiles>,
         dim3(static_cast<unsigned>(blocks_of(a, kRows / a.s.entries.rank)),
              static_cast<unsigned>(a.rows.n * a.s.n_kv_heads)),
         dim3(kThreads), bytes, a);
}

}  // namespace

void compute_head_terms_cuda(const UnfusedArgs& a, const CudaContext& context) {
  launch(context, "head_terms", a.s.f16 ? terms_kernel<__half> : terms_kernel<__nv_bfloat16>,
         dim3(static_cast<unsigned>(a.rows.n * a.s.n_kv_heads), static_cast<unsigned>(a.group)), dim3(kThreads),
         static_cast<std::size_t>(a.group * a.s.head_dim) * sizeof(float), a);
}

void score_summaries_cuda(const UnfusedArgs& a, const CudaContext& context) {
  if (a.s.entries.kind == EntryKind::kCentroidSet) {
    a.group > 8 ? score_centroids<2>(a, context) : score_centroids<1>(a, context);
    return;
  }
  launch(context, "score_summaries", entry_kernel,
         dim3(static_cast<unsigned>(blocks_of(a, 1)), static_cast<unsigned>(a.rows.n * a.s.n_kv_heads)), dim3(kThreads),
         static_cast<std::size_t>(a.group * (a.s.head_dim + kMaxSketchRank)) * sizeof(float), a);
}

}  // namespace mneme
