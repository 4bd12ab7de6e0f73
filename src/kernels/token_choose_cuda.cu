// Two kernels, each over the whole device whatever the number of sequences:
//
//   scan    a warp takes stretches of 256 tokens of one KV head: scores to memory, with each stretch's part of a head's
//           log-sum-exp and range
//   select  a cluster of blocks takes one KV head: each pools a share of the tokens and counts how many fall into each
//           of 1,024 equal parts of their range; with all counts every block knows the part in which the k-th best is,
//           ranks its own tokens in it against those of the others, by value and position, and writes down what is
//           taken behind what the blocks before it have
//
// The scan multiplies as one_bit_cuda.cuh says. k~ - z is +-s, so that a matrix operand is s with signs from the codes:
// a shift and one bit operation for two channels. Everything that is multiplied is exact in bf16. Codes and levels come
// through a ring in shared memory: with registers alone too few bytes would be on their way.
#include <algorithm>
#include <vector>

#include "src/kernels/cluster.cuh"
#include "src/kernels/one_bit_cuda.cuh"
#include "src/kernels/one_bit_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kStage = 128, kStretchStages = 2, kStretch = kStage * kStretchStages;  // tokens
constexpr int kRing = kStretchStages;                                                // stages of a warp
constexpr int kMostRows = 64, kMostGroup = kMostSlotGroup;
constexpr int kBins = 1024;
constexpr int kMostBlocks = 16;       // of a cluster
constexpr int kSelectThreads = 512;   // of a block that selects: two of them stand on a multiprocessor
constexpr int kFewCandidates = 1024;  // of a KV head: these are compared one by one
constexpr int kMostKept = 16 << 10;   // tokens whose values a block keeps in shared memory
constexpr std::size_t kScratchBytes = std::size_t{64} << 20;  // more rows than fit come one after the other

struct Args {
  KvSlots s;
  SlotRows rows;
  SelectWhen when;
  bool early;  // see ChooseTokens
  int layer, group, max_parts;
  std::int64_t width;  // of a row of scores
  float* scores;       // [rows * KV heads][group][width]; pooled: row 0
  float4* partial;     // [rows * KV heads][group][max_parts] maximum, sum of exp(alpha * (score - it)), minimum
};

// What a row's tokens are chosen of: position i is token base + i, of which [skip, n) count.
struct RowInfo {
  int place, length, base, skip, n, n_select;
  int begin, each;  // its first stretch, and those of a KV head
  GroupPool pool;
  float alpha, turnover;
  // Values are pooled as logarithms of probabilities; of one head the order is that of its scores.
  __device__ bool logs(int group) const {
    return group > 1 && (pool == GroupPool::kMaxProb || pool == GroupPool::kMeanProb);
  }
};
struct Rows {
  RowInfo of[kMostRows];
  int n_pieces;
};

// n_select is 0: the row chooses nothing. A whole warp asks.
__device__ RowInfo row_info(const Args& p, int row) {
  RowInfo info{};
  const RowOfSlots r = row_at(p.s, p.rows, row);
  if (!r.sparse || !chooses(r, p.when, any_needs_now(p.s, r, p.layer))) return info;
  const PageRegion region = page_region(r.rules, r.length + (p.when == SelectWhen::kNext ? 1 : 0));
  info.place = r.place, info.length = r.length;
  info.base = region.first / kStage * kStage;
  info.skip = region.first - info.base, info.n = region.last - info.base, info.n_select = region.n_select;
  info.pool = r.rules.pool, info.alpha = r.rules.alpha, info.turnover = r.rules.turnover;
  return info;
}

// All rows that choose, their work cut into stretches. The whole block takes part.
__device__ void find_rows(const Args& p, Rows& rows) {
  for (int row = threadIdx.x / kWarp; row < p.rows.n; row += kWarps) {
    RowInfo info = row_info(p, row);
    info.each = info.n_select > 0 ? (info.n + kStretch - 1) / kStretch : 0;
    if (threadIdx.x % kWarp == 0) rows.of[row] = info;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int begin = 0;
    for (int row = 0; row < p.rows.n; ++row) rows.of[row].begin = begin, begin += p.s.n_kv_heads * rows.of[row].each;
    rows.n_pieces = begin;
  }
  __syncthreads();
}

struct Piece {
  int row, kv_head, item;
  int part;  // of the KV head's
};
__device__ __forceinline__ Piece piece_at(const Args& p, const Rows& rows, int flat) {
  Piece at;
  at.row = 0;
  while (flat >= rows.of[at.row].begin + p.s.n_kv_heads * rows.of[at.row].each) ++at.row;
  const RowInfo& info = rows.of[at.row];
  at.kv_head = (flat - info.begin) / info.each;
  at.part = flat - info.begin - at.kv_head * info.each;
  at.item = at.row * p.s.n_kv_heads + at.kv_head;
  return at;
}

