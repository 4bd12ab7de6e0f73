// Scores of sets of centroids for the unfused selection: a warp takes 16 centroids at a time by tensor cores. Thread blocks
// beside them take the sinks and the window, whose terms the scores do not wait for.
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
  float *base, *spread;       // [kColumns]: alpha q . mean, and alpha^2 q^T C q

  __device__ CentroidShared(std::byte* memory, int d)
      : high(reinterpret_cast<__nv_bfloat16*>(memory)),
        low(high + kColumns * (d + kSkew)),
        logs(reinterpret_cast<float*>(low + kColumns * (d + kSkew))),
        variances(logs + logs_of(d)),
        base(variances + kCodes),
        spread(base + kColumns) {}
  __host__ __device__ static constexpr int logs_of(int d) {
    const int logs = kWarps * kRows * (kColumns + 1), queries = kColumns * d;
    return logs > queries ? logs : queries;
  }
  static std::size_t bytes(int d) {
    return static_cast<std::size_t>(4 * kColumns * (d + kSkew) + 4 * (logs_of(d) + kCodes + 2 * kColumns));
  }
};

template <int kTiles>
__device__ void load_split_queries(const UnfusedArgs& p, const Item& item, const CentroidShared<kTiles>& s) {
  const int d = p.s.head_dim, stride = d + kSkew;
  float* q = s.logs;
  load_queries(p, item, q);
  const float* deviation = frame_of(p.s, item).deviation;
  for (int i = threadIdx.x; i < s.kColumns * d; i += kThreads) {
    const int g = i / d, c = i % d;
    const float x = g < item.n_scored ? q[i] * deviation[c] : 0.0f;
    const __nv_bfloat16 high = narrow<__nv_bfloat16>(x);
    s.high[g * stride + place_of(c)] = high;
    s.low[g * stride + place_of(c)] = narrow<__nv_bfloat16>(x - widen(high));
  }
  for (int i = threadIdx.x; i < kCodes; i += kThreads) s.variances[i] = variance_of(i);
  if (threadIdx.x < s.kColumns) {
    const HeadTerms& terms = item.terms[min(static_cast<int>(threadIdx.x), item.n_scored - 1)];
    const float alpha = item.plan.scores.alpha;
    s.base[threadIdx.x] = alpha * terms.sum(terms.base);
    s.spread[threadIdx.x] = fmaxf(0.0f, alpha * alpha * terms.sum(terms.spread));
  }
  __syncthreads();
}

// One row of a tile: a centroid. Lane 4 g + t has the words t, t + 4, ... of row g.
template <int kWords>
struct CentroidWords {
  std::uint32_t words[kWords];
  float scale;
  int n, code;  // keys; of their variance. n 0: no weight
};

template <int kWords>
__device__ __forceinline__ CentroidWords<kWords> load_row(const UnfusedArgs& p, const Item& item, int first, int row) {
  const UnitEntries& e = p.s.index.entries;
  const int k = e.rank, page = first + row / k, j = row % k, bytes = p.s.head_dim / 2, t = threadIdx.x % 4;
  CentroidWords<kWords> r;
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
__device__ __forceinline__ void multiply(const CentroidWords<kWords> (&rows)[2], const CentroidShared<kTiles>& s, int d,
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

// Terms of a lane's query heads, columns 2 t and 2 t + 1 of each tile.
template <int kTiles>
struct ColumnTerms {
  float base[kTiles][2], spread[kTiles][2];
  __device__ explicit ColumnTerms(const CentroidShared<kTiles>& s) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int head = tile * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i;
        base[tile][i] = s.base[head], spread[tile][i] = s.spread[head];
      }
  }
};

// Scores of a tile's pages where k divides 8: rows of a page are in lanes 4, 8, ... apart.   logs: of a lane's rows and
// columns
template <int kTiles>
__device__ __forceinline__ void sum_in_registers(const UnfusedArgs& p, const Item& item, int first, int k,
                                                 const float (&logs)[kTiles][4]) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const float inverse = 1.0f / item.plan.scores.alpha;
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
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, k = p.s.index.entries.rank;
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
    item.scores[head * p.width + first + page] = (max + __logf(sum)) / item.plan.scores.alpha;
  }
  __syncwarp();
}

