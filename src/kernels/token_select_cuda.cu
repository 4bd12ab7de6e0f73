// The k best of a KV head's tokens by their scores, a cluster of blocks each: every block pools a share of the tokens
// and counts how many fall into each of 1,024 parts of their range; counts of 32 parts at once go to all blocks, and of
// the 32 in which the k-th best is each one by one. With them every block knows the part of the k-th best, what the
// blocks before it take for certain, and where its own candidates in that part go in the list of all; those are ranked
// by value and position.
//
// So blocks wait for one another twice. Of 13 us for 32,768 tokens of 32 KV heads pooling and counting are 1.4: most is
// waiting for memory and for other blocks.
#include <algorithm>
#include <vector>

#include "src/kernels/token_pool_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;          // NOLINT
using namespace cuda::tokens;  // NOLINT

constexpr int kThreads = kSelectThreads, kWarps = kSelectWarps;
// Registers for so many threads a block: beside two blocks a multiprocessor has room for one of a recall that still
// runs.
constexpr int kThreadsOfRegisters = kThreads + 64;
constexpr int kBins = kWarp * kWarp;
static_assert(kBins == 2 * kThreads, "a thread has two");
constexpr int kMostBlocks = 16;          // of a cluster
constexpr int kFew = 1024;               // candidates of a KV head that are compared one by one
constexpr int kMostKept = 16 << 10;      // tokens whose values a block keeps in shared memory
constexpr int kStep = 4 * kThreads;      // tokens that a block takes at once
constexpr int kStaticShared = 24 << 10;  // at most

struct Selection {
  std::uint64_t rivals[kFew];                                          // of all blocks: value and position
  std::uint32_t bins[kBins];                                           // of this block
  std::uint32_t coarse[kMostBlocks][kWarp], fine[kMostBlocks][kWarp];  // of all
  Totals totals;
  RowInfo info;
  int of_warps[kWarps];
  std::uint32_t n_candidates, n_taken;  // of this block
  int n_before, drawn_before;           // candidates that blocks before this one take; and what is drawn
  bool flagged;                         // the KV head needs a choice for this step too
};

// The sum of what threads before this one have.
__device__ __forceinline__ int sum_before(int own, int* of_warps) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int up_to = sum_up_to(own);
  if (lane == kWarp - 1) of_warps[warp] = up_to;
  __syncthreads();
  return up_to - own + __reduce_add_sync(~0u, lane < warp ? of_warps[lane] : 0);
}

// Of 32 parts of every block's, the one in which the `left`-th from above is.
struct Found {
  int part, above, here;          // above: in higher parts
  int above_before, here_before;  // of the blocks before this one
};
__device__ __forceinline__ Found find_part(const std::uint32_t (&of)[kMostBlocks][kWarp], int blocks, int rank,
                                           int left) {
  const int lane = threadIdx.x % kWarp, part = kWarp - 1 - lane;
  int own = 0, before = 0;
#pragma unroll
  for (int b = 0; b < kMostBlocks; ++b) {
    if (b >= blocks) break;
    const int v = static_cast<int>(of[b][part]);
    own += v;
    if (b < rank) before += v;
  }
  const int up_to = sum_up_to(own);
  const unsigned reached = __ballot_sync(~0u, up_to >= left);
  const int at = reached == 0 ? kWarp - 1 : __ffs(static_cast<int>(reached)) - 1;
  Found f;
  f.part = kWarp - 1 - at;
  f.here = __shfl_sync(~0u, own, at);
  f.above = __shfl_sync(~0u, up_to, at) - f.here;
  f.here_before = __shfl_sync(~0u, before, at);
  f.above_before = __reduce_add_sync(~0u, lane < at ? before : 0);
  return f;
}

// Value and position, all different; the larger is the better one.
__device__ __forceinline__ std::uint64_t rank_of(float value, int i) {
  return static_cast<std::uint64_t>(sort_key(value)) << 32 | static_cast<std::uint32_t>(i);
}
__device__ __forceinline__ int position_of(std::uint64_t rank) {
  return static_cast<int>(rank & 0xffffffffu);
}
__device__ __forceinline__ void set_bit(std::uint32_t* mask, int i) {
  atomicOr(&mask[i / 32], 1u << i % 32);
}