// (max, sum of exp(. - max)) takes another one in.
__device__ __forceinline__ void add_sum(float& max, float& sum, float other_max, float other_sum) {
  const float m = fmaxf(max, other_max);
  if (m > -INFINITY) sum = sum * __expf(max - m) + other_sum * __expf(other_max - m);
  max = m;
}
__device__ __forceinline__ float scaled(float alpha, float v) {
  return fminf(alpha * v, 3.4028235e38f);
}

// ---- scan

template <int kDim>
struct Stage {
  using S = OneBitShape<kDim>;
  static constexpr int kBlocks = kStage / kKvPageTokens;
  static constexpr int kCodeBytes = kBlocks * S::kBlockBytes, kBytes = kCodeBytes + kBlocks * S::kLevelBytes;

  // Codes of the tokens, and the levels of their groups: as many as there may be.
  static __device__ __forceinline__ void fetch(const KvSlots& s, std::int64_t index, int token, std::uint32_t to) {
    const int lane = threadIdx.x % kWarp, n_levels = max(1, kStage / s.group_tokens);
    const std::byte* codes = codes_of(s, index, token / kKvPageTokens);
    const std::byte* levels = levels_of(s, index, token / s.group_tokens);
    each<0>(to + lane * 16, codes + lane * 16, kCodeBytes);
    each<0>(to + kCodeBytes + lane * 16, levels + lane * 16, n_levels * S::kLevelBytes);
  }
  // Pieces of 16 bytes, a warp's row after the other: offsets that need no arithmetic.
  template <int kOffset>
  static __device__ __forceinline__ void each(std::uint32_t to, const std::byte* from, int bytes) {
    if constexpr (kOffset < kCodeBytes) {
      if (kOffset < bytes)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0 + %2], [%1 + %2], 16;" ::"r"(to), "l"(from), "n"(kOffset));
      each<kOffset + 16 * kWarp>(to, from, bytes);
    }
  }
};

