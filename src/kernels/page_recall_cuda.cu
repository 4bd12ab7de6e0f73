// Blocks of pages out of host memory into slots, by the device itself. Four to eight blocks of threads fill the link
// (docs/cuda.md); more of them hold up whatever else reads device memory.
//
// Recall runs beside the products of a step, whose blocks leave 10,000 registers and 47 KiB of shared memory of each
// multiprocessor: it takes less than that, or those would wait for it. So one thread moves everything, with bulk copies
// from host memory to shared memory and from there into slots.
#include <algorithm>

#include "src/kernels/bulk_copies.cuh"
#include "src/kernels/kv_slots_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 512, kWarps = kThreads / kWarp;  // of the kernels that run alone
constexpr int kRecallThreads = 128;
#if __CUDA_ARCH__ >= 900
constexpr int kRecallPiece = kBulkBytes;
#else
constexpr int kRecallPiece = kPieceBytes;
#endif
constexpr int kStagesBeside = 4, kStagesAlone = 12;  // pieces under way: beside products, and with nothing beside
struct RecallArgs {
  KvSlots s;
  KvTables pages;
  SlotRows rows;
  SelectWhen when;
  int layer, slot_layer, stages;
};

struct Missing {
  std::int32_t chosen, slot;  // which of the chosen pages, where it goes
  const std::byte* from;
};

// Of one (row, KV head), in shared memory: n_free slots of the third kind, max_listed chosen pages.
struct Lists {
  std::int32_t *age, *page_in;  // [n_free]: used_at, kInUse for those that hold a chosen page; page_of
  std::int32_t *page, *slot;    // [max_listed]: chosen pages and their slots
  Missing* missing;             // [max_listed]
  int *n_missing, *n_replaced;
  static __host__ __device__ std::size_t bytes(int n_slots, int max_listed) {
    return static_cast<std::size_t>(n_slots) * 8 + static_cast<std::size_t>(max_listed + 1) * (8 + sizeof(Missing));
  }
  __device__ Lists(std::uint8_t* memory, int n_slots, int max_listed, int* counters)
      : missing(reinterpret_cast<Missing*>(memory)), n_missing(counters), n_replaced(counters + 1) {
    page = reinterpret_cast<std::int32_t*>(missing + max_listed + 1);
    slot = page + max_listed + 1;
    age = slot + max_listed + 1;
    page_in = age + n_slots;
  }
};
constexpr int kInUse = 0x7fffffff;

// What a (row, KV head) is to attend.
struct Item {
  std::int64_t index;  // slot_index
  int place, kv_head, length, from;
  PageRegion region;
  int n;              // chosen pages
  int fixed, n_free;  // slots
};

// Which of the chosen pages are there, and what the others take the place of. Loads that do not depend on one another
// come first, all at once: each is a wait of half a microsecond.
__device__ void resolve(const RecallArgs& p, const Item& item, const Lists& lists) {
  const int tid = threadIdx.x;
  const std::int32_t* chosen = p.s.chosen[item.from] + item.index * p.s.max_listed;
  const std::int32_t* slot_of = p.s.slot_of + item.index * p.s.max_pages;
  const std::int64_t slots = item.index * p.s.n_slots + item.fixed;
  for (int i = tid; i < item.n_free; i += kRecallThreads)
    lists.age[i] = p.s.used_at[slots + i], lists.page_in[i] = p.s.page_of[slots + i];
  for (int i = tid; i < item.n; i += kRecallThreads) {
    const int page = chosen[i];
    lists.page[i] = page;
    lists.slot[i] = slot_of[page];
  }
  if (tid == 0) *lists.n_missing = *lists.n_replaced = 0;
  __syncthreads();
  for (int i = tid; i < item.n; i += kRecallThreads) {
    const int slot = lists.slot[i];
    if (slot >= 0) {
      if (lists.age[slot] < item.length - 1) atomicAdd(lists.n_replaced, 1);
      lists.age[slot] = kInUse;
    } else {
      const int at = atomicAdd(lists.n_missing, 1);
      lists.missing[at].chosen = i;
      lists.missing[at].from = block_at(p.pages, p.layer, item.place, item.kv_head, lists.page[i]);
    }
  }
  __syncthreads();
  // Of the slots that are not in use, those that were not chosen for longest; the first where that is equal.
  const int wanted = *lists.n_missing;
  for (int i = tid; i < item.n_free && wanted > 0; i += kRecallThreads) {
    const int age = lists.age[i];
    if (age == kInUse) continue;
    int rank = 0;
    for (int j = 0; j < item.n_free && rank < wanted; ++j) {
      const int other = lists.age[j];
      rank += other < age || (other == age && j < i);
    }
    if (rank < wanted) {
      lists.missing[rank].slot = i;
      lists.slot[lists.missing[rank].chosen] = i;
    }
  }
  __syncthreads();
}