// Scores the tiles of thread block `block` of n_blocks. A tile is loaded while the one before is multiplied.
template <int kTiles, int kWords>
__device__ __forceinline__ void score_tiles(const UnfusedArgs& p, const Item& item, int block, int n_blocks,
                                            std::byte* shared) {
  const int k = p.s.index.entries.rank, pages = kRows / k, g = threadIdx.x % kWarp / 4, d = p.s.head_dim;
  const int step = n_blocks * kWarps * pages;
  int first = (block * kWarps + static_cast<int>(threadIdx.x) / kWarp) * pages;
  CentroidWords<kWords> next[2] = {load_row<kWords>(p, item, first, g), load_row<kWords>(p, item, first, g + 8)};
  const CentroidShared<kTiles> s(shared, d);
  load_split_queries(p, item, s);
  const ColumnTerms<kTiles> terms(s);
  const float limit = spread_limit_of(static_cast<float>(p.s.index.entries.tokens) / static_cast<float>(k));
  for (; first < item.n; first += step) {
    const CentroidWords<kWords> rows[2] = {next[0], next[1]};
    if (first + step < item.n)
      next[0] = load_row<kWords>(p, item, first + step, g), next[1] = load_row<kWords>(p, item, first + step, g + 8);
    float dots[kTiles][4] = {}, logs[kTiles][4];
    multiply<kTiles, kWords>(rows, s, d, dots);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float scale = item.plan.scores.alpha * rows[row].scale, variance = s.variances[rows[row].code],
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

// The first n_fixed thread blocks of a KV head take a part of its sinks and window each, the others its pages.
template <int kTiles, int kWords>
__global__ void __launch_bounds__(kThreads) centroid_kernel(UnfusedArgs p, int n_fixed) {
  extern __shared__ __align__(16) std::byte shared[];
  launch_dependents();
  const int number = static_cast<int>(blockIdx.y), block = static_cast<int>(blockIdx.x) - n_fixed;
  const SlotRow row = row_of(p, number);
  grid_dependency_wait();
  Item item;
  if (!item_at(p, row, number, false, item)) return;
  if (block >= 0) {
    score_tiles<kTiles, kWords>(p, item, block, static_cast<int>(gridDim.x) - n_fixed, shared);
  } else if (item.plan.scores.domain == Domain::kAttention) {
    auto* q = reinterpret_cast<float*>(shared);
    load_queries(p, item, q);
    fixed_terms_of(p, item, q, block + n_fixed);
  }
}

template <int kTiles, int kWords>
void score_centroids(const UnfusedArgs& a, const CudaContext& context) {
  static std::size_t allowed = kDefaultSharedBytes;
  const std::size_t bytes = CentroidShared<kTiles>::bytes(a.s.head_dim);
  allow_shared(centroid_kernel<kTiles, kWords>, bytes, allowed, "the shared memory of centroids' scores");
  const int n_fixed = a.s.selection.whole_attention ? kTermParts : 0;
  launch(context, "score_centroids", centroid_kernel<kTiles, kWords>,
         dim3(static_cast<unsigned>(n_fixed + summary_blocks(a, kRows / a.s.index.entries.rank)),
              static_cast<unsigned>(a.rows.n * a.s.n_kv_heads)),
         dim3(kThreads), bytes, a, n_fixed);
}

}  // namespace

void score_centroids_cuda(const UnfusedArgs& a, const CudaContext& context) {
  constexpr int kMost = 256 / 32;  // words of a lane, of the largest head
  if (a.group > 8) return score_centroids<2, kMost>(a, context);
  if (a.s.head_dim == 64) return score_centroids<1, 2>(a, context);
  a.s.head_dim == 128 ? score_centroids<1, 4>(a, context) : score_centroids<1, kMost>(a, context);
}

}  // namespace mneme