__device__ __forceinline__ uint4 load_shared(std::uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
__device__ __forceinline__ uint2 load_shared_half(std::uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}

// What a lane has seen of a head's scores.
struct HeadStats {
  float max, sum, min;  // sum of exp(alpha * (score - max)), for logarithms alone
  __device__ void clear() { max = -INFINITY, sum = 0, min = INFINITY; }
  // NaN: left out.
  __device__ void take(const float4& v, float alpha, bool logs) {
    const float before = max;
    max = fmaxf(fmaxf(max, fmaxf(v.x, v.y)), fmaxf(v.z, v.w));
    min = fminf(fminf(min, fminf(v.x, v.y)), fminf(v.z, v.w));
    if (!logs || max == -INFINITY) return;
    const float base = scaled(alpha, max);
    const auto weight = [&](float x) { return isnan(x) ? 0.0f : __expf(scaled(alpha, x) - base); };
    sum = sum * __expf(scaled(alpha, before) - base) + weight(v.x) + weight(v.y) + weight(v.z) + weight(v.w);
  }
  __device__ void merge(const HeadStats& o, float alpha) {
    float m = scaled(alpha, max);
    add_sum(m, sum, scaled(alpha, o.max), o.sum);
    max = fmaxf(max, o.max), min = fminf(min, o.min);
  }
  // Of the whole warp.
  __device__ void reduce(float alpha, bool logs) {
    const float own = max;
#pragma unroll
    for (int d = kWarp / 2; d > 0; d /= 2) {
      max = fmaxf(max, __shfl_xor_sync(~0u, max, d));
      min = fminf(min, __shfl_xor_sync(~0u, min, d));
    }
    if (!logs) return;
    if (max > -INFINITY) sum *= __expf(scaled(alpha, own) - scaled(alpha, max));
    sum = warp_sum(sum);
  }
};

// A warp's scores of a stage, on their way from the fragments' order to that of the tokens.
constexpr int kScoreStride = kStage + 4;  // so that lanes of different heads meet different banks

template <int kDim>
__host__ __device__ constexpr int scan_warp_bytes(int group) {
  return kRing * Stage<kDim>::kBytes + group * kScoreStride * 4;
}

template <int kDim, bool kWide>
__global__ void __launch_bounds__(kThreads, 2) scan_kernel(Args p) {
  using S = OneBitShape<kDim>;
  constexpr int kHalves = kWide ? 2 : 1;  // of eight heads
  constexpr int kBlocks = Stage<kDim>::kBlocks;
  extern __shared__ __align__(128) std::uint8_t memory[];
  __shared__ Rows rows;
  let_next_start();
  if (!p.early) wait_for_previous();
  find_rows(p, rows);
  if (rows.n_pieces == 0) return;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  std::uint8_t* own_memory = memory + threadIdx.x / kWarp * scan_warp_bytes<kDim>(p.group);
  const std::uint32_t ring = shared_address(own_memory);
  auto* out = reinterpret_cast<float*>(own_memory + kRing * Stage<kDim>::kBytes);
  const int warps = gridDim.x * kWarps, level_shift = __ffs(p.s.group_tokens / kKvPageTokens) - 1;

  struct Work {
    Piece at;
    std::int64_t index;
    int first, skip, n, base;  // of the stretch; as RowInfo
    float alpha;
    bool logs;
  };
  const auto work_at = [&](int flat) {
    Work w;
    w.n = 0;
    if (flat >= rows.n_pieces) return w;
    w.at = piece_at(p, rows, flat);
    const RowInfo& info = rows.of[w.at.row];
    w.index = slot_index(p.s, p.layer, info.place, w.at.kv_head);
    w.first = w.at.part * kStretch;
    w.skip = info.skip, w.n = info.n, w.base = info.base, w.alpha = info.alpha, w.logs = info.logs(p.group);
    return w;
  };
  const auto fetch = [&](const Work& w, int k) {
    const int i = w.first + k * kStage;
    if (w.n > 0 && i < w.n) Stage<kDim>::fetch(p.s, w.index, w.base + i, ring + k * Stage<kDim>::kBytes);
    copy_async_commit();
  };

  const int first = threadIdx.x / kWarp * gridDim.x + blockIdx.x;
  Work work = work_at(first);
  for (int k = 0; k < kStretchStages; ++k) fetch(work, k);
  if (p.early) wait_for_previous();
#pragma unroll 1
  for (int flat = first; flat < rows.n_pieces; flat += warps) {
    uint4 q[kHalves][S::kChunks];
    const auto* head = static_cast<const __nv_bfloat16*>(p.s.last_q) + work.index * p.group * kDim;
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
#pragma unroll
      for (int c = 0; c < S::kChunks; ++c) {
        q[h][c] = {0, 0, 0, 0};
        if (g + 8 * h < p.group)
          q[h][c] = __ldcg(reinterpret_cast<const uint4*>(head + (g + 8 * h) * kDim + c * 32 + t * 8));
      }
    const Work next = work_at(flat + warps);
    HeadStats stats[kWide ? kMostGroup : 8];
#pragma unroll
    for (HeadStats& x : stats) x.clear();
#pragma unroll 1
    for (int k = 0; k < kStretchStages; ++k) {
      copy_async_wait<kStretchStages - 1>();
      __syncwarp();
      const int begin = work.first + k * kStage;
      const std::uint32_t codes = ring + k * Stage<kDim>::kBytes, levels = codes + Stage<kDim>::kCodeBytes;
      if (begin < work.n) {
        // q . z of the stage's groups, row g: group g.
        float base[kHalves][4] = {};
#pragma unroll
        for (int c = 0; c < S::kChunks; ++c) {
          uint4 z{0, 0, 0, 0};
          if (g < kBlocks) z = load_shared(levels + g * S::kLevelBytes + c * 64 + t * 16);
#pragma unroll
          for (int h = 0; h < kHalves; ++h) {
            mma<__nv_bfloat16>(base[h], z.x, 0, z.y, 0, q[h][c].x, q[h][c].y);
            mma<__nv_bfloat16>(base[h], z.z, 0, z.w, 0, q[h][c].z, q[h][c].w);
          }
        }
#pragma unroll 2
        for (int b = 0; b < kBlocks; ++b) {
          const int level = b >> level_shift;
          std::uint32_t s[S::kPairs], word[S::kWords];
#pragma unroll
          for (int c = 0; c < S::kChunks; ++c) {
            const uint4 v = load_shared(levels + level * S::kLevelBytes + 2 * kDim + c * 64 + t * 16);
            s[4 * c] = v.x, s[4 * c + 1] = v.y, s[4 * c + 2] = v.z, s[4 * c + 3] = v.w;
          }
          if constexpr (S::kWords == 4) {
            const uint4 v = load_shared(codes + b * S::kBlockBytes + lane * 16);
            word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
          } else {
            const uint2 v = load_shared_half(codes + b * S::kBlockBytes + lane * 8);
            word[0] = v.x, word[1] = v.y;
          }
          float acc[kHalves][2][4];  // by halves of the block's tokens
#pragma unroll
          for (int h = 0; h < kHalves; ++h) {
            const float x = __shfl_sync(~0u, base[h][0], level * 4 + t),
                        y = __shfl_sync(~0u, base[h][1], level * 4 + t);
#pragma unroll
            for (int i = 0; i < 2; ++i) acc[h][i][0] = acc[h][i][2] = x, acc[h][i][1] = acc[h][i][3] = y;
          }
          // Pair j of token g + 8 n.
          const auto key = [&](int n, int j) {
            const int bit = n % S::kPerWord * S::kPairs + j;
            return ((word[n / S::kPerWord] << (15 - bit)) & 0x80008000u) ^ s[j];
          };
#pragma unroll
          for (int j = 0; j < S::kPairs; j += 2)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const std::uint32_t a0 = key(2 * i, j), a1 = key(2 * i + 1, j), a2 = key(2 * i, j + 1),
                                  a3 = key(2 * i + 1, j + 1);
#pragma unroll
              for (int h = 0; h < kHalves; ++h) {
                const uint4& v = q[h][j / 4];
                mma<__nv_bfloat16>(acc[h][i], a0, a1, a2, a3, j % 4 == 0 ? v.x : v.z, j % 4 == 0 ? v.y : v.w);
              }
            }
#pragma unroll
          for (int h = 0; h < kHalves; ++h)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int of = 8 * h + 2 * t + e;
              if (of >= p.group) continue;
#pragma unroll
              for (int n = 0; n < 4; ++n)
                out[of * kScoreStride + b * kKvPageTokens + g + 8 * n] = acc[h][n / 2][n % 2 * 2 + e];
            }
        }
      }
      __syncwarp();
      fetch(next, k);
      if (begin >= work.n) continue;
      const int i = begin + lane * 4;
      const bool all = begin >= work.skip && begin + kStage <= work.n;
      const auto counts = [&](int at) { return at >= work.skip && at < work.n; };
#pragma unroll
      for (int h = 0; h < (kWide ? kMostGroup : 8); ++h) {
        if (h >= p.group) break;
        float4 v = *reinterpret_cast<const float4*>(out + h * kScoreStride + lane * 4);
        *reinterpret_cast<float4*>(p.scores + (static_cast<std::int64_t>(work.at.item) * p.group + h) * p.width + i) =
            v;
        if (!all) {
          if (!counts(i)) v.x = NAN;
          if (!counts(i + 1)) v.y = NAN;
          if (!counts(i + 2)) v.z = NAN;
          if (!counts(i + 3)) v.w = NAN;
        }
        stats[h].take(v, work.alpha, work.logs);
      }
    }
#pragma unroll
    for (int h = 0; h < (kWide ? kMostGroup : 8); ++h) {
      if (h >= p.group) break;
      HeadStats& x = stats[h];
      x.reduce(work.alpha, work.logs);
      if (lane == 0)
        p.partial[(static_cast<std::int64_t>(work.at.item) * p.group + h) * p.max_parts + work.at.part] = {x.max, x.sum,
                                                                                                           x.min, 0};
    }
    work = next;
  }
  copy_async_wait<0>();
}

