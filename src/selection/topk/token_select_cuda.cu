// Top-k of a KV head's tokens by their scores, one cluster of thread blocks per KV head. Every block pools a share of
// the tokens and builds a histogram over 1,024 bins of their range. Counts of 32 bins at a time are exchanged between
// all blocks, then the single counts of the 32 that contain the k-th best. With them every block knows the bin of the
// k-th best, what the blocks before it take for certain, and the offset of its own candidates in that bin in the list
// of all; those are ranked by value and position.
//
// So blocks wait for one another twice. Of 13 us for 32,768 tokens of 32 KV heads pooling and counting take 1.4: most
// is latency of memory and of other blocks.
#include <algorithm>
#include <vector>

#include "src/selection/topk/token_lists_cuda.cuh"
#include "src/selection/topk/token_topk_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;          // NOLINT
using namespace cuda::tokens;  // NOLINT

// With cache slots, selection for this step leaves registers (for this many threads) for a thread block of a recall
// that still runs. Selection for the next step overlaps GEMMs, whose blocks leave 10,240 registers and 47 KiB of shared
// memory on each SM: 60 us there, 20 in between. kBoth is for tokens without cache slots.
enum class SelectPasses { kNow, kNext, kBoth };
template <SelectPasses kSelectPasses>
struct Of {
  static constexpr bool kOverlapped = kSelectPasses == SelectPasses::kNext;
  static constexpr int kThreads = kOverlapped ? 128 : 512, kWarps = kThreads / kWarp;
  static constexpr int kRegisterLimitThreads = kOverlapped ? kThreads : kThreads + 64;
  static constexpr int kBlocksOfRegisters = kOverlapped ? 6 : 2;
  static constexpr int kMaxKept =
      kOverlapped ? 4 << 10 : 16 << 10;       // tokens whose values a block keeps in shared memory
  static constexpr int kStep = 4 * kThreads;  // tokens per block and iteration
};
constexpr int kStaticShared = 24 << 10;  // at most