// What resolve() decided, to the tables. `lane` of n_lanes threads.
__device__ void write_down(const RecallArgs& p, const Item& item, const Lists& lists, int lane, int n_lanes) {
  const PageRegion& region = item.region;
  const std::int64_t slots = item.index * p.s.n_slots;
  std::int32_t* slot_of = p.s.slot_of + item.index * p.s.max_pages;
  const int wanted = *lists.n_missing;
  for (int i = lane; i < wanted; i += n_lanes) {
    const Missing m = lists.missing[i];
    const int page = lists.page[m.chosen], before = lists.page_in[m.slot];
    if (before >= 0) slot_of[before] = -1;  // none of those that were chosen
    slot_of[page] = m.slot;
    p.s.page_of[slots + item.fixed + m.slot] = page;
  }
  std::int32_t* listed = p.s.listed + item.index * p.s.max_listed;
  const auto first = static_cast<std::int32_t>(slots);
  for (int i = lane; i < region.first; i += n_lanes) listed[i] = first + i;
  for (int i = lane; i < item.n; i += n_lanes) {
    p.s.used_at[slots + item.fixed + lists.slot[i]] = item.length;
    listed[region.first + i] = first + item.fixed + lists.slot[i];
  }
  const int n_window = region.stop - region.window;
  for (int i = lane; i < n_window; i += n_lanes)
    listed[region.first + item.n + i] = first + region.first + (region.window + i) % n_window;
  if (lane == 0) {
    SlotCounts* counts = p.s.counts + static_cast<std::int64_t>(p.slot_layer) * p.s.n_places + item.place;
    const auto add = [](std::uint64_t& to, int v) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&to), static_cast<unsigned long long>(v));
    };
    add(counts->selected, item.n);
    add(counts->missing, wanted);
    add(counts->replaced, *lists.n_replaced + wanted);
  }
}

__global__ void __launch_bounds__(kRecallThreads, 8) recall_kernel(RecallArgs p) {
  extern __shared__ __align__(128) std::uint8_t memory[];  // the ring, then lists
  __shared__ int counters[2];
  const Lists lists(memory + p.stages * kBulkBytes, p.s.n_slots, p.s.max_listed, counters);
#if __CUDA_ARCH__ >= 900
  __shared__ std::uint64_t barriers[kStagesAlone];
  BulkCopies copies{shared_address(memory), shared_address(barriers), p.stages};
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) barrier_init(copies.barriers + i * 8, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
#endif
  let_next_start();
  wait_for_previous();
  const int items = p.rows.n * p.s.n_kv_heads;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const int row = item / p.s.n_kv_heads, kv_head = item % p.s.n_kv_heads;
    const RowOfSlots r = row_at(p.s, p.rows, row);
    if (!r.sparse) continue;
    const bool now = needs_now(p.s, r, p.slot_layer, kv_head), plain = r.rules.schedule == SlotSchedule::kNone;
    int from = 0;
    if (p.when == SelectWhen::kNow) {
      if (threadIdx.x == 0 && r.rules.schedule == SlotSchedule::kAhead && !r.anew) {
        SlotCounts* counts = p.s.counts + static_cast<std::int64_t>(p.slot_layer) * p.s.n_places + r.place;
        atomicAdd(reinterpret_cast<unsigned long long*>(&counts->checks), 1ull);
        if (now) atomicAdd(reinterpret_cast<unsigned long long*>(&counts->corrections), 1ull);
      }
      if (!now && !plain) continue;
    } else {
      if (r.rules.schedule != SlotSchedule::kAhead) continue;
      from = chooses(r, p.when, any_needs_now(p.s, r, p.slot_layer)) ? 1 : 0;
      if (from == 0 && now) continue;  // it has what the next step attends
    }
    Item it;
    it.index = slot_index(p.s, p.slot_layer, r.place, kv_head);
    it.place = r.place, it.kv_head = kv_head, it.from = from;
    it.length = r.length + (p.when == SelectWhen::kNext ? 1 : 0);
    it.region = page_region(r.rules, it.length);
    it.fixed = it.region.first + (it.region.stop - it.region.window);
    it.n_free = p.s.n_slots - it.fixed;
    it.n = it.region.n_select == 0 ? 0 : min(it.region.n_select, p.s.n_chosen[from][it.index]);
    __syncthreads();
    resolve(p, it, lists);
    // Blocks are powers of two: head_dim is 64 or 128.
    const int bytes = kRecallPiece, shift = __ffs(static_cast<int>(cuda::block_bytes(p.s)) / bytes) - 1;
    const int n = *lists.n_missing << shift, mask = (1 << shift) - 1;
    std::byte* const base = p.s.slots + (it.index * p.s.n_slots + it.fixed) * cuda::block_bytes(p.s);
    const auto source = [&](int i) { return lists.missing[i >> shift].from + (i & mask) * bytes; };
    const auto target = [&](int i) {
      return base + lists.missing[i >> shift].slot * cuda::block_bytes(p.s) + (i & mask) * bytes;
    };
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      copies.run(n, source, target);
    } else if (threadIdx.x >= kWarp) {
      write_down(p, it, lists, static_cast<int>(threadIdx.x) - kWarp, kRecallThreads - kWarp);
    }
