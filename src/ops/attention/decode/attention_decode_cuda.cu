// Decode attention over pages.
#include <algorithm>

#include "src/offload/device_cache_cuda.h"
#include "src/ops/attention/decode/attention_decode.cuh"

namespace mneme {
namespace {

using namespace cuda;          // NOLINT
using namespace cuda::decode;  // NOLINT

// Tables with holes, and tables that are still being filled, have their own instantiations: the common case does no
// extra checks.
enum class TableKind { kWhole, kHoles, kArriving };

constexpr int kMaxStages = 4;
// Whether pages come by bulk copies. Not where other thread blocks write them meanwhile: bulk copies are ordered with
// the kernels before alone.
#if __CUDA_ARCH__ >= 900
template <typename Page, TableKind kKind>
constexpr bool kByBulkCopies = kKind != TableKind::kArriving&& Page::kWhole;
#else
template <typename Page, TableKind kKind>
constexpr bool kByBulkCopies = false;
#endif

template <typename Page, TableKind kKind>
struct KvSplit {  // one item's part of a thread block's work
  static constexpr int kDim = Page::kDim;
  static constexpr bool kHoles = kKind == TableKind::kHoles, kArriving = kKind == TableKind::kArriving,
                        kBulk = kByBulkCopies<Page, kKind>;
  const DecodeArgs& p;
  const DecodeItem& item;
  const std::int32_t* table;
  std::uint32_t ring;  // shared address of this warp's pages
  std::uint32_t full;  // kByBulkCopies: the mbarriers of these pages; bit i of `parity`: the phase of stage i
  int begin, end;      // pages of the item
  bool& waited;
  std::uint32_t& parity;
  bool arrived = false;  // kArriving: in-flight entries have arrived

  // Mask of stored tokens in a page of the table.
  __device__ __forceinline__ std::uint32_t mask_of(int page) const {
    if constexpr (!kHoles) return ~0u;
    return p.tables.masks[table - p.tables.blocks + page];
  }

  // kArriving: whether a page can be read without waiting. Called by a whole warp.
  __device__ __forceinline__ bool is_here(int page) {
    if (page >= end || arrived || table[item.first_page + page] >= 0) return true;
    arrived = __shfl_sync(~0u, read_flag(arrival_flag()) == ticket(), 0);
    return arrived;
  }
  __device__ __forceinline__ void await_arrival() {
    if (arrived) return;
    if (threadIdx.x % kWarp == 0) await_flag(arrival_flag(), ticket());
    __syncwarp();
    arrived = true;
  }
  __device__ __forceinline__ const std::int32_t* arrival_flag() const {
    return p.a.arriving.arrived_for + flag_index(p, item);
  }
  __device__ __forceinline__ std::int32_t ticket() const { return p.a.arriving.tickets[item.row]; }

  __device__ __forceinline__ void fetch(int page, int stage) {
    if (page < end) {
      const int at = item.first_page + page;
      if (!waited && page == item.n_pages - 1) {  // holds the newest token, written by the preceding kernel
        grid_dependency_wait();
        waited = true;
      }
      const int entry = p.a.page_ring > 0 ? at % p.a.page_ring : at;
      std::int32_t number = table[entry];
      if constexpr (kArriving) {
        if (number < 0) await_arrival();
        number &= ~kInFlight;
      }
      const std::byte* block = p.tables.base + static_cast<std::int64_t>(number) * Page::kBytes;
      if constexpr (kBulk) {
        if (threadIdx.x % kWarp == 0) Page::fetch_whole(ring + stage * Page::kBytes, block, full + stage * 8);
        return;
      }
      Page::fetch(ring + stage * Page::kBytes, block, item.from - at * kKvPageTokens, item.length - at * kKvPageTokens,
                  mask_of(at));
    }
    copy_async_commit();
  }
  // The page of `stage` has arrived.
  __device__ __forceinline__ void await(int stage) {
    if constexpr (kBulk) {
      barrier_wait(full + stage * 8, parity >> stage & 1);
      parity ^= 1u << stage;
    } else if (p.n_stages == 2) {
      copy_async_wait<1>();
    } else if (p.n_stages == 3) {
      copy_async_wait<2>();
    } else {
      copy_async_wait<3>();
    }
    __syncwarp();
  }