// Share of this step's selection that the speculative selection lacks, to KvSlots::mass. there: bit mask of a share,
// scratch.
template <int kThreads, typename F>
__device__ void compute_missing_mass(const Args& p, Selection<kThreads / kWarp>& sel, std::int64_t index, int begin,
                                     int skip, int own, int blocks, int rank, const std::uint32_t* taken,
                                     std::uint32_t* there, F&& values_of) {
  const int tid = threadIdx.x;
  const std::int32_t* speculative = p.s.selected_ids[1] + index * p.s.max_listed;
  const int n_speculative = min(__ldcg(p.s.n_selected[1] + index), p.s.max_listed), from = sel.info.base + begin;
  for (int i = tid; i < (own + 31) / 32; i += kThreads) there[i] = 0;
  __syncthreads();
  for (int k = tid; k < n_speculative; k += kThreads) {
    const int i = __ldcg(speculative + k) - from;
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
  if (tid == 0) p.s.mass[index] = missing_mass(sel.of_blocks, blocks);  // equal in every block
  __syncthreads();
}

// Shared memory: values [kept], then three bit masks of a share (taken, injected, in the speculative selection) and the
// addresses of its pages.
//
// For this step: rows without speculative selection select, and of the others the KV heads that need it; all, where the
// gate compares missing mass, which needs the speculative selection still intact. kBoth: a row with speculative
// selection otherwise selects for the next step first. kLists: tokens have no cache slots; what this step attends is
// listed.
template <SelectPasses kSelectPasses, bool kLists>
__global__ void __launch_bounds__(Of<kSelectPasses>::kRegisterLimitThreads, Of<kSelectPasses>::kBlocksOfRegisters)
    select_kernel(Args p, int blocks, int kept, int share) {
  constexpr int kThreads = Of<kSelectPasses>::kThreads, kWarps = Of<kSelectPasses>::kWarps,
                kStep = Of<kSelectPasses>::kStep;
  extern __shared__ __align__(16) float values[];
  __shared__ __align__(16) Selection<kWarps> sel;
  auto* mask = reinterpret_cast<std::uint32_t*>(values + kept);
  auto *injected = mask + share / 32, *there = injected + share / 32;
  [[maybe_unused]] auto* tables = reinterpret_cast<std::int32_t*>(there + share / 32);
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp, rank = blockIdx.x % blocks;
  const int item = blockIdx.x / blocks, row = item / p.s.n_kv_heads, kv_head = item % p.s.n_kv_heads;
  const std::uint32_t one = gridDim.y;  // a constant would become the increment, which takes one address at a time
  cluster_begin();
  launch_dependents();
  if (warp == 0) {
    const RowInfo own = row_info(p, row);
    if (lane == 0) sel.info = own, sel.flagged = false;
  }
  __syncthreads();
  const RowInfo& info = sel.info;
  if constexpr (kLists) list_early(p, info, row, kv_head, rank, blocks, share_of(info.n_now, blocks), tables);
  grid_dependency_wait();
  cluster_begun();
  const std::int64_t index = slot_index(p.s, p.layer, info.seq_slot, kv_head);
  const auto needed = [&] { return needs_now(p.s, row_at(p.s, p.rows, row), p.layer, kv_head); };
  for (int pass = 0; pass < 2; ++pass) {
    const bool next = kSelectPasses == SelectPasses::kNext ||
                      (kSelectPasses == SelectPasses::kBoth && info.speculative && (pass == 0) != info.by_mass);
    if constexpr (kSelectPasses == SelectPasses::kBoth) {
      if (pass == 1) {
        if (!info.speculative || !(info.by_mass || sel.flagged)) break;
        __syncthreads();
      }
    } else if (pass == 1 || (kSelectPasses == SelectPasses::kNext && !info.speculative)) {
      break;
    } else if (kSelectPasses == SelectPasses::kNow && info.speculative && !info.by_mass) {
      if (!needed()) break;
    }
    const int n = next ? info.n : info.n_now, k = next ? info.n_select : info.n_select_now;
    if (k == 0) {
      if (pass == 0 && info.speculative) {
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
    float* beyond = p.pooled + item * p.width + begin;  // values that do not fit shared memory
    // Four loads are in flight while the previous four are pooled; with a single head these are later tokens.
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
      for (int i = tid; i < (own + 31) / 32; i += kThreads) injected[i] = 0;
    if (tid == 0) sel.n_candidates = 0, sel.n_before = 0, sel.injected_before = 0;
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
    for (int part = 2 * warp; part < kWarp; part += 2 * kWarps) {  // of 32 bins each, to every block
      const std::uint32_t a = __reduce_add_sync(~0u, sel.bins[part * kWarp + lane]),
                          b = __reduce_add_sync(~0u, sel.bins[part * kWarp + kWarp + lane]);
      if (lane < blocks) {
        const std::uint32_t to = address_in(&sel.coarse[rank][part], lane);
        put(to, a), put(to + 4, b);
      }
    }
    cluster_arrive();
    if (kSelectPasses == SelectPasses::kBoth && next && pass == 0 && warp == 0) {
      const bool now = needed();
      if (lane == 0) sel.flagged = now;
    }
    if (info.turnover >= 0) inject_mask<kThreads>(info, n, k, index, begin, own, injected, sel.injected_before);
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
    for (int i = 4 * tid; i < (own + kStage - 1) / kStage * kStage; i += kStep) {  // a warp has a whole stage
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
      for (int i = tid; i < stop; i += kThreads) {  // its own, and those that are in front of what it writes
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
      compute_missing_mass<kThreads>(p, sel, index, begin, skip, own, blocks, rank, mask, there, four_at);
      const bool now = needed();
      if (tid == 0) sel.flagged = now;
    }
    // In order, after what the blocks before this one take.
    const bool injects = info.turnover >= 0;
    const auto* halves = reinterpret_cast<const std::uint16_t*>(injects ? injected : mask);
    const int n_halves = (own + 15) / 16, some = (n_halves + kThreads - 1) / kThreads, from = min(n_halves, tid * some),
              to = min(n_halves, from + some);
    int mine = 0;
    for (int i = from; i < to; ++i) mine += __popc(halves[i]);
    int at = (injects ? sel.injected_before : first) + block_exclusive_scan(mine, sel.of_warps);
    const auto when = static_cast<int>(next ? SelectWhen::kNext : SelectWhen::kNow);
    std::int32_t* out = p.s.selected_ids[when] + index * p.s.max_listed;
    const bool lists = kLists && !next && (!info.speculative || sel.flagged);
    std::int32_t* listed = p.s.listed + index * p.s.max_listed + info.base + info.skip;  // after the sinks
    for (int i = from; i < to; ++i)
      for (std::uint32_t bits = halves[i]; bits != 0; bits &= bits - 1) {
        const int bit = __ffs(static_cast<int>(bits)) - 1;
        if constexpr (kLists)
          if (lists) listed[at] = tables[i / 2] * kKvPageTokens + i % 2 * 16 + bit;
        out[at++] = info.base + begin + i * 16 + bit;
      }
    if (rank == 0 && tid == 0) p.s.n_selected[when][index] = k;
  }
  if constexpr (kLists)
    if (info.speculative) list_late(p, sel.flagged, row, kv_head, rank, blocks);
}

// As many thread blocks per KV head as the device runs for all KV heads at once, one per SM: with two, 32 KV heads of
// 32,768 tokens took 1.3 us longer.
template <SelectPasses kSelectPasses, bool kLists>
void run(const Args& a, const CudaContext& context) {
  const auto kernel = select_kernel<kSelectPasses, kLists>;
  using K = Of<kSelectPasses>;
  static const int most_shared = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kStaticShared;
  static const std::vector<int> clusters = [&] {  // by number of blocks: clusters that the device runs at once
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared),
               "the selection of tokens' shared memory");
    return active_clusters(kernel, K::kThreads, kMaxBlocks, std::min(most_shared, K::kMaxKept * 5));
  }();
  const int items = a.rows.n * a.s.n_kv_heads;
  int blocks = 1;
  for (int more = 2; more <= static_cast<int>(clusters.size()) && more * items <= sm_count(); ++more)
    if (clusters[static_cast<std::size_t>(more - 1)] >= items) blocks = more;
  const int share = share_of(static_cast<int>(a.width), blocks), masks = share / 32 * 4 * 4;
  const int kept = std::min({share, K::kMaxKept, std::max(0, most_shared - masks) / 4 / kStage * kStage});
  launch_clusters(context, "select_tokens", kernel, dim3(static_cast<unsigned>(items * blocks)),
                  dim3(static_cast<unsigned>(K::kThreads)), static_cast<unsigned>(blocks),
                  static_cast<std::size_t>(kept) * 4 + static_cast<std::size_t>(masks), a, blocks, kept, share);
}

}  // namespace

void cuda::tokens::select(const Args& a, SelectWhen when, const CudaContext& context) {
  if (a.lists) {
    run<SelectPasses::kBoth, true>(a, context);
  } else if (when == SelectWhen::kNow) {
    run<SelectPasses::kNow, false>(a, context);
  } else {
    run<SelectPasses::kNext, false>(a, context);
  }
}

}  // namespace mneme