// ---- select

// Of all of a KV head's tokens, by head.
struct Totals {
  float max[kMostGroup], min[kMostGroup], lse[kMostGroup];
};

__device__ void total(const Args& p, const RowInfo& info, int item, Totals& totals) {
  const int lane = threadIdx.x % kWarp, n = (info.n + kStretch - 1) / kStretch, warps = blockDim.x / kWarp;
  const bool logs = info.logs(p.group);
  if (threadIdx.x >= p.group && threadIdx.x < kMostGroup) totals.lse[threadIdx.x] = 0;  // heads that are not there
  for (int h = threadIdx.x / kWarp; h < p.group; h += warps) {
    const float4* parts = p.partial + (static_cast<std::int64_t>(item) * p.group + h) * p.max_parts;
    HeadStats x;
    x.clear();
#pragma unroll 8
    for (int i = lane; i < n; i += kWarp) {
      const float4 v = __ldcg(parts + i);
      if (logs) {
        x.merge({v.x, v.y, v.z}, info.alpha);
      } else {
        x.max = fmaxf(x.max, v.x), x.min = fminf(x.min, v.z);
      }
    }
    x.reduce(info.alpha, logs);
    if (lane == 0) {
      totals.max[h] = x.max, totals.min[h] = x.min;
      totals.lse[h] = x.max == -INFINITY ? INFINITY : scaled(info.alpha, x.max) + __logf(x.sum);  // inf: no probability
    }
  }
}