  __device__ __forceinline__ void run(RunningSoftmax<kDim>& rows, int n_warps) {
    const int warp = threadIdx.x / kWarp, stages = p.n_stages;
    rows.clear();
    for (int i = 0; i < stages - 1; ++i) fetch(begin + warp + i * n_warps, i);
    if (!waited) {
      grid_dependency_wait();
      waited = true;
    }
    typename Page::Queries q;
    load_item_queries<Page>(q, p, item);
    int stage = 0, next_stage = stages - 1;
    for (int page = begin + warp; page < end; page += n_warps) {
      const int next = page + (stages - 1) * n_warps;
      bool later = false;  // this page first: the next one has not arrived
      if constexpr (kArriving) later = !is_here(next);
      if (later) {
        copy_async_commit();
      } else {
        fetch(next, next_stage);
      }
      await(stage);
      const std::uint32_t at = ring + stage * Page::kBytes;
      float s[kTokenTiles][4];
      Page::score(s, q, at);
      mask_scores<Page>(s, p, item, page, mask_of(item.first_page + page));
      Page::take(rows, s, at);
      __syncwarp();
      if (later) fetch(next, next_stage);
      next_stage = stage;
      stage = stage + 1 == stages ? 0 : stage + 1;
    }
    copy_async_wait<0>();
    rows.finish();
  }
};

// A warp's mbarriers, which one thread arrives at.
__device__ __forceinline__ void init_barriers(std::uint32_t full, int stages) {
  if (threadIdx.x % kWarp == 0) {
    for (int i = 0; i < stages; ++i) barrier_init(full + i * 8, 1);
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __syncwarp();
}
// Bulk copies that any thread of the block issues from here on find the block's stores to shared memory done.
__device__ __forceinline__ void bulk_copies_after_stores() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  __syncthreads();
}

// Which heads DecodeAttentionCuda::only has. Called by every thread of the block; waits for the preceding kernels.
struct RelistedHeads {
  bool any, all;
};
__device__ __forceinline__ RelistedHeads relisted_heads(const DecodeArgs& p, int n_items) {
  const auto flag_of = [&](int i) {
    DecodeItem item;
    item.row = i / p.tables.n_kv_heads, item.kv_head = i % p.tables.n_kv_heads;
    return p.a.slots[item.row] < 0 ? nullptr : p.a.only + flag_index(p, item);
  };
  const int tid = static_cast<int>(threadIdx.x);
  const std::int32_t* const first = tid < n_items ? flag_of(tid) : nullptr;
  bool any = false, all = true;
  const auto take = [&](const std::int32_t* flag) {
    if (flag == nullptr) return;
    const bool set = __ldcg(flag) != 0;
    any = any || set, all = all && set;
  };
  grid_dependency_wait();
  take(first);
  for (int i = tid + static_cast<int>(blockDim.x); i < n_items; i += static_cast<int>(blockDim.x)) take(flag_of(i));
  const bool some = __syncthreads_or(any) != 0;
  return {some, __syncthreads_and(all) != 0};
}

template <typename Page, TableKind kKind>
__global__ void __launch_bounds__(kWarp* Page::kMaxWarps, 1) decode_kernel(DecodeArgs p) {
  constexpr int kDim = Page::kDim;
  constexpr bool kHoles = kKind == TableKind::kHoles, kArriving = kKind == TableKind::kArriving;
  extern __shared__ __align__(128) std::uint8_t ring[];
  __shared__ int first[kMaxItems / 4 + 1];
  __shared__ float2 ml[kMaxWarps * kRows];
  __shared__ std::uint64_t full[kMaxWarps * kMaxStages];
  launch_dependents();
  const int n_items = p.a.n * p.tables.n_kv_heads, n_warps = blockDim.x / kWarp, warp = threadIdx.x / kWarp;
  const bool waits = p.a.tables_late;
  bool few = false;
  if (p.a.only != nullptr) {
    const RelistedHeads heads = relisted_heads(p, n_items);
    if (!heads.any) return;
    few = !heads.all;
  }
  if (waits && !p.a.lengths_early) grid_dependency_wait();
  const Pages pages = count_pages<kHoles>(p, n_items, first, few);
  if (waits && p.a.lengths_early && !kArriving) grid_dependency_wait();
  bool waited = waits;  // kArriving: waits for an item's list instead
  std::uint32_t parity = 0;
  const std::uint32_t barriers = shared_address(full) + warp * kMaxStages * 8;
  if constexpr (kByBulkCopies<Page, kKind>) init_barriers(barriers, p.n_stages);

  if (static_cast<int>(blockIdx.x) < pages.used) {
    const Split split(static_cast<unsigned>(pages.all), static_cast<unsigned>(pages.used));
    int at = split.begin(blockIdx.x);
    const int stop = split.begin(blockIdx.x + 1);
    for (int i = item_of(first, n_items, at); at < stop; at = first[++i]) {
      const DecodeItem item = item_at<kHoles>(p, i);
      const int begin = at - first[i], end = min(item.n_pages, stop - first[i]);
      if (begin >= end) continue;  // an item without pages, or only padding pages
      const std::int32_t* table = p.tables.blocks + table_at(p.tables, p.layer, p.a.slots[item.row], item.kv_head);
      if constexpr (kArriving) {
        if (threadIdx.x == 0) await_flag(p.a.arriving.listed_for + flag_index(p, item), p.a.arriving.tickets[item.row]);
        __syncthreads();
      }
      RunningSoftmax<kDim> rows;
      KvSplit<Page, kKind>{p,   item,   table, shared_address(ring) + warp * p.n_stages * Page::kBytes, barriers, begin,
                           end, waited, parity}
          .run(rows, n_warps);
      finish_kv_split<Page>(p, item, {i, begin, end, at}, split, rows, reinterpret_cast<float*>(ring), ml);
      if constexpr (kByBulkCopies<Page, kKind>) bulk_copies_after_stores();
    }
  }
  if (kArriving || !waited) grid_dependency_wait();
  if (p.a.only == nullptr) write_empty<kDim, kHoles>(p, n_items);
}

template <typename Page, TableKind kKind>
void run(const DecodeArgs& args, const CudaContext& context) {
  // 27 sequences of 32K tokens in int8 take 19.1 ms a step with 12 warps and 21.7 with 8; 20 sequences of 2,048 selected
  // tokens 11.0 and 10.8, one sequence of 128K 87 and 84 us a layer (H200). The larger last: it sets the kernel's limit.
  static const Shape few = shape_of(decode_kernel<Page, kKind>, Page::kBytes, kFewWarps),
                     many = shape_of(decode_kernel<Page, kKind>, Page::kBytes, Page::kMaxWarps);
  const Shape& shape = !args.a.tables_late && args.a.n * args.tables.n_kv_heads > sm_count() ? many : few;
  DecodeArgs a = args;
  a.n_stages = shape.n_stages;
  launch(context, "attend_decode", decode_kernel<Page, kKind>, dim3(static_cast<unsigned>(sm_count())),
         dim3(static_cast<unsigned>(shape.n_warps * kWarp)), shape.shared_bytes, a);
}

}  // namespace

std::size_t decode_attention_scratch_bytes(std::int32_t n, std::int32_t n_kv_heads, std::int32_t head_dim) {
  const std::size_t parts = std::size_t{kMaxBlocks} * 2 * kRows;
  return parts * (static_cast<std::size_t>(head_dim) * sizeof(float) + sizeof(float2)) +
         static_cast<std::size_t>(n) * static_cast<std::size_t>(n_kv_heads) * sizeof(std::uint32_t);
}

void attend_decode_cuda(const DecodeAttentionCuda& a, const KvTables& tables, std::int32_t layer,
                        const CudaContext& context) {
  if (a.n == 0) return;
  const int group = a.n_heads / tables.n_kv_heads;
  // Items per launch are limited; more rows take several launches.
  const int most_rows = std::max(1, kMaxItems / 4 / tables.n_kv_heads);
  for (int first = 0; first < a.n; first += most_rows) {
    DecodeArgs args{};
    args.a = a;
    args.a.n = std::min(most_rows, a.n - first);
    const std::int64_t heads = static_cast<std::int64_t>(first) * a.n_heads;
    args.a.q = static_cast<const __nv_bfloat16*>(a.q) + heads * tables.head_dim;
    args.a.out = static_cast<__nv_bfloat16*>(a.out) + heads * tables.head_dim;
    args.a.slots += first;
    args.a.lengths += static_cast<std::int64_t>(first) * a.length_stride;
    if (a.arriving.tickets != nullptr) args.a.arriving.tickets += first;
    if (a.begins != nullptr) args.a.begins += first;
    if (a.lse != nullptr) args.a.lse += heads;
    if (a.log_weights != nullptr) args.a.log_weights += first * tables.n_kv_heads * a.log_weight_stride;
    args.tables = tables;
    args.layer = layer;
    args.group = group;
    args.partial_out = reinterpret_cast<float*>(a.scratch);
    const std::int64_t parts = std::int64_t{kMaxBlocks} * 2 * kRows;
    args.partial_ml = reinterpret_cast<float2*>(args.partial_out + parts * tables.head_dim);
    args.arrived = reinterpret_cast<std::uint32_t*>(args.partial_ml + parts) + first * tables.n_kv_heads;
    if (tables.of_tokens) {
      attend_listed(args, context);
      continue;
    }
    with_page(tables, [&]<typename Page>(std::type_identity<Page>) {
      if (tables.masks != nullptr) {
        run<Page, TableKind::kHoles>(args, context);
      } else if (a.arriving.tickets != nullptr) {
        run<Page, TableKind::kArriving>(args, context);
      } else {
        run<Page, TableKind::kWhole>(args, context);
      }
    });
  }
}

}  // namespace mneme
