// Recall: fetches units from host memory into cache slots, by kernels.
//
// Thread blocks  Four to eight saturate the link with pages (docs/design/gather.md). But an item (one KV head of one
// row) is resolved and copied by one thread block, mostly 10 us of latency, so a launch has as many thread blocks as
// items to overlap these. Single tokens are bound by their number: 27 million a second with 8 thread blocks of 128
// threads, 48 million with 256 threads.
//
// Resources  Recall for the next step overlaps the GEMMs of this step, whose thread blocks leave 10,240 registers and
// 47 KiB of shared memory on each SM. Recall stays below that; otherwise GEMM blocks would wait for it. One thread
// moves pages, with bulk copies from host memory to shared memory and from there to cache slots. Tokens are so small
// that issuing each copy would dominate, so warps load eight at once.
//
// Code size  Features cost registers and instructions whether used or not, so each kind of recall is its own
// instantiation, and loops of one or two iterations are not unrolled (32 KB of instructions for pages, 62 otherwise).
#include <algorithm>

#include "src/cuda/bulk_copy.cuh"
#include "src/offload/unit_resolve.cuh"

namespace mneme {
namespace {

using namespace cuda;          // NOLINT
using namespace cuda::recall;  // NOLINT

constexpr int kListThreads = 256, kListBlocks = 4;
#if __CUDA_ARCH__ >= 900
constexpr int kRecallPiece = kBulkBytes;
#else
constexpr int kRecallPiece = kPieceBytes;
#endif

// Fetches tokens out of the pages, one by one, by `warp` of n_warps warps.
template <typename K>
__device__ __forceinline__ void fetch_tokens(const RecallArgs& p, const RecallItem& item, const Lists& lists,
                                             std::byte* base, int warp, int n_warps) {
  const int bytes = static_cast<int>(token_bytes_of<K>(p)), n = lists.counters->n_missing;
  const auto from = [&](int i) { return p.pages.base + std::int64_t{lists.missing[i].token} * bytes; };
  const auto to = [&](int i) { return base + lists.missing[i].slot * bytes; };
  if constexpr (K::kCodes) {
    copy_code_tokens(n, bytes, warp, n_warps, from, to);
  } else {
    copy_half_tokens(n, bytes, warp, n_warps, from, to);
  }
}

// For the next step with a window of 0 or 1 this step's own token belongs to the selection, and it is in no page yet.
// Called by the whole thread block, after fetch_tokens().
template <typename K>
__device__ __forceinline__ void fetch_newest(const RecallArgs& p, const SlotRow& r, const RecallItem& item,
                                             const Lists& lists, std::byte* base) {
  if (item.region.last < r.length) return;
  const int bytes = static_cast<int>(token_bytes_of<K>(p)), n = lists.counters->n_missing,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  __syncthreads();
  const std::int32_t newest = unit_token(p.pages, 1, p.layer, item.seq_slot, item.kv_head, r.length - 1);
  const std::byte* own =
      resident_token(p.s, p.s.plans[item.seq_slot], p.slot_layer, item.seq_slot, item.kv_head, r.length - 1, r.length);
  for (int i = warp; i < n; i += K::kThreads / kWarp)
    if (lists.missing[i].token == newest)
      copy_token<std::conditional_t<K::kCodes, uint2, uint4>>(base + lists.missing[i].slot * bytes, own, bytes);
}

// Fetches the item's tokens and commits its tables. For this step four warps commit while the others fetch: neither needs
// the other.
template <typename K>
__device__ __forceinline__ void fetch_and_commit(const RecallArgs& p, const SlotRow& r, const RecallItem& item,
                                                 const Lists& lists, std::byte* base) {
  constexpr int kWarps = K::kThreads / kWarp, kCommitting = K::kNow ? 4 : 0;
  const int tid = static_cast<int>(threadIdx.x);
  if constexpr (K::kNow) {
    if (tid >= kCommitting * kWarp) {
      fetch_tokens<K>(p, item, lists, base, tid / kWarp - kCommitting, kWarps - kCommitting);
    } else {
      commit_slots<K>(p, item, lists, tid, kCommitting * kWarp);
    }
  } else {
    fetch_tokens<K>(p, item, lists, base, tid / kWarp, kWarps);
    fetch_newest<K>(p, r, item, lists, base);
    commit_slots<K>(p, item, lists, tid, K::kThreads);
  }
  __syncthreads();
}

// Prefetches the tables that resolve() and commit_slots() read to L2 while the selection still runs. The rows' sequence
// slots are valid before a step's first kernel.
template <typename K>
__device__ __forceinline__ void prefetch_tables(const RecallArgs& p) {
  constexpr int kLine = 128 / sizeof(std::int32_t);
  const auto ask = [](const std::int32_t* table, int n) {
    for (int i = static_cast<int>(threadIdx.x) * kLine; i < n; i += K::kThreads * kLine)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(table + i));
  };
  for (int i = blockIdx.x; i < p.rows.n * p.s.n_kv_heads; i += gridDim.x) {
    const int seq_slot = p.rows.seq_slots[i / p.s.n_kv_heads], kv_head = i % p.s.n_kv_heads;
    if (seq_slot < 0) continue;
    const std::int64_t index = slot_index(p.s, p.slot_layer, seq_slot, kv_head);
    ask(p.s.slots.last_used + index * p.s.n_slots, p.s.n_slots);
    ask(p.s.slots.unit_of + index * p.s.n_slots, p.s.n_slots);
    if constexpr (K::kPages) ask(p.s.slots.slot_of + index * p.s.max_pages, p.s.max_pages);
    ask(p.pages.blocks + table_at(p.pages, p.layer, seq_slot, model_head(p.pages, kv_head)), p.pages.max_pages);
  }
}

template <typename K>
__global__ void __launch_bounds__(K::kThreads, K::kThreads == kRecallThreads ? 8 : 2) recall_kernel(RecallArgs p) {
  extern __shared__ __align__(128) std::uint8_t memory[];  // the ring of stages, then lists
  __shared__ Lists::Counters counters;
  const Lists lists(memory + K::kRingBytes, p.s, &counters);
#if __CUDA_ARCH__ >= 900
  __shared__ std::uint64_t barriers[K::kStages];
  BulkCopies<K::kStages> copies{shared_address(memory), shared_address(barriers)};
  if (K::kPages && threadIdx.x == 0) {
    for (int i = 0; i < K::kStages; ++i) barrier_init(copies.barriers + i * 8, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
#endif
  // Attention that starts with the hits must not start before queries and selection are written.
  const bool signals = signals_arrivals<K>(p);
  if (!signals) launch_dependents();
  if constexpr (K::kNow) prefetch_tables<K>(p);
  grid_dependency_wait();
  if (signals) launch_dependents();
  const int items = p.rows.n * p.s.n_kv_heads;
  for (int i = blockIdx.x; i < items; i += gridDim.x) {
    const int row = i / p.s.n_kv_heads, kv_head = i % p.s.n_kv_heads;
    const SlotRow r = recall_row<K>(p, row);
    const auto all_there = [&] {
      if (!signals || threadIdx.x > 0 || r.seq_slot < 0) return;
      signal(p, row, r.seq_slot, kv_head, p.s.slots.listed_for);
      signal(p, row, r.seq_slot, kv_head, p.s.slots.arrived_for);
    };
    RecallItem item{};
    const Work work = work_of<K>(p, r, kv_head, threadIdx.x == 0, item);
    if (K::kNow && p.s.slots.relisted != nullptr && threadIdx.x == 0 && r.seq_slot >= 0)
      p.s.slots.relisted[slot_index(p.s, p.slot_layer, r.seq_slot, kv_head)] = work == Work::kNone ? 0 : 1;
    if (work == Work::kAgain) {
      list_again<K>(p, item);
      if (threadIdx.x == 0) count_selected(p, r.seq_slot, item.attended);
      __syncthreads();
    }
    if (work != Work::kLists) {
      all_there();
      continue;
    }
    __syncthreads();
    resolve<K>(p, item, lists);
    std::byte* const base = p.s.slots.data + (item.index * p.s.n_slots + item.fixed) * unit_bytes_of<K>(p);
    if constexpr (!K::kPages) {
      fetch_and_commit<K>(p, r, item, lists, base);
      continue;
    }
    const int page = static_cast<int>(unit_bytes_of<K>(p)), shift = page_piece_shift(page, kRecallPiece),
              bytes = page >> shift;
    const int n = counters.n_missing << shift, mask = (1 << shift) - 1;
    const auto source = [&](int i) {
      return p.pages.base + lists.missing[i >> shift].token * token_bytes_of<K>(p) + (i & mask) * bytes;
    };
    const auto target = [&](int i) {
      return base + lists.missing[i >> shift].slot * unit_bytes_of<K>(p) + (i & mask) * bytes;
    };
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      copies.piece_bytes = bytes;
      copies.run(n, source, target);
      asm volatile("fence.proxy.async.global;" ::: "memory");
      if (signals) signal(p, row, r.seq_slot, kv_head, p.s.slots.arrived_for);
    } else if (threadIdx.x >= kWarp) {
      constexpr int kLanes = K::kThreads - kWarp;
      commit_slots<K>(p, item, lists, static_cast<int>(threadIdx.x) - kWarp, kLanes);
      if (signals) {
        asm volatile("bar.sync 1, %0;" ::"n"(kLanes) : "memory");  // only these warps: the first one copies
        if (threadIdx.x == kWarp) signal(p, row, r.seq_slot, kv_head, p.s.slots.listed_for);
      }
    }
#else
    for (int i = threadIdx.x / kWarp; i < n; i += K::kThreads / kWarp) copy_piece(target(i), source(i), bytes);
    commit_slots<K>(p, item, lists, static_cast<int>(threadIdx.x), K::kThreads);
    __syncthreads();
    all_there();
#endif
    __syncthreads();
  }
}

// Without cache slots: lists the tokens to attend, all of them up to the budget. A selection for the next step is
// listed without that step's token, whose page may have no block yet.
template <SelectWhen kWhen>
__global__ void __launch_bounds__(kListThreads) list_kernel(RecallArgs p) {
  using Listed = RecallOf<1, kWhen, kWhen == SelectWhen::kNow>;
  launch_dependents();
  grid_dependency_wait();
  const int row = blockIdx.y / p.s.n_kv_heads, kv_head = blockIdx.y % p.s.n_kv_heads;
  const SlotRow r = recall_row<Listed>(p, row);
  if (r.seq_slot < 0) return;
  if (!Listed::kNow && !r.sparse) return;
  const bool first_block = blockIdx.x == 0 && threadIdx.x == 0;
  RecallItem item{};
  const Work work = work_of<Listed>(p, r, kv_head, first_block, item);
  if (r.sparse && work == Work::kNone) {
    if (first_block && Listed::kNow && r.plan.schedule == ScheduleKind::kSpeculative)
      list_newest(p.s, p.pages, p.layer, p.slot_layer, r, kv_head);
    return;
  }
  if (!r.sparse) item.index = slot_index(p.s, p.slot_layer, r.seq_slot, kv_head), item.region.stop = r.length;
  int begin = 0;
  if (work == Work::kAgain)
    begin = item.region.first + max(0, item.attended - window_slots(r.plan));  // as list_again()
  const PageRegion& region = item.region;
  const std::int32_t* selected_ids = p.s.selection.ids[item.from] + item.index * p.s.max_listed;
  std::int32_t* listed = p.s.slots.listed + item.index * p.s.max_listed;
  const int n = region.first + item.attended + region.stop - region.window - (Listed::kNow ? 0 : 1);
  const bool newest_first = r.sparse && item.newest_first;
  for (int i = begin + blockIdx.x * kListThreads + threadIdx.x; i < n; i += gridDim.x * kListThreads) {
    const int at = i - region.first, of_window = at - item.attended;
    const int unit = at < 0          ? i
                     : of_window < 0 ? selected_ids[at]
                     : newest_first  ? region.stop - 1 - of_window
                                     : region.window + of_window;
    listed[i] = unit_token(p.pages, 1, p.layer, r.seq_slot, kv_head, unit);
  }
  if (first_block && r.sparse) count_selected(p, r.seq_slot, item.attended);
}

template <typename K>
void launch_recall(const RecallArgs& args, int max_blocks, const CudaContext& context) {
  launch_shared<recall_kernel<K>>(context, "recall_units",
                                  grid_of(std::min(max_blocks, args.rows.n * args.s.n_kv_heads)), K::kThreads,
                                  K::kRingBytes + Lists::bytes(args.s), args);
}

// Kept selections are never fetched for the next step.
template <int kTokens, SelectWhen kWhen, bool kCodes = false>
void launch_kind(const RecallArgs& args, int max_blocks, const CudaContext& context) {
  if constexpr (kWhen == SelectWhen::kNow) {
    if (args.s.selection.kept != nullptr) {
      launch_recall<RecallOf<kTokens, kWhen, true, kCodes>>(args, max_blocks, context);
      return;
    }
  }
  launch_recall<RecallOf<kTokens, kWhen, false, kCodes>>(args, max_blocks, context);
}

template <SelectWhen kWhen>
void launch_units(const RecallArgs& args, int max_blocks, const CudaContext& context) {
  if (args.s.unit_tokens == kKvPageTokens) {
    launch_kind<kKvPageTokens, kWhen>(args, max_blocks, context);
  } else if (args.s.codes == KvCodes::kNone) {
    launch_kind<1, kWhen>(args, max_blocks, context);
  } else {
    launch_kind<1, kWhen, true>(args, max_blocks, context);
  }
}

}  // namespace

void recall_units_cuda(const SlotRows& rows, SelectWhen when, const DeviceCache& s, const KvTables& pages,
                       std::int32_t layer, std::int32_t slot_layer, std::int32_t max_blocks,
                       const CudaContext& context) {
  const RecallArgs args{of_layer(s, slot_layer), pages, rows, layer, slot_layer};
  const bool now = when == SelectWhen::kNow;
  if (s.n_slots == 0) {
    launch(context, "list_tokens", now ? list_kernel<SelectWhen::kNow> : list_kernel<SelectWhen::kNext>,
           grid_of(kListBlocks, rows.n * s.n_kv_heads), kListThreads, 0, args);
    return;
  }
  // Four sequences of 32,768 with 13 % corrections: 6.80 ms a step with 8 thread blocks for the next step and for this
  // one, 6.48 with 32 and 32, 6.28 with 16 and 32. More thread blocks slow down the GEMMs that they overlap.
  // Pages of 24 sequences for this step: a thread block for each of their 192 KV heads. With 32 for all, a layer of 20
  // sequences with 13 % corrections waited for two fetches one after the other: 9.8 ms a step in place of 10.0 to 10.4.
  if (now) {
    launch_units<SelectWhen::kNow>(args, (s.unit_tokens == 1 ? 4 : 24) * max_blocks, context);
  } else {
    launch_units<SelectWhen::kNext>(args, s.unit_tokens == 1 ? max_blocks : 2 * max_blocks, context);
  }
}

}  // namespace mneme
