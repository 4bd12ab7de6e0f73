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

#include "src/kernels/token_lists_cuda.cuh"
#include "src/kernels/token_rank_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;          // NOLINT
using namespace cuda::tokens;  // NOLINT

// Where tokens have slots, who chooses for this step leaves registers (of so many threads) for a block of a recall that
// still runs, and who chooses for the next step stands beside products, whose blocks leave 10,240 registers and 47 KiB
// of shared memory of each multiprocessor: 60 us there in place of 20 between. kBoth is for tokens without slots.
enum class Turns { kNow, kNext, kBoth };
template <Turns kTurns>
struct Of {
  static constexpr bool kBeside = kTurns == Turns::kNext;
  static constexpr int kThreads = kBeside ? 128 : 512, kWarps = kThreads / kWarp;
  static constexpr int kThreadsOfRegisters = kBeside ? kThreads : kThreads + 64;
  static constexpr int kBlocksOfRegisters = kBeside ? 6 : 2;
  static constexpr int kMostKept = kBeside ? 4 << 10 : 16 << 10;  // tokens whose values a block keeps in shared memory
  static constexpr int kStep = 4 * kThreads;                      // tokens that a block takes at once
};
constexpr int kStaticShared = 24 << 10;  // at most

// How much of this step's choice the selection ahead lacks, to KvSlots::mass. there: a mask of a share, to work with.
template <int kThreads, typename F>
__device__ void weigh_missing(const Args& p, Selection<kThreads / kWarp>& sel, std::int64_t index, int begin, int skip,
                              int own, int blocks, int rank, const std::uint32_t* taken, std::uint32_t* there,
                              F&& values_of) {
  const int tid = threadIdx.x;
  const std::int32_t* ahead = p.s.chosen[1] + index * p.s.max_listed;
  const int n_ahead = min(__ldcg(p.s.n_chosen[1] + index), p.s.max_listed), from = sel.info.base + begin;
  for (int i = tid; i < (own + 31) / 32; i += kThreads) there[i] = 0;
  __syncthreads();
  for (int k = tid; k < n_ahead; k += kThreads) {
    const int i = __ldcg(ahead + k) - from;
    if (i >= 0 && i < own) set_bit(there, i);
  }
  __syncthreads();
  const Weighed w =
      weigh<kThreads>(TokenWeight(sel.info, sel.totals.kind), skip, own, taken, there, sel.of_mass_warps, values_of);
  if (tid < blocks) {
    const std::uint32_t to = address_in(&sel.of_blocks[rank], tid);
    put(to, float2{w.top, w.all}), put(to + 8, float2{w.missing, w.any});
  }
  cluster_sync();
  if (tid == 0) p.s.mass[index] = missing_mass(sel.of_blocks, blocks);  // every block the same
  __syncthreads();
}

