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

#include "src/selection/gate/gate_cuda.cuh"
#include "src/selection/topk/token_lists_cuda.cuh"
#include "src/selection/topk/token_mass_cuda.cuh"
#include "src/selection/topk/topk_marks.cuh"

namespace mneme {
namespace {

using namespace cuda;          // NOLINT
using namespace cuda::tokens;  // NOLINT

// With cache slots, selection for this step leaves registers (for this many threads) for a thread block of a recall
// that still runs. Selection for the next step overlaps GEMMs, whose blocks leave 10,240 registers and 47 KiB of shared
// memory on each SM: 60 us there, 20 in between. kBoth is for tokens without cache slots.
enum class SelectPasses { kNow, kNext, kBoth };
template <SelectPasses kSelectPasses>
struct SelectShape {
  static constexpr bool kOverlapped = kSelectPasses == SelectPasses::kNext;
  static constexpr int kThreads = kOverlapped ? 128 : 512, kWarps = kThreads / kWarp;
  static constexpr int kRegisterLimitThreads = kOverlapped ? kThreads : kThreads + 64;
  static constexpr int kBlocksOfRegisters = kOverlapped ? 6 : 2;
  static constexpr int kMaxKept =
      kOverlapped ? 4 << 10 : 16 << 10;       // tokens whose values a block keeps in shared memory
  static constexpr int kStep = 4 * kThreads;  // tokens per block and iteration
};
constexpr int kStaticShared = 24 << 10;  // at most
constexpr int kMaxBlocks = kMaxSelectBlocks;
constexpr int kFew = 1024;  // rivals per KV head

// Shared memory of each thread block.
template <int kWarps>
struct Selection {
  std::uint64_t rivals[kFew];
  topk::Histogram<topk::Team<kWarps * kWarp, kMaxBlocks>> histogram;
  Totals totals;
  Weighed of_mass_warps[kWarps], of_blocks[kMaxBlocks];  // where the gate compares missing mass
  TokenRegion info;
  int of_warps[kWarps];
  std::uint32_t n_rivals;
  int n_before;  // rivals that earlier blocks take
  bool flagged;  // with speculative selection: the KV head attends this step's selection
};

__host__ __device__ constexpr int share_of(int n, int blocks) {
  return (n + blocks * kStage - 1) / (blocks * kStage) * kStage;
}

// What a thread block selects in one pass: of tokens [0, n) the best k. It has tokens begin + [0, own), of which those
// from `skip` on are candidates.
struct Pass {
  bool next;  // for the next step
  int n, k, begin, own, skip;
};

// A thread block's part in the selections of a KV head. The phases of a pass are called by the whole block, in the order
// in which they stand here.
//
// Shared memory: values [kept], then two bit masks of a share (taken, in the speculative selection) and the
// addresses of its pages.
template <SelectPasses kSelectPasses, bool kLists>
struct Block {
  static constexpr int kThreads = SelectShape<kSelectPasses>::kThreads, kWarps = SelectShape<kSelectPasses>::kWarps,
                       kStep = SelectShape<kSelectPasses>::kStep;
  using Team = topk::Team<kThreads, kMaxBlocks>;
  const TokenArgs& p;
  Selection<kWarps>& sel;
  float* values;
  std::uint32_t *mask, *there;
  std::int32_t* tables;
  Team team;
  int kept, item, row, kv_head;
  std::int64_t index;

  __device__ __forceinline__ bool needed() const { return needs_now(p.s, row_at(p.s, p.rows, row), p.layer, kv_head); }
  // Reads the KV head's flag. Called by the first warp or by all; the block sees it after its next barrier.
  __device__ __forceinline__ void read_gate() {
    const bool now = needed();
    if (threadIdx.x == 0) sel.flagged = now;
  }