// The least rank that is taken, of tokens whose values are (nearly) all the same: byte by byte.
template <typename F>
__device__ std::uint64_t least_rank(int blocks, int need, Selection& sel, F&& for_candidates) {
  std::uint64_t prefix = 0;
  int left = need;
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
  cluster_sync();
  return prefix;
}

// For measuring: whether a position is among the k of [skip, n) of which `turnover` are others than at the step before.
// They walk through a permutation of the candidates, so that none comes back soon. before: how many come before begin.
__device__ void draw_mask(const RowInfo& info, int n, int k, std::int64_t index, int begin, int own,
                          std::uint32_t* drawn, int& before) {
  const int all = n - info.skip, stable = all >= 256 ? all / 128 * 128 : all;  // the same for many steps
  const auto m = static_cast<std::uint32_t>(max(stable, k));
  const std::uint32_t step = m % 7919 == 0 ? 7907 : 7919;
  const auto moved =
      static_cast<std::uint64_t>(static_cast<double>(info.length) * static_cast<double>(info.turnover) * k);
  const auto first = static_cast<std::uint32_t>((moved + draw(static_cast<std::uint32_t>(index), 7)) % m);
  const double part = 1.0 / m;
  int mine = 0;
  for (int j = threadIdx.x; j < k; j += kThreads) {
    std::uint32_t at = first + static_cast<std::uint32_t>(j);
    if (at >= m) at -= m;
    // x % m: a division of 64 bits takes longer than all else here.
    const std::uint64_t x = static_cast<std::uint64_t>(at) * step;
    auto rest = static_cast<std::int64_t>(x) - static_cast<std::int64_t>(static_cast<double>(x) * part) * m;
    if (rest < 0) rest += m;
    if (rest >= m) rest -= m;
    const int i = info.skip + static_cast<int>(rest) - begin;
    mine += i < 0;
    if (i >= 0 && i < own) set_bit(drawn, i);
  }
  mine = __reduce_add_sync(~0u, mine);
  if (threadIdx.x % kWarp == 0 && mine > 0) atomicAdd(&before, mine);
}

__host__ __device__ constexpr int share_of(int n, int blocks) {
  return (n + blocks * kStage - 1) / (blocks * kStage) * kStage;
}