// values [kept], then of a share three masks (what is taken, what is drawn, what the selection ahead has) and where its
// pages are. For this step rows choose that do not choose ahead, and of the others those KV heads that need it; all,
// where the gate looks at what is missing, which must have the selection ahead still. kBoth: of a row that chooses
// ahead first for the next step otherwise. kLists: tokens have no slots, and what this step attends is listed.
template <Turns kTurns, bool kLists>
__global__ void __launch_bounds__(Of<kTurns>::kThreadsOfRegisters, Of<kTurns>::kBlocksOfRegisters)
    select_kernel(Args p, int blocks, int kept, int share) {
  constexpr int kThreads = Of<kTurns>::kThreads, kWarps = Of<kTurns>::kWarps, kStep = Of<kTurns>::kStep;
  extern __shared__ __align__(16) float values[];
  __shared__ __align__(16) Selection<kWarps> sel;
  auto* mask = reinterpret_cast<std::uint32_t*>(values + kept);
  auto *drawn = mask + share / 32, *there = drawn + share / 32;
  [[maybe_unused]] auto* tables = reinterpret_cast<std::int32_t*>(there + share / 32);
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp, rank = blockIdx.x % blocks;
  const int item = blockIdx.x / blocks, row = item / p.s.n_kv_heads, kv_head = item % p.s.n_kv_heads;
  const std::uint32_t one = gridDim.y;  // a constant would become the increment, which takes one address at a time
  cluster_begin();
  let_next_start();
  if (warp == 0) {
    const RowInfo own = row_info(p, row);
    if (lane == 0) sel.info = own, sel.flagged = false;
  }
  __syncthreads();
  const RowInfo& info = sel.info;
  if constexpr (kLists) list_early(p, info, row, kv_head, rank, blocks, share_of(info.n_now, blocks), tables);
  wait_for_previous();
  cluster_begun();
  const std::int64_t index = slot_index(p.s, p.layer, info.place, kv_head);
  const auto needed = [&] { return needs_now(p.s, row_at(p.s, p.rows, row), p.layer, kv_head); };
  for (int turn = 0; turn < 2; ++turn) {
    const bool next = kTurns == Turns::kNext || (kTurns == Turns::kBoth && info.ahead && (turn == 0) != info.by_mass);
    if constexpr (kTurns == Turns::kBoth) {
      if (turn == 1) {
        if (!info.ahead || !(info.by_mass || sel.flagged)) break;
        __syncthreads();
      }
    } else if (turn == 1 || (kTurns == Turns::kNext && !info.ahead)) {
      break;
    } else if (kTurns == Turns::kNow && info.ahead && !info.by_mass) {
      if (!needed()) break;
    }
    const int n = next ? info.n : info.n_now, k = next ? info.n_select : info.n_select_now;
    if (k == 0) {
      if (turn == 0 && info.ahead) {
        if (info.by_mass && rank == 0 && tid == 0) p.s.mass[index] = 0;
        __syncthreads();
        const bool now = needed();
        if (tid == 0) sel.flagged = now;
        __syncthreads();
      }
      continue;
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
    for (int i = tid; i < kBins; i += kThreads) sel.bins[i] = 0;
    if (info.turnover >= 0)
      for (int i = tid; i < (own + 31) / 32; i += kThreads) drawn[i] = 0;
    if (tid == 0) sel.n_candidates = 0, sel.n_before = 0, sel.drawn_before = 0;
    total<kWarps>(p, info, item, n, sel.totals);
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
#pragma unroll
    for (int part = 2 * warp; part < kWarp; part += 2 * kWarps) {  // of 32 bins each to every block
      const std::uint32_t a = __reduce_add_sync(~0u, sel.bins[part * kWarp + lane]),
                          b = __reduce_add_sync(~0u, sel.bins[part * kWarp + kWarp + lane]);
      if (lane < blocks) {
        const std::uint32_t to = address_in(&sel.coarse[rank][part], lane);
        put(to, a), put(to + 4, b);
      }
    }
    cluster_arrive();
    if (kTurns == Turns::kBoth && next && turn == 0 && warp == 0) {
      const bool now = needed();
      if (lane == 0) sel.flagged = now;
    }
    if (info.turnover >= 0) draw_mask<kThreads>(info, n, k, index, begin, own, drawn, sel.drawn_before);
    cluster_wait();
    const Found coarse = find_part(sel.coarse, blocks, rank, k);
    for (int b = warp; b < blocks; b += kWarps)
      sel.fine[b][lane] = get(address_in(&sel.bins[coarse.part * kWarp + lane], b));
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
    if (info.by_mass && !next) {
      weigh_missing<kThreads>(p, sel, index, begin, skip, own, blocks, rank, mask, there, four_at);
      const bool now = needed();
      if (tid == 0) sel.flagged = now;
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
    const bool lists = kLists && !next && (!info.ahead || sel.flagged);
    std::int32_t* listed = p.s.listed + index * p.s.max_listed + info.base + info.skip;  // behind the sinks
    for (int i = from; i < to; ++i)
      for (std::uint32_t bits = halves[i]; bits != 0; bits &= bits - 1) {
        const int bit = __ffs(static_cast<int>(bits)) - 1;
        if constexpr (kLists)
          if (lists) listed[at] = tables[i / 2] * kKvPageTokens + i % 2 * 16 + bit;
        out[at++] = info.base + begin + i * 16 + bit;
      }
    if (rank == 0 && tid == 0) p.s.n_chosen[when][index] = k;
  }
  if constexpr (kLists)
    if (info.ahead) list_late(p, sel.flagged, row, kv_head, rank, blocks);
}

// As many blocks for a KV head as the device takes of all KV heads at once, one a multiprocessor: with two, 32 KV heads
// of 32,768 tokens took 1.3 us longer.
template <Turns kTurns, bool kLists>
void run(const Args& a, const CudaContext& context) {
  const auto kernel = select_kernel<kTurns, kLists>;
  using K = Of<kTurns>;
  static const int most_shared = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kStaticShared;
  static const std::vector<int> clusters = [&] {  // by their blocks: how many the device takes at once
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared),
               "the choice of tokens' shared memory");
    return active_clusters(kernel, K::kThreads, kMostBlocks, std::min(most_shared, K::kMostKept * 5));
  }();
  const int items = a.rows.n * a.s.n_kv_heads;
  int blocks = 1;
  for (int more = 2; more <= static_cast<int>(clusters.size()) && more * items <= multiprocessors(); ++more)
    if (clusters[static_cast<std::size_t>(more - 1)] >= items) blocks = more;
  const int share = share_of(static_cast<int>(a.width), blocks), masks = share / 32 * 4 * 4;
  const int kept = std::min({share, K::kMostKept, std::max(0, most_shared - masks) / 4 / kStage * kStage});
  launch_clusters(context, "select_tokens", kernel, dim3(static_cast<unsigned>(items * blocks)),
                  dim3(static_cast<unsigned>(K::kThreads)), static_cast<unsigned>(blocks),
                  static_cast<std::size_t>(kept) * 4 + static_cast<std::size_t>(masks), a, blocks, kept, share);
}

}  // namespace

void cuda::tokens::select(const Args& a, SelectWhen when, const CudaContext& context) {
  if (a.lists) {
    run<Turns::kBoth, true>(a, context);
  } else if (when == SelectWhen::kNow) {
    run<Turns::kNow, false>(a, context);
  } else {
    run<Turns::kNext, false>(a, context);
  }
}

}  // namespace mneme