  // Whether there is pass 0 or 1. For this step, rows without speculative selection select, and of the others the KV
  // heads that need it; all, where the gate compares missing mass, which needs the speculative selection still intact.
  // kBoth: a row with speculative selection otherwise selects for the next step first.
  __device__ __forceinline__ bool has_pass(int pass) {
    const TokenRegion& info = sel.info;
    if constexpr (kSelectPasses == SelectPasses::kBoth) {
      if (pass == 0) return true;
      if (!info.speculative || !(info.by_mass || sel.flagged)) return false;
      __syncthreads();
      return true;
    } else {
      if (pass == 1 || (kSelectPasses == SelectPasses::kNext && !info.speculative)) return false;
      return kSelectPasses == SelectPasses::kNext || !info.speculative || info.by_mass || needed();
    }
  }
  __device__ __forceinline__ Pass pass_of(int pass) const {
    const TokenRegion& info = sel.info;
    Pass a;
    a.next = kSelectPasses == SelectPasses::kNext ||
             (kSelectPasses == SelectPasses::kBoth && info.speculative && (pass == 0) != info.by_mass);
    a.n = a.next ? info.n : info.n_now, a.k = a.next ? info.n_select : info.n_select_now;
    const int each = share_of(a.n, team.blocks);
    a.begin = min(a.n, team.rank * each), a.own = min(a.n - a.begin, each), a.skip = info.skip - a.begin;
    return a;
  }
  // A pass that selects nothing.
  __device__ __forceinline__ void skip_pass(int pass) {
    const TokenRegion& info = sel.info;
    if (kSelectPasses == SelectPasses::kNext || pass > 0 || !info.speculative) return;
    if (info.by_mass && threadIdx.x == 0) publish_mass_gate(p.s, p.s.plans[info.seq_slot].gate, index, 0);
    __syncthreads();
    read_gate();
    __syncthreads();
  }

  __device__ __forceinline__ float* beyond(const Pass& a) const {  // values that do not fit shared memory
    return p.pooled + item * p.width + a.begin;
  }
  __device__ __forceinline__ float4 four_at(const Pass& a, int i) const {
    return i < kept ? *reinterpret_cast<const float4*>(values + i)
                    : __ldcg(reinterpret_cast<const float4*>(beyond(a) + i));
  }

  // Pools the share's values and counts them by bin.
  __device__ __forceinline__ Bins count_values(const Pass& a) {
    const int tid = threadIdx.x;
    const TokenRegion& info = sel.info;
    const int one =
        static_cast<int>(gridDim.y);  // a constant would become the increment, which takes one address at a time
    const float* scores = p.scores + static_cast<std::int64_t>(item) * p.group * p.width + a.begin;
    // Four loads are in flight while the previous four are pooled; with a single head these are later tokens.
    const int per = p.group == 1 ? 4 * kStep : kStep;
    const std::int64_t stride = p.group == 1 ? kStep : p.width;
    float4 v[4];
    const auto load = [&](int at) {
      const int loads = p.group == 1 ? (a.own - at + kStep - 1) / kStep : at < a.own ? p.group : 0;
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        v[u] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        if (u < loads) v[u] = __ldcg(reinterpret_cast<const float4*>(scores + at + u * stride));
      }
    };
    load(4 * tid);
    sel.histogram.clear();
    if (tid == 0) sel.n_rivals = 0, sel.n_before = 0;
    total<kWarps>(p, info, item, a.n, sel.totals);
    const Bins bins = bins_of(p, sel.totals);
    const auto count = [&](int i, const float4& four) {
      const float of[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (i + j >= a.skip && i + j < a.own) sel.histogram.add(bins.key_of(of[j]) - bins.least() >> bins.shift, one);
    };
#pragma unroll 1
    for (int at = 4 * tid; at < a.own; at += per) {
      if (p.group == 1) {
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          const int i = at + u * kStep;
          if (i >= a.own) break;
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
          *reinterpret_cast<float4*>(beyond(a) + at) = pooled;
        }
        count(at, pooled);
      }
    }
    __syncthreads();
    return bins;
  }

  // The threshold among the bits of values: one bin of them.
  __device__ __forceinline__ topk::Threshold find_border(const Pass& a, const Bins& bins, int pass) {
    topk::Threshold t{{bins.least(), bins.shift}, {0, 32}, a.k, 0, 0};
    topk::find_bin(team, sel.histogram, t, t.keys, bins.shift, [&] {
      if (kSelectPasses == SelectPasses::kBoth && a.next && pass == 0 && threadIdx.x < kWarp) read_gate();
    });
    return t;
  }