// values [kept], then two masks of a share: what is taken, and what is drawn. Of a row that chooses ahead first for the
// next step, then for this one if the KV head needs it.
__global__ void __launch_bounds__(kThreadsOfRegisters, 2) select_kernel(Args p, int blocks, int kept, int share) {
  extern __shared__ __align__(16) float values[];
  __shared__ __align__(16) Selection sel;
  auto* mask = reinterpret_cast<std::uint32_t*>(values + kept);
  auto* drawn = mask + share / 32;
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp, rank = blockIdx.x % blocks;
  const int item = blockIdx.x / blocks, row = item / p.s.n_kv_heads, kv_head = item % p.s.n_kv_heads;
  const std::uint32_t one = gridDim.y;  // a constant would become the increment, which takes one address at a time
  cluster_begin();
  let_next_start();
  if (warp == 0) {
    const RowInfo own = row_info(p, row);
    if (lane == 0) sel.info = own;
  }
  __syncthreads();
  wait_for_previous();
  cluster_begun();
  const RowInfo& info = sel.info;
  const std::int64_t index = slot_index(p.s, p.layer, info.place, kv_head);
  const auto needed = [&] { return needs_now(p.s, row_at(p.s, p.rows, row), p.layer, kv_head); };
  for (bool next = info.ahead;; next = false) {
    const int n = next ? info.n : info.n_now, k = next ? info.n_select : info.n_select_now;
    if (k == 0) {
      if (next && needed()) continue;
      break;
    }
    const int each = share_of(n, blocks), begin = min(n, rank * each), own = min(n - begin, each);
    const int skip = info.skip - begin;
    const float* scores = p.scores + static_cast<std::int64_t>(item) * p.group * p.width + begin;
    float* beyond = p.pooled + item * p.width + begin;  // values that shared memory has no room for
    // Four loads are on their way while the four before are pooled: of a single head those of later tokens.
    const int per = p.group == 1 ? 4 * kStep : kStep;
    const std::int64_t stride = p.group == 1 ? kStep : p.width;
    float4 v[4];
    const auto load = [&](int at) {
      const int there = p.group == 1 ? (own - at + kStep - 1) / kStep : at < own ? p.group : 0;
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        v[u] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        if (u < there) v[u] = __ldcg(reinterpret_cast<const float4*>(scores + at + u * stride));
      }
    };
    load(4 * tid);
    sel.bins[tid] = 0, sel.bins[tid + kThreads] = 0;
    if (info.turnover >= 0)
      for (int i = tid; i < (own + 31) / 32; i += kThreads) drawn[i] = 0;
    if (tid == 0) sel.n_candidates = 0, sel.n_before = 0, sel.drawn_before = 0;
    total(p, info, item, n, sel.totals);
    const Bins bins = bins_of(p, sel.totals);
    const auto count = [&](int i, const float4& four) {
      const float of[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (i + j >= skip && i + j < own) atomicAdd(&sel.bins[bins.bin_of(bins.x_of(of[j]))], one);
    };
#pragma unroll 1
    for (int at = 4 * tid; at < own; at += per) {
      if (p.group == 1) {
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          const int i = at + u * kStep;
          if (i >= own) break;
          if (i < kept) *reinterpret_cast<float4*>(values + i) = v[u];
          count(i, v[u]);
        }
        load(at + per);
      } else {
        const float4 pooled = pool_four(p, info, sel.totals, scores + at, v);
        load(at + per);
        if (at < kept) {
          *reinterpret_cast<float4*>(values + at) = pooled;
        } else {
          *reinterpret_cast<float4*>(beyond + at) = pooled;
        }
        count(at, pooled);
      }
    }
    const auto four_at = [&](int i) {
      return i < kept ? *reinterpret_cast<const float4*>(values + i)
                      : __ldcg(reinterpret_cast<const float4*>(beyond + i));
    };
    __syncthreads();
    {  // of 32 bins each to every block
      const std::uint32_t a = __reduce_add_sync(~0u, sel.bins[warp * 64 + lane]),
                          b = __reduce_add_sync(~0u, sel.bins[warp * 64 + kWarp + lane]);
      if (lane < blocks) {
        const std::uint32_t there = address_in(&sel.coarse[rank][2 * warp], lane);
        put(there, a), put(there + 4, b);
      }
    }
    cluster_arrive();
    if (next && warp == 0) {
      const bool now = needed();
      if (lane == 0) sel.flagged = now;
    }
    if (info.turnover >= 0) draw_mask(info, n, k, index, begin, own, drawn, sel.drawn_before);
    cluster_wait();
    const Found coarse = find_part(sel.coarse, blocks, rank, k);
    if (warp < blocks) sel.fine[warp][lane] = get(address_in(&sel.bins[coarse.part * kWarp + lane], warp));
    __syncthreads();
    const Found fine = find_part(sel.fine, blocks, rank, k - coarse.above);

    const int need = k - coarse.above - fine.above, bin = coarse.part * kWarp + fine.part;
    const bool whole = need == fine.here, few = fine.here <= kFew;
    int first = coarse.above_before + fine.above_before + (whole ? fine.here_before : 0);
    const float in = bins.edge_of(bin), sure = whole ? in : bins.edge_of(bin + 1);
    auto* bytes = reinterpret_cast<std::uint8_t*>(mask);
#pragma unroll 1
    for (int i = 4 * tid; i < (own + kStage - 1) / kStage * kStage; i += kStep) {  // a warp has all of a stage
      unsigned taken = 0, candidates = 0;
      if (i < own) {
        const float4 four = four_at(i);
        const float of[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float x = bins.x_of(of[j]);
          if (i + j < skip || i + j >= own) continue;
          taken |= (x >= sure ? 1u : 0u) << j;
          candidates |= (x >= in ? 1u : 0u) << j;
        }
        candidates &= ~taken;
        if (candidates != 0 && few) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            if ((candidates >> j & 1) == 0) continue;
            const std::uint64_t own_rank = rank_of(of[j], begin + i + j);
            const int to = fine.here_before + static_cast<int>(atomicAdd(&sel.n_candidates, 1u));
            for (int b = 0; b < blocks; ++b)
              put(address_in(&sel.rivals[to], b), float2{__uint_as_float(static_cast<std::uint32_t>(own_rank)),
                                                         __uint_as_float(static_cast<std::uint32_t>(own_rank >> 32))});
          }
        }
      }
      taken |= __shfl_down_sync(~0u, taken, 1) << 4;
      if (lane % 2 == 0) bytes[i / 8] = static_cast<std::uint8_t>(taken);
    }
    cluster_sync();
    if (!whole && few) {
      const int before = fine.here_before, stop = before + static_cast<int>(sel.n_candidates);
      for (int i = tid; i < stop; i += kThreads) {  // its own, and those that stand before what it writes
        const std::uint64_t mine = sel.rivals[i];
        int above = 0;
#pragma unroll 8
        for (int j = 0; j < fine.here; ++j) above += sel.rivals[j] > mine;
        if (above >= need) continue;
        if (i < before) {
          atomicAdd(&sel.n_before, 1);
        } else {
          set_bit(mask, position_of(mine) - begin);
        }
      }
      __syncthreads();
      first += sel.n_before;
    } else if (!whole) {
      const auto for_candidates = [&](auto&& f) {
        for (int i = 4 * tid; i < own; i += kStep) {
          const float4 four = four_at(i);
          const float of[4] = {four.x, four.y, four.z, four.w};
          for (int j = 0; j < 4; ++j) {
            const float x = bins.x_of(of[j]);
            if (i + j >= skip && i + j < own && x >= in && x < sure) f(rank_of(of[j], begin + i + j));
          }
        }
      };
      const std::uint64_t least = least_rank(blocks, need, sel, for_candidates);
      if (tid == 0) sel.n_taken = 0;
      __syncthreads();
      for_candidates([&](std::uint64_t r) {
        if (r < least) return;
        set_bit(mask, position_of(r) - begin);
        atomicAdd(&sel.n_taken, 1u);
      });
      cluster_sync();
      first += __reduce_add_sync(~0u, lane < rank ? static_cast<int>(get(address_in(&sel.n_taken, lane))) : 0);
      cluster_sync();
    }
    // In order: behind what the blocks before this one take.
    const bool draws = info.turnover >= 0;
    const auto* halves = reinterpret_cast<const std::uint16_t*>(draws ? drawn : mask);
    const int n_halves = (own + 15) / 16, some = (n_halves + kThreads - 1) / kThreads, from = min(n_halves, tid * some),
              to = min(n_halves, from + some);
    int mine = 0;
    for (int i = from; i < to; ++i) mine += __popc(halves[i]);
    int at = (draws ? sel.drawn_before : first) + sum_before(mine, sel.of_warps);
    const auto when = static_cast<int>(next ? SelectWhen::kNext : SelectWhen::kNow);
    std::int32_t* out = p.s.chosen[when] + index * p.s.max_listed;
    for (int i = from; i < to; ++i)
      for (std::uint32_t bits = halves[i]; bits != 0; bits &= bits - 1)
        out[at++] = info.base + begin + i * 16 + __ffs(static_cast<int>(bits)) - 1;
    if (rank == 0 && tid == 0) p.s.n_chosen[when][index] = k;
    if (!next || !sel.flagged) break;
    __syncthreads();
  }
}

}  // namespace