__device__ __forceinline__ float max_nan(float a, float b) {
  float v;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}
__device__ __forceinline__ float min_nan(float a, float b) {
  float v;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}

// What group_pool.h makes of four tokens' values in `group` heads, four heads at a time. Without branches, and short: a
// NaN goes through everything.
template <bool kLogs>
__device__ __forceinline__ void pool_tokens(const Args& p, const RowInfo& info, const Totals& totals,
                                            const float* scores, float (&out)[4]) {
  float most[4], sum[4];  // sum: of the values, of logarithms exp(. - most)
#pragma unroll
  for (int i = 0; i < 4; ++i) most[i] = -INFINITY, sum[i] = 0;
#pragma unroll 1
  for (int first = 0; first < p.group; first += 4) {
    float4 v[4];
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      v[h] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
      if (first + h < p.group) v[h] = __ldcg(reinterpret_cast<const float4*>(scores + (first + h) * p.width));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float x[4], m = most[i];
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        x[h] = i == 0 ? v[h].x : i == 1 ? v[h].y : i == 2 ? v[h].z : v[h].w;
        if constexpr (kLogs) x[h] = min_nan(info.alpha * x[h], 3.4028235e38f) - totals.lse[first + h];
        m = max_nan(m, x[h]);
      }
      if constexpr (kLogs) {
        const float base = max_nan(m, -3.4028235e38f);
        sum[i] *= __expf(most[i] - base);
#pragma unroll
        for (int h = 0; h < 4; ++h) sum[i] += __expf(x[h] - base);
      } else {
#pragma unroll
        for (int h = 0; h < 4; ++h) sum[i] += first + h < p.group ? x[h] : 0.0f;
      }
      most[i] = m;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[i] = most[i];
    if (kLogs && info.pool == GroupPool::kMeanProb) out[i] += __logf(sum[i]);
    if (!kLogs && info.pool == GroupPool::kMean) out[i] = sum[i] / static_cast<float>(p.group);
  }
}

// Grows with the value: it need not be more than that.
__device__ __forceinline__ int bin_of(float v, float low, float scale) {
  return static_cast<int>(fminf(fmaxf((v - low) * scale, 0.0f), static_cast<float>(kBins - 1)));
}

struct Selection {
  std::uint64_t candidates[kFewCandidates];  // of this block: value and position
  std::uint64_t rivals[kFewCandidates];      // of all blocks
  std::uint32_t bins[kBins];                 // of this block
  Totals totals;
  int of_warps[kSelectThreads / kWarp];
  int bin, need, equal;                 // tokens of higher bins are taken, and `need` of the `equal` ones in this
  std::uint32_t n_candidates, n_taken;  // of this block
};

// The sum of what threads before this one have.
template <int kThreads>
__device__ __forceinline__ int sum_before(int own, Selection& sel, int& all) {
  constexpr int kWarps = kThreads / kWarp;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int up_to = own;
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) {
    const int v = __shfl_up_sync(~0u, up_to, d);
    if (lane >= d) up_to += v;
  }
  __syncthreads();
  if (lane == kWarp - 1) sel.of_warps[warp] = up_to;
  __syncthreads();
  int before = up_to - own;
  all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += sel.of_warps[w];
    all += sel.of_warps[w];
  }
  return before;
}

// The bin in which the k-th best of all blocks' is.
template <int kThreads>
__device__ void find_bin(int blocks, int k, Selection& sel) {
  constexpr int kEach = kBins / kThreads;
  const int top = kBins - 1 - kEach * static_cast<int>(threadIdx.x);  // thread 0 has the highest
  int own[kEach], sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    own[i] = 0;
#pragma unroll 4
    for (int b = 0; b < blocks; ++b) own[i] += static_cast<int>(get(address_in(&sel.bins[top - i], b)));
    sum += own[i];
  }
  int all, before = sum_before<kThreads>(sum, sel, all);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (before < k && before + own[i] >= k) sel.bin = top - i, sel.need = k - before, sel.equal = own[i];
    before += own[i];
  }
  __syncthreads();
}

// Value and position, all different; the larger is the better one.
__device__ __forceinline__ std::uint64_t rank_of(float value, int i) {
  return static_cast<std::uint64_t>(sort_key(value)) << 32 | static_cast<std::uint32_t>(i);
}