  // Marks what is taken for certain; sends the rivals, where they are few, to every block.
  __device__ __forceinline__ void take_certain(const Pass& a, const Bins& bins, const topk::Threshold& t) {
    const topk::Rivals rivals{sel.rivals, &sel.n_rivals};
    topk::mark<Team>(mask, a.own, [&](int i) {
      const float4 four = four_at(a, i);
      const float of[4] = {four.x, four.y, four.z, four.w};
      const std::uint32_t keys[4] = {bins.key_of(of[0]), bins.key_of(of[1]), bins.key_of(of[2]), bins.key_of(of[3])};
      return topk::take_four(team, t, rivals, kFew, keys, i, {a.skip, a.own},
                             [&](int j) { return topk::rank_of(sort_key(of[j]), a.begin + i + j); });
    });
    team.sync();
  }

  // Marks the best of the rivals. Returns how many tokens the blocks before this one take.
  __device__ __forceinline__ int take_rivals(const Pass& a, const Bins& bins, const topk::Threshold& t) {
    if (t.exact()) return t.first();
    if (t.n > kFew) return t.before + search_rivals(a, bins, t);
    topk::Rivals{sel.rivals, &sel.n_rivals}.take(team, t, a.begin, mask, &sel.n_before);
    __syncthreads();
    return t.before + sel.n_before;
  }
  // Where many tokens have (nearly) equal values.
  __device__ __forceinline__ int search_rivals(const Pass& a, const Bins& bins, const topk::Threshold& border) {
    const auto for_rivals = [&](auto&& f) {
      for (int i = 4 * threadIdx.x; i < a.own; i += kStep) {
        const float4 four = four_at(a, i);
        const float of[4] = {four.x, four.y, four.z, four.w};
        for (int j = 0; j < 4; ++j)
          if (i + j >= a.skip && i + j < a.own && border.keys.has(bins.key_of(of[j])))
            f(sort_key(of[j]), a.begin + i + j, 1);
      }
    };
    topk::Threshold t{{0, 32}, topk::Range::of(0, static_cast<std::uint32_t>(a.n)), border.need, border.here, border.n};
    topk::search(team, sel.histogram, t, 0, for_rivals);
    for_rivals([&](std::uint32_t key, int i, int) {
      if (t.within(key, i) || t.above(key, i)) topk::set_bit(mask, i - a.begin);
    });
    team.sync();  // this block's histogram has been read
    return t.first();
  }

  // Evaluates a gate by missing mass: the share that is in this step's selection and that the speculative selection
  // lacks.
  __device__ __forceinline__ void gate_by_mass(const Pass& a) {
    const int tid = threadIdx.x;
    const std::int32_t* speculative = p.s.selection.ids[1] + index * p.s.max_listed;
    const int n_speculative = min(__ldcg(p.s.selection.n[1] + index), p.s.max_listed), from = sel.info.base + a.begin;
    for (int i = tid; i < (a.own + 31) / 32; i += kThreads) there[i] = 0;
    __syncthreads();
    for (int k = tid; k < n_speculative; k += kThreads) {
      const int i = __ldcg(speculative + k) - from;
      if (i >= 0 && i < a.own) topk::set_bit(there, i);
    }
    __syncthreads();
    const Weighed w = weigh<kThreads>(TokenWeight(sel.info, sel.totals.kind), a.skip, a.own, mask, there,
                                      sel.of_mass_warps, [&](int i) { return four_at(a, i); });
    if (tid < team.blocks) {
      const std::uint32_t to = address_in(&sel.of_blocks[team.rank], tid);
      put(to, float2{w.top, w.all}), put(to + 8, float2{w.missing, w.any});
    }
    cluster_sync();
    if (tid == 0)  // equal in every block
      publish_mass_gate(p.s, p.s.plans[sel.info.seq_slot].gate, index, missing_mass(sel.of_blocks, team.blocks));
    __syncthreads();
    read_gate();
  }