#else
    for (int i = threadIdx.x / kWarp; i < n; i += kRecallThreads / kWarp) copy_piece(target(i), source(i));
    write_down(p, it, lists, static_cast<int>(threadIdx.x), kRecallThreads);
#endif
    __syncthreads();
  }
}

struct FillArgs {
  KvSlots s;
  KvTables pages;
  SlotRules rules;
  int place, length, layer, slot_layer;
};

__global__ void __launch_bounds__(kThreads) fill_kernel(FillArgs p) {
  const int tid = threadIdx.x, kv_head = blockIdx.y, warp = tid / kWarp;
  const std::int64_t index = slot_index(p.s, p.slot_layer, p.place, kv_head);
  const int block_bytes = static_cast<int>(cuda::block_bytes(p.s));
  const bool all = p.length <= p.rules.budget;
  const PageRegion region = page_region(p.rules, p.length);
  const int n_window = region.stop - region.window;
  if (blockIdx.x == 0) {
    for (int i = tid; i < p.s.max_pages; i += kThreads) p.s.slot_of[index * p.s.max_pages + i] = -1;
    for (int i = tid; i < p.s.n_slots; i += kThreads)
      p.s.page_of[index * p.s.n_slots + i] = -1, p.s.used_at[index * p.s.n_slots + i] = -2;
    if (all)
      for (int i = tid; i < p.s.max_listed; i += kThreads)
        p.s.listed[index * p.s.max_listed + i] =
            static_cast<std::int32_t>(index * p.s.n_slots) + min(i, p.s.n_slots - 1);
    if (tid == 0) p.s.n_chosen[0][index] = p.s.n_chosen[1][index] = 0;
  }
  const int n_pages = all ? region.stop : region.first + n_window;
  const int pieces = block_bytes / kPieceBytes;
  for (int i = blockIdx.x * kWarps + warp; i < n_pages * pieces; i += gridDim.x * kWarps) {
    const int at = i / pieces, offset = i % pieces * kPieceBytes;
    const bool sink = all || at < region.first;
    const int page = sink ? at : region.window + at - region.first;
    const int slot = sink ? at : region.first + page % n_window;
    copy_piece(p.s.slots + (index * p.s.n_slots + slot) * block_bytes + offset,
               block_at(p.pages, p.layer, p.place, kv_head, page) + offset);
  }
}

struct WriteBackArgs {
  KvSlots s;
  KvTables dense, pages;
  SlotRows rows;
  const std::int32_t* numbers;
  int n_layers;
};