// The least rank that is taken, of tokens whose values are (nearly) all the same: byte by byte.
template <int kThreads, typename F>
__device__ std::uint64_t least_rank(int blocks, Selection& sel, F&& for_candidates) {
  std::uint64_t prefix = 0;
  int left = sel.need;
  for (int shift = 56; shift >= 0; shift -= 8) {
    cluster_sync();
    for (int i = threadIdx.x; i < 256; i += kThreads) sel.bins[i] = 0;
    __syncthreads();
    for_candidates([&](std::uint64_t rank) {
      if (shift == 56 || rank >> (shift + 8) == prefix) atomicAdd(&sel.bins[rank >> shift & 255], 1u);
    });
    cluster_sync();
    int byte = 256, above = 0, here = 0;
    do {
      above += here;
      --byte;
      here = 0;
      for (int b = 0; b < blocks; ++b) here += static_cast<int>(get(address_in(&sel.bins[byte], b)));
    } while (above + here < left);
    left -= above;
    prefix = prefix << 8 | static_cast<std::uint64_t>(byte);
  }
  return prefix;
}

// For measuring: whether a position is among the n_select of which `turnover` are others than at the step before. They
// walk through a permutation of the candidates, so that none comes back soon.
template <int kThreads>
__device__ void draw_mask(const RowInfo& info, std::int64_t index, int begin, int own, std::uint32_t* mask) {
  for (int i = threadIdx.x; i < (own + 31) / 32; i += kThreads) mask[i] = 0;
  __syncthreads();
  const int n = info.n - info.skip, stable = n >= 256 ? n / 128 * 128 : n;  // the same for many steps
  const auto m = static_cast<std::uint64_t>(max(stable, info.n_select));
  const std::uint64_t step = m % 7919 == 0 ? 7907 : 7919;
  const auto moved =
      static_cast<std::uint64_t>(static_cast<double>(info.length) * static_cast<double>(info.turnover) * info.n_select);
  const std::uint64_t first = moved + draw(static_cast<std::uint32_t>(index), 7);
  for (int j = threadIdx.x; j < info.n_select; j += kThreads) {
    const int i = info.skip + static_cast<int>((first + static_cast<std::uint64_t>(j)) % m * step % m) - begin;
    if (i >= 0 && i < own) atomicOr(&mask[i / 32], 1u << i % 32);
  }
  __syncthreads();
}

__host__ __device__ constexpr int share_of(int n, int blocks) {
  return (n + blocks * kStage - 1) / (blocks * kStage) * kStage;
}