  // In order, after what the blocks before this one take. kLists: tokens have no cache slots; what this step attends is
  // listed.
  __device__ __forceinline__ void write_selected(const Pass& a, int first) {
    const int tid = threadIdx.x;
    const TokenRegion& info = sel.info;
    const auto when = static_cast<int>(a.next ? SelectWhen::kNext : SelectWhen::kNow);
    std::int32_t* out = p.s.selection.ids[when] + index * p.s.max_listed;
    const bool lists = kLists && !a.next && (!info.speculative || sel.flagged);
    std::int32_t* listed = p.s.slots.listed + index * p.s.max_listed + info.base + info.skip;  // after the sinks
    topk::write_marked(mask, a.own, sel.of_warps, first, [&](int at, int i) {
      if constexpr (kLists)
        if (lists) listed[at] = tables[i / kKvPageTokens] * kKvPageTokens + i % kKvPageTokens;
      out[at] = info.base + a.begin + i;
    });
    if (team.rank == 0 && tid == 0) p.s.selection.n[when][index] = a.k;
  }
};

template <SelectPasses kSelectPasses, bool kLists>
__global__ void __launch_bounds__(SelectShape<kSelectPasses>::kRegisterLimitThreads,
                                  SelectShape<kSelectPasses>::kBlocksOfRegisters)
    select_kernel(TokenArgs p, int blocks, int kept, int share) {
  extern __shared__ __align__(16) float values[];
  __shared__ __align__(16) Selection<SelectShape<kSelectPasses>::kWarps> sel;
  auto* mask = reinterpret_cast<std::uint32_t*>(values + kept);
  auto* there = mask + share / 32;
  auto* tables = reinterpret_cast<std::int32_t*>(there + share / 32);
  const int rank = blockIdx.x % blocks, item = blockIdx.x / blocks, row = item / p.s.n_kv_heads,
            kv_head = item % p.s.n_kv_heads;
  cluster_begin();
  launch_dependents();
  if (threadIdx.x < kWarp) {
    const TokenRegion own = row_info(p, row);
    if (threadIdx.x == 0) sel.info = own, sel.flagged = false;
  }
  __syncthreads();
  const TokenRegion& info = sel.info;
  if constexpr (kLists) list_early(p, info, row, kv_head, rank, blocks, share_of(info.n_now, blocks), tables);
  grid_dependency_wait();
  cluster_begun();
  const std::int64_t index = slot_index(p.s, p.layer, info.seq_slot, kv_head);
  Block<kSelectPasses, kLists> block{p,    sel,  values, mask,    there, tables, {blocks, rank},
                                     kept, item, row,    kv_head, index};
  for (int pass = 0; pass < 2; ++pass) {
    if (!block.has_pass(pass)) break;
    const Pass a = block.pass_of(pass);
    if (a.k == 0) {
      block.skip_pass(pass);
      continue;
    }
    const Bins bins = block.count_values(a);
    const topk::Threshold border = block.find_border(a, bins, pass);
    block.take_certain(a, bins, border);
    const int first = block.take_rivals(a, bins, border);
    if constexpr (kSelectPasses != SelectPasses::kNext)
      if (info.by_mass && !a.next) block.gate_by_mass(a);
    block.write_selected(a, first);
  }
  if constexpr (kLists)
    if (info.speculative) list_late(p, sel.flagged, row, kv_head, rank, blocks);
}

// As many thread blocks per KV head as the device runs for all KV heads at once, one per SM: with two, 32 KV heads of
// 32,768 tokens took 1.3 us longer.
template <SelectPasses kSelectPasses, bool kLists>
void run(const TokenArgs& a, const CudaContext& context) {
  const auto kernel = select_kernel<kSelectPasses, kLists>;
  using K = SelectShape<kSelectPasses>;
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
  const int share = share_of(static_cast<int>(a.width), blocks), masks = share / 32 * 4 * 3;
  const int kept = std::min({share, K::kMaxKept, std::max(0, most_shared - masks) / 4 / kStage * kStage});
  launch_clusters(context, "select_tokens", kernel, dim3(static_cast<unsigned>(items * blocks)),
                  dim3(static_cast<unsigned>(K::kThreads)), static_cast<unsigned>(blocks),
                  static_cast<std::size_t>(kept) * 4 + static_cast<std::size_t>(masks), a, blocks, kept, share);
}

}  // namespace

void cuda::tokens::select(const TokenArgs& a, SelectWhen when, const CudaContext& context) {
  if (a.lists) {
    run<SelectPasses::kBoth, true>(a, context);
  } else if (when == SelectWhen::kNow) {
    run<SelectPasses::kNow, false>(a, context);
  } else {
    run<SelectPasses::kNext, false>(a, context);
  }
}

}  // namespace mneme
