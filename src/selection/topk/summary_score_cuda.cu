// Scores of summarised units (selection/summary) for the unfused selection. Two launches:
//
//   terms   kTermParts thread blocks a KV head: what its query heads add to every unit (HeadTerms)
//   score   a warp takes 16 centroids at a time by tensor cores, or one entry of a sketch or of moments
//
// Which channels an mma takes at once is free as long as both operands agree: lane 4 g + t takes whole words of 8 values
// of rows g and g + 8, so that four lanes read 16 consecutive bytes of a centroid. Queries are split into two bf16 values,
// which hold 16 bits of them.
#include <algorithm>

#include "src/selection/topk/head_terms.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = kScoreThreads, kWarps = kScoreWarps;
constexpr int kRows = 16;    // centroids of a tile
constexpr int kSkew = 32;    // values behind a row of queries in shared memory, against bank conflicts
constexpr int kCodes = 256;  // variance codes

template <typename T>
__global__ void __launch_bounds__(kThreads) terms_kernel(UnfusedArgs p) {
  extern __shared__ __align__(16) float q[];
  launch_dependents();
  grid_dependency_wait();
  Item item;
  if (!item_at(p, static_cast<int>(blockIdx.x), false, item)) return;
  load_queries(p, item, q);
  head_terms<T>(p, item, q, static_cast<int>(blockIdx.y));
}

// ---- centroids

// Values i and i + 4 of a word of nibbles, as two bf16: 128 + n is 0x4300 | n.
__device__ __forceinline__ std::uint32_t nibbles_at(std::uint32_t word, int i) {
  const std::uint32_t biased = (word >> (4 * i) & 0x000f000fu) | 0x43004300u;
  const __nv_bfloat162 x = __hsub2(reinterpret_cast<const __nv_bfloat162&>(biased),
                                   __nv_bfloat162{__ushort_as_bfloat16(0x4308), __ushort_as_bfloat16(0x4308)});
  return reinterpret_cast<const std::uint32_t&>(x);
}
// Where channel c of a query is in shared memory: words as nibbles_at() has them, 0 4 1 5 2 6 3 7.
__device__ __forceinline__ int place_of(int c) {
  return c / 8 * 8 + c % 4 * 2 + c % 8 / 4;
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
    s.high[g * stride + place_of(c)] = high;
    s.low[g * stride + place_of(c)] = narrow<__nv_bfloat16>(x - widen(high));
  }
  for (int i = threadIdx.x; i < kCodes; i += kThreads) s.variances[i] = variance_of(i);
  __syncthreads();
}

// One row of a tile: a centroid. Lane 4 g + t has the words t, t + 4, ... of row g.
template <int kWords>
struct CentroidRow {
  std::uint32_t words[kWords];
  float scale;
  int n, code;  // keys; of their variance. n 0: no weight
};

template <int kWords>
__device__ __forceinline__ CentroidRow<kWords> load_row(const UnfusedArgs& p, const Item& item, int first, int row) {
  const UnitEntries& e = p.s.entries;
  const int k = e.rank, page = first + row / k, j = row % k, bytes = p.s.head_dim / 2, t = threadIdx.x % 4;
  CentroidRow<kWords> r;
  r.scale = 0, r.n = r.code = 0;
  const bool there = row < kRows / k * k && page < item.n;
  const std::byte* entry = entries_of(p, item) + static_cast<std::int64_t>(item.first + page) * e.bytes;
  const auto* words = reinterpret_cast<const std::uint32_t*>(entry + j * bytes);
#pragma unroll
  for (int i = 0; i < kWords; ++i)
    r.words[i] = there && 8 * (4 * i + t) < p.s.head_dim ? __ldg(words + 4 * i + t) : 0x88888888u;  // zeros
  if (!there) return r;
  const std::byte* scales = entry + k * bytes;
  r.scale = __half2float(__ushort_as_half(*reinterpret_cast<const std::uint16_t*>(scales + 2 * j)));
  r.n = static_cast<int>(scales[2 * k + j]), r.code = static_cast<int>(scales[3 * k + j]);
  return r;
}

// Products of two rows of a lane, g and g + 8, with the queries of columns 2 t and 2 t + 1 of each tile.
template <int kTiles, int kWords>
__device__ __forceinline__ void multiply(const CentroidRow<kWords> (&rows)[2], const CentroidShared<kTiles>& s, int d,
                                         float (&dots)[kTiles][4]) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, stride = d + kSkew;
  float low[kTiles][4] = {};  // of the queries' lower halves: two chains of sums in place of one