// values [kept], then a mask of a share.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) select_kernel(Args p, int blocks, int kept) {
  constexpr int kWarps = kThreads / kWarp;
  extern __shared__ __align__(16) float values[];
  __shared__ Selection sel;
  let_next_start();
  wait_for_previous();
  auto* mask = reinterpret_cast<std::uint32_t*>(values + kept);
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp, heads = p.s.n_kv_heads;
  const int rank = blockIdx.x % blocks, cluster = blockIdx.x / blocks, n_clusters = gridDim.x / blocks;
  bool used = false;  // shared memory of the cluster
  for (int item = cluster; item < p.rows.n * heads; item += n_clusters) {
    const RowInfo info = row_info(p, item / heads);
    if (info.n_select == 0) continue;
    if (used) cluster_sync();
    used = true;
    const bool logs = info.logs(p.group);
    const int each = share_of(info.n, blocks), begin = min(info.n, rank * each), own = min(info.n - begin, each);
    float* scores = p.scores + static_cast<std::int64_t>(item) * p.group * p.width + begin;
    for (int i = tid; i < kBins; i += kThreads) sel.bins[i] = 0;
    if (tid == 0) sel.n_candidates = sel.n_taken = 0;
    total(p, info, item, sel.totals);
    __syncthreads();
    float low = logs ? -INFINITY : INFINITY, high = -INFINITY;
    for (int h = 0; h < p.group; ++h) {
      if (!logs) {
        low = fminf(low, sel.totals.min[h]), high = fmaxf(high, sel.totals.max[h]);
      } else if (sel.totals.lse[h] < INFINITY) {
        low = fmaxf(low, scaled(info.alpha, sel.totals.min[h]) - sel.totals.lse[h]);
        high = fmaxf(high, scaled(info.alpha, sel.totals.max[h]) - sel.totals.lse[h]);
      }
    }
    if (logs && info.pool == GroupPool::kMeanProb) high += __logf(static_cast<float>(p.group));
    const float range = high - low, scale = range > 0 && range < INFINITY ? static_cast<float>(kBins) / range : 0.0f;
    const auto counts = [&](int i) { return begin + i >= info.skip && i < own; };
    const std::uint32_t one = gridDim.y;  // a constant would become the increment, which takes one address at a time

#pragma unroll 1
    for (int i = 4 * tid; i < own; i += 4 * kThreads) {
      float v[4];
      if (p.group == 1) {
        const float4 four = __ldcg(reinterpret_cast<const float4*>(scores + i));
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
      } else if (logs) {
        pool_tokens<true>(p, info, sel.totals, scores + i, v);
      } else {
        pool_tokens<false>(p, info, sel.totals, scores + i, v);
      }
      if (i < kept) {
        *reinterpret_cast<float4*>(values + i) = {v[0], v[1], v[2], v[3]};
      } else if (p.group > 1) {
        *reinterpret_cast<float4*>(scores + i) = {v[0], v[1], v[2], v[3]};
      }
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (counts(i + j)) atomicAdd(&sel.bins[bin_of(v[j], low, scale)], one);
    }
    const auto value = [&](int i) { return i < kept ? values[i] : __ldcg(scores + i); };
    __syncthreads();
    cluster_sync();
    find_bin<kThreads>(blocks, info.n_select, sel);
    const bool whole = sel.need == sel.equal, few = sel.equal <= kFewCandidates;
    const int bin = sel.bin, n_words = (own + 31) / 32;
    for (int word = warp; word < n_words; word += kWarps) {
      const int i = word * 32 + lane;
      const float v = counts(i) ? value(i) : 0.0f;
      const int of = counts(i) ? bin_of(v, low, scale) : -1;
      const unsigned taken = __ballot_sync(~0u, of > bin || (whole && of == bin));
      if (lane == 0) mask[word] = taken;
      if (!whole && few && of == bin) sel.candidates[atomicAdd(&sel.n_candidates, 1u)] = rank_of(v, begin + i);
    }
    __syncthreads();
    if (!whole && few) {
      cluster_sync();  // all blocks have their candidates
      int n_rivals = 0;
      for (int b = 0; b < blocks; ++b) {
        const int n = static_cast<int>(get(address_in(&sel.n_candidates, b)));
        const std::uint32_t there = address_in(sel.candidates, b);
        for (int i = tid; i < n; i += kThreads) {
          const uint2 v = get_two(there + i * 8);
          sel.rivals[n_rivals + i] = static_cast<std::uint64_t>(v.y) << 32 | v.x;
        }
        n_rivals += n;
      }
      __syncthreads();
      for (int i = tid; i < static_cast<int>(sel.n_candidates); i += kThreads) {
        const std::uint64_t mine = sel.candidates[i];
        int above = 0;
        for (int j = 0; j < n_rivals; ++j) above += sel.rivals[j] > mine;
        const int at = static_cast<int>(mine & 0xffffffffu) - begin;
        if (above < sel.need) atomicOr(&mask[at / 32], 1u << at % 32);
      }
      __syncthreads();
    } else if (!whole) {
      const auto for_candidates = [&](auto&& f) {
        for (int i = tid; i < own; i += kThreads)
          if (counts(i) && bin_of(value(i), low, scale) == bin) f(rank_of(value(i), begin + i));
      };
      const std::uint64_t least = least_rank<kThreads>(blocks, sel, for_candidates);
      for_candidates([&](std::uint64_t r) {
        const int at = static_cast<int>(r & 0xffffffffu) - begin;
        if (r >= least) atomicOr(&mask[at / 32], 1u << at % 32);
      });
      __syncthreads();
    }
    const std::int64_t index = slot_index(p.s, p.layer, info.place, item % heads);
    if (info.turnover >= 0) draw_mask<kThreads>(info, index, begin, own, mask);

    // In order: behind what the blocks before this one take.
    const int words = (n_words + kThreads - 1) / kThreads, from = min(n_words, tid * words),
              to = min(n_words, from + words);
    int mine = 0, all;
    for (int i = from; i < to; ++i) mine += __popc(mask[i]);
    int at = sum_before<kThreads>(mine, sel, all);
    if (tid == 0) sel.n_taken = static_cast<std::uint32_t>(all);
    __syncthreads();
    cluster_sync();
    for (int b = 0; b < rank; ++b) at += static_cast<int>(get(address_in(&sel.n_taken, b)));
    const int when = static_cast<int>(p.when);
    std::int32_t* out = p.s.chosen[when] + index * p.s.max_listed;
    for (int i = from; i < to; ++i)
      for (std::uint32_t word = mask[i]; word != 0; word &= word - 1)
        out[at++] = info.base + begin + i * 32 + __ffs(static_cast<int>(word)) - 1;
    if (rank == 0 && tid == 0) p.s.n_chosen[when][index] = info.n_select;
  }
  cluster_sync();  // nobody reads what is no more
}

// ---- launches

int multiprocessors() {
  static const int n = device_attribute(cudaDevAttrMultiProcessorCount);
  return n;
}

