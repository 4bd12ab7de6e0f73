// Blocks of threads take stretches of 8 x 16 boxes of one KV head; whoever comes last to a KV head pools its scores,
// ranks them and writes the choice. Scores go through device memory, which at 128K tokens is 64 KiB a KV head.
//
// For this step, whose attention waits, a thread has as many loads under way as registers allow; for the next one no
// more than lets a block stand beside one of attention.
#include <algorithm>
#include <type_traits>

#include "src/kernels/kv_slots_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kEights = 2, kTile = 8 * kEights;  // boxes that a warp scores
constexpr int kStretch = kWarps * kTile;         // and a block
constexpr int kMostRows = 64, kMostGroup = 16;
constexpr int kMostDrawn = 2048;

struct Args {
  KvSlots s;
  SlotRows rows;
  SelectWhen when;
  int layer, group, max_parts;
  std::int64_t width;      // of a row of scores
  float* scores;           // [rows * KV heads][group][width]
  float2* partial;         // [rows * KV heads][max_parts][kMostGroup] maximum and sum of exp(alpha * score)
  std::uint32_t* arrived;  // [rows * KV heads], 0 between launches
};

// Larger is better; a NaN is worse than everything.
__device__ __forceinline__ std::uint32_t sort_key(float v) {
  if (isnan(v)) return 0;
  const std::uint32_t bits = __float_as_uint(v == 0 ? 0.0f : v);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Half of a fragment's two values: those above (or below) zero. A NaN stays in both.
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

// Products with boxes straight out of device memory: which 16 of the 2 D channels one mma takes does not matter as long
// as both sides agree, so that lane (g, t) loads 16 bytes of box g, and of queries g and g + 8. No shared memory, and
// few registers: blocks stand beside those of the attention that runs meanwhile.
template <typename T, int kDim, bool kWide>
struct BoxQueries {
  static constexpr int kChunks = kDim / 32;    // of 64 bytes a box: a chunk is two mma
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

  // s = the queries' bounds on box g of the eight at `boxes`: [q+ | q-] . [hi | lo].
  // All eight are read, whether they count or not: the array of boxes ends with some that do not.
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

// (max, sum of exp(. - max)) takes another one in.
__device__ __forceinline__ void add_sum(float& max, float& sum, float other_max, float other_sum) {
  const float m = fmaxf(max, other_max);
  if (m > -INFINITY) sum = sum * __expf(max - m) + other_sum * __expf(other_max - m);
  max = m;
}

struct Stretch {
  int row, kv_head, item;
  int first;  // unit of the region
  int n;      // units of the region
};

// Scores of one warp's tile to memory, with the tile's part of each head's log-sum-exp.
template <typename T, int kDim, bool kWide, SelectWhen kWhen>
__device__ __forceinline__ void score_tile(const Args& p, const RowOfSlots& r, const PageRegion& region,
                                           const Stretch& at, float2 (&of_warps)[kWarps][kMostGroup]) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int warp = threadIdx.x / kWarp, first = at.first + warp * kTile, stop = min(at.n, first + kTile);
  const std::int64_t index = slot_index(p.s, p.layer, r.place, at.kv_head);
  const std::byte* boxes = p.s.boxes + (index * p.s.max_pages + region.first + first) * (4 * kDim);
  BoxQueries<T, kDim, kWide> queries;
  queries.load(static_cast<const __nv_bfloat16*>(p.s.last_q) + index * p.group * kDim, p.group);
  constexpr int kHalves = kWide ? 2 : 1;
  float max[kHalves], sum[kHalves];  // of this lane's units, rows g and g + 8
#pragma unroll
  for (int h = 0; h < kHalves; ++h) max[h] = -INFINITY, sum[h] = 0;
#pragma unroll 1
  for (int j = 0; j < kEights; ++j) {
    float s[4];
    queries.template score<kWhen == SelectWhen::kNow ? 2 : 1>(s, boxes + j * 8 * 4 * kDim);
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int u = first + j * 8 + 2 * t + i, row = g + 8 * h;
        if (u >= stop) continue;
        const float v = s[2 * h + i];
        if (row < p.group) p.scores[(static_cast<std::int64_t>(at.item) * p.group + row) * p.width + u] = v;
        if (isnan(v)) continue;
        const float scaled = fminf(r.rules.alpha * v, 3.4028235e38f), m = fmaxf(max[h], scaled);
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

// What the warps of the block have, to the item's sums.
__device__ void store_sums(const Args& p, const Stretch& at, const float2 (&of_warps)[kWarps][kMostGroup]) {
  const int g = threadIdx.x;
  if (g >= p.group) return;
  float max = -INFINITY, sum = 0;
  for (int w = 0; w < kWarps; ++w) add_sum(max, sum, of_warps[w][g].x, of_warps[w][g].y);
  p.partial[(static_cast<std::int64_t>(at.item) * p.max_parts + at.first / kStretch) * kMostGroup + g] = {max, sum};
}

// The group's log-sum-exps over all units, a warp a head.
__device__ void merge_sums(const Args& p, const Stretch& at, float* lse) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, n = (at.n + kStretch - 1) / kStretch;
  for (int g = warp; g < p.group; g += kWarps) {
    float max = -INFINITY, sum = 0;
    for (int i = lane; i < n; i += kWarp) {
      const float2 part = __ldcg(&p.partial[(static_cast<std::int64_t>(at.item) * p.max_parts + i) * kMostGroup + g]);
      add_sum(max, sum, part.x, part.y);
    }
#pragma unroll
    for (int k = kWarp / 2; k > 0; k /= 2)
      add_sum(max, sum, __shfl_xor_sync(~0u, max, k), __shfl_xor_sync(~0u, sum, k));
    if (lane == 0) lse[g] = max == -INFINITY ? -INFINITY : max + __logf(sum);
  }
}

// Of one unit: what group_pool.h makes of its heads' values v [n], which are logarithms of probabilities for kMaxProb
// and kMeanProb. Values beyond `group` are not there.
template <int kMost>
__device__ __forceinline__ std::uint32_t pool_unit(GroupPool pool, int group, const float (&v)[kMost]) {
  float most = -INFINITY, sum = 0;
  bool nan = false;
#pragma unroll
  for (int g = 0; g < kMost; ++g) {
    if (g >= group) continue;
    nan = nan || v[g] != v[g];
    most = fmaxf(most, v[g]);
    sum += v[g];
  }
  if (nan) return 0;
  if (pool == GroupPool::kMean) return sort_key(sum / static_cast<float>(group));
  if (pool != GroupPool::kMeanProb || most == -INFINITY || most == INFINITY) return sort_key(most);
  float total = 0;
#pragma unroll
  for (int g = 0; g < kMost; ++g)
    if (g < group) total += __expf(v[g] - most);
  return sort_key(most + __logf(total));
}

// Keys of all n units, and their least and most: all loads of a thread at once, because each is a wait of half a
// microsecond, and sums that do not wait for one another, because a block of threads does this alone on its
// multiprocessor. kUnits follow one another; together with kMost heads they are 16 values of a thread.
template <int kMost, int kBatches>
__device__ __forceinline__ void pool_all(const Args& p, const SlotRules& rules, const float* scores, const float* lse,
                                         int n, std::uint32_t* keys, std::uint32_t& least, std::uint32_t& most) {
  constexpr int kUnits = 16 / kMost;
  const bool logs = rules.pool == GroupPool::kMaxProb || rules.pool == GroupPool::kMeanProb;
#pragma unroll 1
  for (int first = kUnits * threadIdx.x; first < n; first += kBatches * kUnits * kThreads) {
    float v[kBatches][kUnits][kMost];
#pragma unroll
    for (int k = 0; k < kBatches; ++k) {
      const int u = first + k * kUnits * kThreads;
#pragma unroll
      for (int g = 0; g < kMost; ++g) {
        if (g >= p.group || u >= n) continue;
        const float* from = scores + g * p.width + u;
        if constexpr (kUnits == 4) {
          const float4 x = __ldcg(reinterpret_cast<const float4*>(from));
          v[k][0][g] = x.x, v[k][1][g] = x.y, v[k][2][g] = x.z, v[k][3][g] = x.w;
        } else if constexpr (kUnits == 2) {
          const float2 x = __ldcg(reinterpret_cast<const float2*>(from));
          v[k][0][g] = x.x, v[k][1][g] = x.y;
        } else {
          v[k][0][g] = __ldcg(from);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kBatches; ++k) {
      const int u = first + k * kUnits * kThreads;
      if (logs) {
#pragma unroll
        for (int g = 0; g < kMost; ++g) {
          if (g >= p.group) continue;
          const float sum = lse[g];
#pragma unroll
          for (int i = 0; i < kUnits; ++i) {
            const float x = v[k][i][g];
            v[k][i][g] = x != x ? x : sum == -INFINITY ? -INFINITY : fminf(rules.alpha * x, 3.4028235e38f) - sum;
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        if (u + i >= n) continue;
        const std::uint32_t key = pool_unit(rules.pool, p.group, v[k][i]);
        keys[u + i] = key, least = min(least, key), most = max(most, key);
      }
    }
  }
}

// ---- the k largest of keys[0, n), ascending in index; among equals the larger index

constexpr int kBins = 1024, kBinsEach = kBins / kThreads;

struct Ranker {
  int hist[kBins];
  int per_warp[2][kWarps];
  std::uint32_t least, most;  // of the keys
  // Keys above [low, low + width) are taken, and `need` of the `equal` ones in it.
  std::uint32_t low, shift;  // width: 1 << shift
  int need, equal, n_out, n_equal_before;
  __device__ static bool in(std::uint32_t key, std::uint32_t low, std::uint32_t shift) {
    return key >= low && static_cast<std::uint64_t>(key - low) >> shift == 0;
  }
  __device__ bool within(std::uint32_t key) const { return in(key, low, shift); }
  __device__ bool above(std::uint32_t key) const { return key >= low && !within(key); }
};

// The bins part what the keys really span, because those of scores differ in their lower bits alone: with bins of the
// upper bits all keys go into two or three of them, one after the other.
__device__ __forceinline__ void find_threshold(Ranker& r, const std::uint32_t* keys, int n, int k) {
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp;
  if (tid == 0) {
    r.low = r.least;
    r.shift = 32 - __clz(static_cast<int>(r.most - r.least));  // 32: a span of all 32 bits
    r.need = k, r.equal = n;
  }
  __syncthreads();
  while (r.equal != r.need && r.shift > 0) {
    const std::uint32_t low = r.low, shift = r.shift, next = shift > 10 ? shift - 10 : 0;
    for (int i = tid; i < kBins; i += kThreads) r.hist[i] = 0;
    __syncthreads();
    for (int i = tid; i < n; i += kThreads) {
      const std::uint32_t key = keys[i];
      if (Ranker::in(key, low, shift)) atomicAdd(&r.hist[key - low >> next], 1);
    }
    __syncthreads();
    // Thread i has the bins kBins - 1 - kBinsEach * i and down, so that what comes before is above.
    int own[kBinsEach], total = 0;
#pragma unroll
    for (int i = 0; i < kBinsEach; ++i) total += own[i] = r.hist[kBins - 1 - kBinsEach * tid - i];
    int up_to = total;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int v = __shfl_up_sync(~0u, up_to, d);
      if (lane >= d) up_to += v;
    }
    if (lane == kWarp - 1) r.per_warp[0][warp] = up_to;
    const int need = r.need;
    __syncthreads();
    int before = up_to - total;
    for (int w = 0; w < warp; ++w) before += r.per_warp[0][w];
#pragma unroll
    for (int i = 0; i < kBinsEach; ++i) {
      if (before < need && before + own[i] >= need) {
        r.low = low + (static_cast<std::uint32_t>(kBins - 1 - kBinsEach * tid - i) << next);
        r.shift = next;
        r.need = need - before;
        r.equal = own[i];
      }
      before += own[i];
    }
    __syncthreads();
  }
}

// In the order of the keys, whatever their number.
__device__ void write_in_order(Ranker& r, const std::uint32_t* keys, int n, int first_page, std::int32_t* out) {
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp;
  const int skip = r.equal - r.need;  // so many of the equals, the first ones, stay out
  if (tid == 0) r.n_out = r.n_equal_before = 0;
  __syncthreads();
  for (int base = 0; base < n; base += kThreads) {
    const int i = base + tid;
    const std::uint32_t key = i < n ? keys[i] : 0;
    const bool same = i < n && r.within(key);
    const unsigned sames = __ballot_sync(~0u, same);
    if (lane == 0) r.per_warp[0][warp] = __popc(sames);
    __syncthreads();
    int equal_before = r.n_equal_before + __popc(sames & ((1u << lane) - 1));
    for (int w = 0; w < warp; ++w) equal_before += r.per_warp[0][w];
    const bool taken = i < n && (r.above(key) || (same && equal_before >= skip));
    const unsigned takens = __ballot_sync(~0u, taken);
    if (lane == 0) r.per_warp[1][warp] = __popc(takens);
    __syncthreads();
    int at = r.n_out + __popc(takens & ((1u << lane) - 1));
    for (int w = 0; w < warp; ++w) at += r.per_warp[1][w];
    if (taken) out[at] = first_page + i;
    __syncthreads();
    if (tid == 0)
      for (int w = 0; w < kWarps; ++w) r.n_equal_before += r.per_warp[0][w], r.n_out += r.per_warp[1][w];
    __syncthreads();
  }
}

constexpr int kFewRanked = kThreads;

// So few, and no equals to tell apart: taken as they come, then put in order.
__device__ void write_few(Ranker& r, const std::uint32_t* keys, int n, int k, int first_page, std::int32_t* out) {
  const int tid = threadIdx.x;
  if (tid == 0) r.n_out = 0;
  __syncthreads();
  for (int i = tid; i < n; i += kThreads)
    if (keys[i] >= r.low) r.hist[atomicAdd(&r.n_out, 1)] = i;
  __syncthreads();
  if (tid >= k) return;
  const int own = r.hist[tid];
  int rank = 0;
  for (int i = 0; i < k; ++i) rank += r.hist[i] < own;
  out[rank] = first_page + own;
}

__device__ __forceinline__ void write_ranked(Ranker& r, const std::uint32_t* keys, int n, int k, int first_page,
                                             std::int32_t* out) {
  if (k <= kFewRanked && r.equal == r.need) {
    write_few(r, keys, n, k, first_page, out);
  } else {
    write_in_order(r, keys, n, first_page, out);
  }
}

// For measuring: k pages of which `turnover` are others than at the step before. They walk through a permutation of
// the candidates, so that none comes back soon.
__device__ __forceinline__ void draw_pages(const SlotRules& rules, int length, std::int64_t index, int first_page,
                                           int n, int k, std::int32_t* sorted, std::int32_t* out) {
  const int stable = n >= 256 ? n / 128 * 128 : n;  // the same for many steps, while the sequence grows
  const auto m = static_cast<unsigned>(max(stable, k));
  const unsigned step = m % 7919 == 0 ? 7907 : 7919;
  __shared__ unsigned begin;
  if (threadIdx.x == 0)
    begin = (static_cast<unsigned>(static_cast<double>(length) * static_cast<double>(rules.turnover) * k) +
             draw(static_cast<std::uint32_t>(index), 7) % m) %
            m;
  __syncthreads();
  for (unsigned j = threadIdx.x; j < static_cast<unsigned>(k); j += kThreads)
    sorted[j] = first_page + static_cast<std::int32_t>((begin + j) % m * step % m);  // below 2^32: m is below 2^16
  __syncthreads();
  for (int j = threadIdx.x; j < k; j += kThreads) {
    int rank = 0;
    for (int i = 0; i < k; ++i) rank += sorted[i] < sorted[j];
    out[rank] = sorted[j];
  }
}

template <typename T, int kDim, bool kWide, SelectWhen kWhen>
__global__ void __launch_bounds__(kThreads, kWhen == SelectWhen::kNow ? 2 : 3) choose_kernel(Args p) {
  extern __shared__ std::uint32_t keys[];
  __shared__ Ranker ranker;
  __shared__ float lse[kMostGroup];
  __shared__ std::int32_t first_stretch[kMostRows + 1];
  __shared__ float2 of_warps[kWarps][kMostGroup];
  __shared__ bool is_last;
  let_next_start();
  wait_for_previous();
  const int tid = threadIdx.x, warp = tid / kWarp, heads = p.s.n_kv_heads;

  // Stretches of all rows stand in one line.
  for (int row = warp; row < p.rows.n; row += kWarps) {
    const RowOfSlots r = row_at(p.s, p.rows, row);
    int n = 0;
    if (r.sparse && chooses(r, p.when, any_needs_now(p.s, r, p.layer))) {
      const PageRegion region = page_region(r.rules, r.length + (p.when == SelectWhen::kNext ? 1 : 0));
      if (region.n_select > 0) n = heads * ((region.last - region.first + kStretch - 1) / kStretch);
    }
    if (tid % kWarp == 0) first_stretch[row + 1] = n;
  }
  __syncthreads();
  if (tid == 0) {
    first_stretch[0] = 0;
    for (int i = 0; i < p.rows.n; ++i) first_stretch[i + 1] += first_stretch[i];
  }
  __syncthreads();

  for (int flat = blockIdx.x; flat < first_stretch[p.rows.n]; flat += gridDim.x) {
    Stretch at;
    at.row = 0;
    while (flat >= first_stretch[at.row + 1]) ++at.row;
    const RowOfSlots r = row_at(p.s, p.rows, at.row);
    const PageRegion region = page_region(r.rules, r.length + (p.when == SelectWhen::kNext ? 1 : 0));
    at.n = region.last - region.first;
    const int each = (at.n + kStretch - 1) / kStretch, part = flat - first_stretch[at.row];
    at.kv_head = part / each;
    at.first = part % each * kStretch;
    at.item = at.row * heads + at.kv_head;
    score_tile<T, kDim, kWide, kWhen>(p, r, region, at, of_warps);
    __syncthreads();
    store_sums(p, at, of_warps);
    __syncthreads();
    if (tid == 0) {
      __threadfence();  // of what the whole block wrote before the barrier
      is_last = atomicAdd(&p.arrived[at.item], 1) == static_cast<std::uint32_t>(each - 1);
      if (is_last) p.arrived[at.item] = 0;
      __threadfence();
    }
    __syncthreads();
    if (!is_last) continue;

    merge_sums(p, at, lse);
    __syncthreads();
    const float* scores = p.scores + static_cast<std::int64_t>(at.item) * p.group * p.width;
    if (tid == 0) ranker.least = ~0u, ranker.most = 0;
    __syncthreads();
    std::uint32_t least = ~0u, most = 0;
    const auto pool = [&]<int kMost>(std::integral_constant<int, kMost>) {
      pool_all<kMost, kWhen == SelectWhen::kNow ? 2 : 1>(p, r.rules, scores, lse, at.n, keys, least, most);
    };
    if constexpr (kWide) {
      pool(std::integral_constant<int, kMostGroup>());
    } else if (p.group <= 4) {
      pool(std::integral_constant<int, 4>());
    } else {
      pool(std::integral_constant<int, 8>());
    }
    least = __reduce_min_sync(~0u, least), most = __reduce_max_sync(~0u, most);
    if (tid % kWarp == 0) atomicMin(&ranker.least, least), atomicMax(&ranker.most, most);
    __syncthreads();
    const std::int64_t index = slot_index(p.s, p.layer, r.place, at.kv_head);
    const int when = static_cast<int>(p.when);
    std::int32_t* out = p.s.chosen[when] + index * p.s.max_listed;
    find_threshold(ranker, keys, at.n, region.n_select);
    write_ranked(ranker, keys, at.n, region.n_select, region.first, out);
    if (r.rules.turnover >= 0 && region.n_select <= kMostDrawn) {
      __syncthreads();
      draw_pages(r.rules, r.length, index, region.first, at.n, region.n_select, reinterpret_cast<std::int32_t*>(keys),
                 out);
    }
    if (tid == 0) p.s.n_chosen[when][index] = region.n_select;
    __syncthreads();
  }
}

// The most parts that an item has.
int parts_of(const KvSlots& s) {
  return (s.max_pages + kStretch - 1) / kStretch;
}
// Of a row of scores: all that the last of the blocks writes.
std::int64_t width_of(const KvSlots& s) {
  return parts_of(s) * std::int64_t{kStretch};
}

int multiprocessors() {
  static const int n = device_attribute(cudaDevAttrMultiProcessorCount);
  return n;
}

template <typename T, int kDim, bool kWide, SelectWhen kWhen>
void run_as(const Args& args, const CudaContext& context) {
  const std::size_t shared =
      std::max(static_cast<std::size_t>(args.s.max_pages), std::size_t{kMostDrawn}) * sizeof(std::uint32_t);
  static std::size_t allowed = 0;
  if (allowed < shared) {
    cuda_check(cudaFuncSetAttribute(choose_kernel<T, kDim, kWide, kWhen>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared)),
               "the choice of pages' shared memory");
    allowed = shared;
  }
  launch(context, "choose_pages", choose_kernel<T, kDim, kWide, kWhen>,
         dim3(static_cast<unsigned>(2 * multiprocessors())), dim3(kThreads), shared, args);
}

template <typename T, int kDim>
void run(const Args& args, const CudaContext& context) {
  if (args.when == SelectWhen::kNow) {
    args.group > 8 ? run_as<T, kDim, true, SelectWhen::kNow>(args, context)
                   : run_as<T, kDim, false, SelectWhen::kNow>(args, context);
  } else {
    args.group > 8 ? run_as<T, kDim, true, SelectWhen::kNext>(args, context)
                   : run_as<T, kDim, false, SelectWhen::kNext>(args, context);
  }
}

}  // namespace

std::size_t choose_scratch_bytes(const KvSlots& s, std::int32_t n_rows) {
  const auto items = static_cast<std::size_t>(std::min(n_rows, kMostRows)) * static_cast<std::size_t>(s.n_kv_heads),
             parts = static_cast<std::size_t>(parts_of(s)), group = static_cast<std::size_t>(s.n_heads / s.n_kv_heads);
  return items * (group * static_cast<std::size_t>(width_of(s)) * sizeof(float) + parts * kMostGroup * sizeof(float2) +
                  sizeof(std::uint32_t));
}

void choose_pages_cuda(const ChoosePages& c, const KvSlots& s, std::int32_t slot_layer, const CudaContext& context) {
  const int group = s.n_heads / s.n_kv_heads;
  const auto parts = static_cast<std::int64_t>(parts_of(s));
  for (std::int32_t first = 0; first < c.rows.n;
       first += kMostRows) {  // rows of one launch after the other: one scratch
    Args a{};
    a.s = s;
    a.rows = {c.rows.places + first, c.rows.lengths + first, c.rows.anew + first,
              std::min(kMostRows, c.rows.n - first)};
    a.when = c.when;
    a.layer = slot_layer;
    a.group = group;
    a.max_parts = static_cast<int>(parts);
    a.width = width_of(s);
    const std::int64_t items = static_cast<std::int64_t>(std::min(c.rows.n, kMostRows)) * s.n_kv_heads;
    a.scores = reinterpret_cast<float*>(c.scratch);
    a.partial = reinterpret_cast<float2*>(a.scores + items * group * a.width);
    a.arrived = reinterpret_cast<std::uint32_t*>(a.partial + items * parts * kMostGroup);
    if (s.head_dim == 128) {
      s.f16 ? run<__half, 128>(a, context) : run<__nv_bfloat16, 128>(a, context);
    } else {
      s.f16 ? run<__half, 64>(a, context) : run<__nv_bfloat16, 64>(a, context);
    }
  }
}

}  // namespace mneme