#pragma unroll
  for (int i = 0; i < kWords; ++i)
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int at = 2 * step, channel = 8 * (4 * i + t) + 4 * step;
      const std::uint32_t a[4] = {nibbles_at(rows[0].words[i], at), nibbles_at(rows[1].words[i], at),
                                  nibbles_at(rows[0].words[i], at + 1), nibbles_at(rows[1].words[i], at + 1)};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        uint2 q[2] = {{0, 0}, {0, 0}};
        if (channel < d) {
          const int from = (tile * 8 + g) * stride + channel;
          q[0] = *reinterpret_cast<const uint2*>(s.high + from), q[1] = *reinterpret_cast<const uint2*>(s.low + from);
        }
        mma<__nv_bfloat16>(dots[tile], a[0], a[1], a[2], a[3], q[0].x, q[0].y);
        mma<__nv_bfloat16>(low[tile], a[0], a[1], a[2], a[3], q[1].x, q[1].y);
      }
    }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) dots[tile][i] += low[tile][i];
}

// Terms of a lane's query heads, columns 2 t and 2 t + 1 of each tile: alpha q . mean, and alpha^2 q^T C q.
template <int kTiles>
struct ColumnTerms {
  float base[kTiles][2], spread[kTiles][2];
  __device__ explicit ColumnTerms(const Item& item) {
    const float squared = item.rules.alpha * item.rules.alpha;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int head = tile * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i;
        const HeadTerms& terms = item.terms[min(head, item.n_scored - 1)];
        base[tile][i] = item.rules.alpha * terms.sum(terms.base);
        spread[tile][i] = fmaxf(0.0f, squared * terms.sum(terms.spread));
      }
  }
};

// Scores of a tile's pages where k divides 8: rows of a page are in lanes 4, 8, ... apart.   logs: of a lane's rows and
// columns
template <int kTiles>
__device__ __forceinline__ void sum_in_registers(const UnfusedArgs& p, const Item& item, int first, int k,
                                                 const float (&logs)[kTiles][4]) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const float inverse = 1.0f / item.rules.alpha;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float max = logs[tile][i];
      for (int d = 4; d < 4 * k; d *= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, d));
      float sum = __expf(logs[tile][i] - (max == -INFINITY ? 0.0f : max));
      for (int d = 4; d < 4 * k; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
      const int page = first + (g + i / 2 * 8) / k, head = tile * 8 + 2 * t + i % 2;
      if (g % k == 0 && page < item.n && head < item.n_scored)
        item.scores[head * p.width + page] = (max + __logf(sum)) * inverse;
    }
}

// The same for any k, by shared memory.
template <int kTiles>
__device__ __forceinline__ void sum_in_shared(const UnfusedArgs& p, const Item& item, const CentroidShared<kTiles>& s,
                                              int first, const float (&logs)[kTiles][4]) {
  constexpr int kStride = CentroidShared<kTiles>::kColumns + 1;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, k = p.s.entries.rank;
  float* here = s.logs + threadIdx.x / kWarp * kRows * kStride;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) here[(g + i / 2 * 8) * kStride + tile * 8 + 2 * t + i % 2] = logs[tile][i];
  __syncwarp();
  const int pages = min(kRows / k, item.n - first);
  for (int at = lane; at < pages * item.n_scored; at += kWarp) {
    const int page = at % pages, head = at / pages;
    const float* log = here + page * k * kStride + head;
    float max = -INFINITY, sum = 0;
    for (int j = 0; j < k; ++j) max = fmaxf(max, log[j * kStride]);
    for (int j = 0; j < k; ++j) sum += __expf(log[j * kStride] - max);
    item.scores[head * p.width + first + page] = (max + __logf(sum)) / item.rules.alpha;
  }
  __syncwarp();
}