// A warp a (row, layer, KV head): the newest token's key and value.
__global__ void __launch_bounds__(kRecallThreads) write_back_kernel(WriteBackArgs p) {
  wait_for_previous();
  const int lane = threadIdx.x % kWarp, heads = p.s.n_kv_heads;
  const int item = blockIdx.x * (kRecallThreads / kWarp) + threadIdx.x / kWarp;
  const int row = item / (p.n_layers * heads), layer = item / heads % p.n_layers, kv_head = item % heads;
  if (row >= p.rows.n) return;
  const int place = p.rows.places[row];
  if (place < 0) return;
  const int number = p.numbers[layer], position = p.rows.lengths[row] - 1;
  const std::byte* from =
      number >= 0 ? resident_slot(p.s, number, place, kv_head, position)
                  : block_at(p.dense, (-1 - number) * p.s.n_places, place, kv_head, position / kKvPageTokens);
  const std::int64_t offset = position % kKvPageTokens * token_bytes(p.s);
  std::byte* to = block_at(p.pages, layer, place, kv_head, position / kKvPageTokens) + offset;
  for (int i = lane; i < token_bytes(p.s) / 16; i += kWarp)
    reinterpret_cast<uint4*>(to)[i] = __ldcg(reinterpret_cast<const uint4*>(from + offset) + i);
}

struct CopyArgs {
  KvTables to, from;
  int to_layer, from_layer, to_slot, from_slot, first, n;
};

__global__ void __launch_bounds__(kThreads) copy_kernel(CopyArgs p) {
  const int kv_head = blockIdx.y, warp = threadIdx.x / kWarp;
  const int block_bytes = 4 * p.to.head_dim * kKvPageTokens;
  const int pieces = (block_bytes + kPieceBytes - 1) / kPieceBytes;
  for (int i = blockIdx.x * kWarps + warp; i < p.n * pieces; i += gridDim.x * kWarps) {
    // Of head_dim 80 the last piece has half of the one before it.
    const int page = p.first + i / pieces, offset = min(i % pieces * kPieceBytes, block_bytes - kPieceBytes);
    std::byte* to = block_at(p.to, p.to_layer, p.to_slot, kv_head, page);
    copy_piece(to + offset, block_at(p.from, p.from_layer, p.from_slot, kv_head, page) + offset);
  }
}

}  // namespace

void recall_pages_cuda(const SlotRows& rows, SelectWhen when, const KvSlots& s, const KvTables& pages,
                       std::int32_t layer, std::int32_t slot_layer, std::int32_t max_blocks,
                       const CudaContext& context) {
  const int stages = when == SelectWhen::kNow ? kStagesAlone : kStagesBeside;
  const std::size_t shared = static_cast<std::size_t>(stages) * kBulkBytes + Lists::bytes(s.n_slots, s.max_listed);
  static std::size_t allowed = 48 << 10;
  if (shared > allowed) {
    cuda_check(
        cudaFuncSetAttribute(recall_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "recall's shared memory");
    allowed = shared;
  }
  const int blocks = std::min(max_blocks, rows.n * s.n_kv_heads);
  launch(context, "recall_pages", recall_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kRecallThreads), shared,
         RecallArgs{s, pages, rows, when, layer, slot_layer, stages});
}

void fill_slots_cuda(std::int32_t place, std::int32_t length, const SlotRules& rules, const KvSlots& s,
                     const KvTables& pages, std::int32_t layer, std::int32_t slot_layer, const CudaContext& context) {
  launch(context, "fill_slots", fill_kernel, dim3(4, static_cast<unsigned>(s.n_kv_heads)), dim3(kThreads), 0,
         FillArgs{s, pages, rules, place, length, layer, slot_layer});
}

void write_back_cuda(const SlotRows& rows, const KvSlots& s, const KvTables& dense, const std::int32_t* numbers,
                     const KvTables& pages, std::int32_t n_layers, const CudaContext& context) {
  const int warps = rows.n * n_layers * s.n_kv_heads, each = kRecallThreads / kWarp;
  launch(context, "write_back", write_back_kernel, dim3(static_cast<unsigned>((warps + each - 1) / each)),
         dim3(kRecallThreads), 0, WriteBackArgs{s, dense, pages, rows, numbers, n_layers});
}

void copy_pages_cuda(const KvTables& to, std::int32_t to_layer, const KvTables& from, std::int32_t from_layer,
                     std::int32_t to_slot, std::int32_t from_slot, std::int32_t first, std::int32_t stop,
                     std::int32_t blocks_a_head, const CudaContext& context) {
  if (stop <= first) return;
  launch(context, "copy_pages", copy_kernel,
         dim3(static_cast<unsigned>(blocks_a_head), static_cast<unsigned>(to.n_kv_heads)), dim3(kThreads), 0,
         CopyArgs{to, from, to_layer, from_layer, to_slot, from_slot, first, stop - first});
}

}  // namespace mneme