// As many blocks for a KV head as the device takes of all KV heads at once, one a multiprocessor: with two, 32 KV heads
// of 32,768 tokens took 1.3 us longer.
void cuda::tokens::select(const Args& a, const CudaContext& context) {
  static const int most_shared = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kStaticShared;
  static const std::vector<int> clusters = [] {  // by their blocks: how many the device takes at once
    cuda_check(cudaFuncSetAttribute(select_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared),
               "the choice of tokens' shared memory");
    return active_clusters(select_kernel, kThreads, kMostBlocks, std::min(most_shared, kMostKept * 5));
  }();
  const int items = a.rows.n * a.s.n_kv_heads;
  int blocks = 1;
  for (int more = 2; more <= static_cast<int>(clusters.size()) && more * items <= multiprocessors(); ++more)
    if (clusters[static_cast<std::size_t>(more - 1)] >= items) blocks = more;
  const int share = share_of(static_cast<int>(a.width), blocks), masks = share / 32 * 2 * 4;
  const int kept = std::min({share, kMostKept, std::max(0, most_shared - masks) / 4 / kStage * kStage});
  launch_clusters(context, "select_tokens", select_kernel, dim3(static_cast<unsigned>(items * blocks)), dim3(kThreads),
                  static_cast<unsigned>(blocks), static_cast<std::size_t>(kept) * 4 + static_cast<std::size_t>(masks),
                  a, blocks, kept, share);
}

}  // namespace mneme