// A tile is loaded while the one before is multiplied.
template <int kTiles, int kWords>
__global__ void __launch_bounds__(kThreads) centroid_kernel(UnfusedArgs p) {
  extern __shared__ __align__(16) std::byte shared[];
  launch_dependents();
  grid_dependency_wait();
  Item item;
  if (!item_at(p, static_cast<int>(blockIdx.y), false, item)) return;
  const int k = p.s.entries.rank, pages = kRows / k, g = threadIdx.x % kWarp / 4, d = p.s.head_dim;
  const int step = static_cast<int>(gridDim.x) * kWarps * pages;
  int first = (static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp) * pages;
  CentroidRow<kWords> next[2] = {load_row<kWords>(p, item, first, g), load_row<kWords>(p, item, first, g + 8)};
  const CentroidShared<kTiles> s(shared, d);
  load_split_queries(p, item, s);
  const ColumnTerms<kTiles> terms(item);
  const float limit = spread_limit_of(static_cast<float>(p.s.entries.tokens) / static_cast<float>(k));
  for (; first < item.n; first += step) {
    const CentroidRow<kWords> rows[2] = {next[0], next[1]};
    if (first + step < item.n)
      next[0] = load_row<kWords>(p, item, first + step, g), next[1] = load_row<kWords>(p, item, first + step, g + 8);
    float dots[kTiles][4] = {}, logs[kTiles][4];
    multiply<kTiles, kWords>(rows, s, d, dots);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float scale = item.rules.alpha * rows[row].scale, variance = s.variances[rows[row].code],
                  log_n = rows[row].n == 0 ? -INFINITY : __logf(static_cast<float>(rows[row].n));
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          logs[tile][2 * row + i] = fmaf(scale, dots[tile][2 * row + i], terms.base[tile][i]) +
                                    gain_of(terms.spread[tile][i] * variance, limit) + log_n;
    }
    if (k == 8) {
      sum_in_registers(p, item, first, 8, logs);  // unrolled
    } else if (8 % k == 0) {
      sum_in_registers(p, item, first, k, logs);
    } else {
      sum_in_shared(p, item, s, first, logs);
    }
  }
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
    const float all = alpha * fmaf(of_mean, dot_bytes(q + g * d, entry, d), terms.sum(terms.base)) +
                      gain_of(fmaxf(0.0f, alpha * alpha * terms.sum(terms.spread)) * variance, limit);
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

// Thread blocks an item: two on every SM, no more than there are entries. A block's start costs as much as four tiles.
int blocks_of(const UnfusedArgs& a, int per_warp) {
  const int items = a.rows.n * a.s.n_kv_heads, warps = (a.s.entries.most + per_warp - 1) / per_warp;
  return std::clamp(2 * sm_count() / items, 1, std::max(1, (warps + kWarps - 1) / kWarps));
}

template <int kTiles, int kWords>
void score_centroids(const UnfusedArgs& a, const CudaContext& context) {
  static std::size_t allowed = kDefaultSharedBytes;
  const std::size_t bytes = CentroidShared<kTiles>::bytes(a.s.head_dim);
  allow_shared(centroid_kernel<kTiles, kWords>, bytes, allowed, "the shared memory of centroids' scores");
  launch(context, "score_centroids", centroid_kernel<kTiles, kWords>,
         dim3(static_cast<unsigned>(blocks_of(a, kRows / a.s.entries.rank)),
              static_cast<unsigned>(a.rows.n * a.s.n_kv_heads)),
         dim3(kThreads), bytes, a);
}

}  // namespace

void compute_head_terms_cuda(const UnfusedArgs& a, const CudaContext& context) {
  with_kv_type(a.s, [&]<typename T>(T) {
    launch(context, "head_terms", terms_kernel<T>, dim3(static_cast<unsigned>(a.rows.n * a.s.n_kv_heads), kTermParts),
           dim3(kThreads), static_cast<std::size_t>(a.group * a.s.head_dim) * sizeof(float), a);
  });
}

void score_summaries_cuda(const UnfusedArgs& a, const CudaContext& context) {
  if (a.s.entries.kind == EntryKind::kCentroidSet) {
    constexpr int kMost = 256 / 32;  // words of a lane, of the largest head
    if (a.group > 8) return score_centroids<2, kMost>(a, context);
    if (a.s.head_dim == 64) return score_centroids<1, 2>(a, context);
    return a.s.head_dim == 128 ? score_centroids<1, 4>(a, context) : score_centroids<1, kMost>(a, context);
  }
  launch(context, "score_summaries", entry_kernel,
         dim3(static_cast<unsigned>(blocks_of(a, 1)), static_cast<unsigned>(a.rows.n * a.s.n_kv_heads)), dim3(kThreads),
         static_cast<std::size_t>(a.group * (a.s.head_dim + kMaxSketchRank)) * sizeof(float), a);
}

}  // namespace mneme