// The scratch of a launch: arrays of so many items, one after the other.
struct Layout {
  std::int64_t width, parts, items;
  std::int32_t rows;  // of a launch
  int group;
  Layout(const KvSlots& s, std::int32_t n_rows) : group(s.n_heads / s.n_kv_heads) {
    const std::int64_t tokens = std::int64_t{s.max_pages} * kKvPageTokens + kStage;
    width = (tokens + kStretch - 1) / kStretch * kStretch;
    parts = width / kStretch;
    items = s.n_kv_heads;
    const auto fit = static_cast<std::int64_t>(kScratchBytes / bytes());
    rows = static_cast<std::int32_t>(std::clamp<std::int64_t>(fit, 1, std::min(std::max(n_rows, 1), kMostRows)));
    items *= rows;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(items * group * (width * 4 + parts * 16)); }
  void place(std::byte* at, Args& a) const {
    a.scores = reinterpret_cast<float*>(at);
    a.partial = reinterpret_cast<float4*>(at + items * group * width * 4);
  }
};

template <typename F>
void for_rows(const ChooseTokens& c, const KvSlots& s, std::int32_t slot_layer, F&& run) {
  const Layout layout(s, c.rows.n);
  Args a{};
  a.s = s;
  a.when = c.when;
  a.early = c.early;
  a.layer = slot_layer;
  a.group = layout.group;
  a.max_parts = static_cast<int>(layout.parts);
  a.width = layout.width;
  layout.place(c.scratch, a);
  for (std::int32_t first = 0; first < c.rows.n; first += layout.rows) {
    a.rows = {c.rows.places + first, c.rows.lengths + first, c.rows.anew + first,
              std::min(layout.rows, c.rows.n - first)};
    run(a);
  }
}

template <int kDim, bool kWide>
void scan_as(const Args& a, const CudaContext& context) {
  static const bool ready = [] {
    cuda_check(cudaFuncSetAttribute(scan_kernel<kDim, kWide>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kWarps * scan_warp_bytes<kDim>(kWide ? kMostGroup : 8)),
               "the scan's shared memory");
    return true;
  }();
  static_cast<void>(ready);
  launch(context, "scan_one_bit", scan_kernel<kDim, kWide>, dim3(static_cast<unsigned>(2 * multiprocessors())),
         dim3(kThreads), static_cast<std::size_t>(kWarps) * static_cast<std::size_t>(scan_warp_bytes<kDim>(a.group)),
         a);
}
void scan(const Args& a, const CudaContext& context) {
  if (a.s.head_dim == 128) {
    a.group > 8 ? scan_as<128, true>(a, context) : scan_as<128, false>(a, context);
  } else {
    a.group > 8 ? scan_as<64, true>(a, context) : scan_as<64, false>(a, context);
  }
}

// As many blocks for a KV head as the device takes of all KV heads at once.
void select(const Args& a, const CudaContext& context) {
  static const std::vector<int> clusters = [] {  // by the logarithm of their blocks: that the device takes at once
    cuda_check(cudaFuncSetAttribute(select_kernel<kSelectThreads>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - (24 << 10)),
               "the choice of tokens' shared memory");
    return active_clusters(select_kernel<kSelectThreads>, kSelectThreads, kMostBlocks);
  }();
  const int items = a.rows.n * a.s.n_kv_heads;
  int log = 0;
  while (log + 1 < static_cast<int>(clusters.size()) && clusters[static_cast<std::size_t>(log) + 1] >= items &&
         (2 << log) * items <= multiprocessors())
    ++log;
  const int blocks = 1 << log, share = share_of(static_cast<int>(a.width), blocks), kept = std::min(share, kMostKept);
  launch_clusters(context, "select_tokens", select_kernel<kSelectThreads>, dim3(static_cast<unsigned>(items * blocks)),
                  dim3(kSelectThreads), static_cast<unsigned>(blocks),
                  static_cast<std::size_t>(kept) * 4 + static_cast<std::size_t>(share / 32) * 4, a, blocks, kept);
}

}  // namespace

std::size_t choose_tokens_scratch_bytes(const KvSlots& s, std::int32_t n_rows) {
  return Layout(s, n_rows).bytes();
}

void choose_tokens_cuda(const ChooseTokens& c, const KvSlots& s, std::int32_t slot_layer, const CudaContext& context) {
  for_rows(c, s, slot_layer, [&](const Args& a) {
    scan(a, context);
    select(a, context);
  });
}

void scan_tokens_cuda(const ChooseTokens& c, const KvSlots& s, std::int32_t slot_layer, const CudaContext& context) {
  for_rows(c, s, slot_layer, [&](const Args& a) { scan(a, context); });
}

}  // namespace mneme
