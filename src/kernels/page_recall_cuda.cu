// Blocks of pages out of host memory into slots, by the device itself. Four to eight blocks of threads fill the link
// (docs/cuda.md); more of them hold up whatever else reads device memory.
//
// Recall runs beside the products of a step, whose blocks leave 10,000 registers and 47 KiB of shared memory of each
// multiprocessor: it takes less than that, or those would wait for it. So one thread moves everything, with bulk copies
// from host memory to shared memory and from there into slots.
#include <algorithm>

#include "src/kernels/kv_slots_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 512, kWarps = kThreads / kWarp;  // of the kernels that run alone
constexpr int kRecallThreads = 128;
constexpr int kStagesBeside = 8, kStagesAlone = 24;  // pieces under way: beside products, and with nothing beside
constexpr int kMostSlots = kMostKvSlots;
constexpr int kPieceLoads = 8;                         // of a lane, under way
constexpr int kPieceBytes = kPieceLoads * kWarp * 16;  // 4 KiB

// One piece: all loads before the first store. Blocks are whole pieces: head_dim is a multiple of 32.
__device__ __forceinline__ void copy_piece(std::byte* to, const std::byte* from) {
  const int lane = threadIdx.x % kWarp;
  uint4 v[kPieceLoads];
#pragma unroll
  for (int i = 0; i < kPieceLoads; ++i) v[i] = load_stream(from + (i * kWarp + lane) * 16);
#pragma unroll
  for (int i = 0; i < kPieceLoads; ++i) reinterpret_cast<uint4*>(to)[i * kWarp + lane] = v[i];
}

#if __CUDA_ARCH__ >= 900
// Pieces on their way: from memory of the host into a ring of shared memory, and on into slots. One thread's.
struct BulkCopies {
  std::uint32_t ring, barriers;  // shared addresses: pieces, barriers of 8 bytes
  int stages;
  std::uint32_t parity = 0;  // bit i: of stage i

  __device__ __forceinline__ void load(int stage, const std::byte* from) const {
    barrier_expect(barriers + stage * 8, kPieceBytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     ring + stage * kPieceBytes),
                 "l"(from), "r"(kPieceBytes), "r"(barriers + stage * 8)
                 : "memory");
  }
  __device__ __forceinline__ void store(int stage, std::byte* to) {
    barrier_wait(barriers + stage * 8, parity >> stage & 1);
    parity ^= 1u << stage;
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(ring + stage * kPieceBytes), "r"(kPieceBytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  // n pieces; from(i) and to(i) say which.
  template <typename From, typename To>
  __device__ __forceinline__ void run(int n, From&& from, To&& to) {
    for (int i = 0; i < min(n, stages); ++i) load(i, from(i));
    int stage = 0, last = 0;
    for (int i = 0; i < n; ++i) {
      store(stage, to(i));
      if (i > 0) {
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");  // the store before this one has left its stage
        if (i - 1 + stages < n) load(last, from(i - 1 + stages));
      }
      last = stage;
      stage = stage + 1 == stages ? 0 : stage + 1;
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
};
#endif

struct RecallArgs {
  KvSlots s;
  KvTables pages;
  SlotRows rows;
  SelectWhen when;
  int layer, slot_layer, stages;
};

struct Missing {
  std::int32_t page, slot;
};

// One (row, KV head): which slots its chosen pages have or get, and the list to attend.
__device__ void resolve(const RecallArgs& p, const RowOfSlots& r, int kv_head, int from, int length,
                        const PageRegion& region, std::int32_t* slot_of_chosen, std::uint8_t* in_use, Missing* missing,
                        int* counters) {
  const int tid = threadIdx.x;
  const std::int64_t index = slot_index(p.s, p.slot_layer, r.place, kv_head);
  const int fixed = region.first + (region.stop - region.window), n_free = p.s.n_slots - fixed;
  const int n = region.n_select == 0 ? 0 : min(region.n_select, p.s.n_chosen[from][index]);
  const std::int32_t* chosen = p.s.chosen[from] + index * p.s.max_listed;
  std::int32_t* slot_of = p.s.slot_of + index * p.s.max_pages;
  std::int32_t* page_of = p.s.page_of + index * p.s.n_slots + fixed;
  std::int32_t* used_at = p.s.used_at + index * p.s.n_slots + fixed;
  int &n_missing = counters[0], &n_replaced = counters[1];

  for (int i = tid; i < n_free; i += kRecallThreads) in_use[i] = 0;
  if (tid == 0) n_missing = n_replaced = 0;
  __syncthreads();
  for (int i = tid; i < n; i += kRecallThreads) {
    const int slot = slot_of[chosen[i]];
    slot_of_chosen[i] = slot;
    if (slot < 0) {
      missing[atomicAdd(&n_missing, 1)] = {i, -1};
      atomicAdd(&n_replaced, 1);
    } else {
      in_use[slot] = 1;
      if (used_at[slot] != length - 1) atomicAdd(&n_replaced, 1);
    }
  }
  __syncthreads();
  // Of the slots that are not in use, those that were not chosen for longest; the first where that is equal.
  const int wanted = n_missing;
  for (int i = tid; i < n_free && wanted > 0; i += kRecallThreads) {
    if (in_use[i]) continue;
    const int age = used_at[i];
    int rank = 0;
    for (int j = 0; j < n_free && rank < wanted; ++j)
      if (!in_use[j] && (used_at[j] < age || (used_at[j] == age && j < i))) ++rank;
    if (rank < wanted) missing[rank].slot = i;
  }
  __syncthreads();
  for (int i = tid; i < wanted; i += kRecallThreads) {
    const Missing m = missing[i];
    const int page = chosen[m.page], before = page_of[m.slot];
    if (before >= 0) slot_of[before] = -1;
    page_of[m.slot] = page;
    slot_of_chosen[m.page] = m.slot;
    missing[i].page = page;
  }
  __syncthreads();
  for (int i = tid; i < wanted; i += kRecallThreads) slot_of[missing[i].page] = missing[i].slot;  // after what left
  for (int i = tid; i < n; i += kRecallThreads) used_at[slot_of_chosen[i]] = length;

  std::int32_t* listed = p.s.listed + index * p.s.max_listed;
  const auto first = static_cast<std::int32_t>(index * p.s.n_slots);
  for (int i = tid; i < region.first; i += kRecallThreads) listed[i] = first + i;
  for (int i = tid; i < n; i += kRecallThreads) listed[region.first + i] = first + fixed + slot_of_chosen[i];
  const int n_window = region.stop - region.window;
  for (int i = tid; i < n_window; i += kRecallThreads)
    listed[region.first + n + i] = first + region.first + (region.window + i) % n_window;
  if (tid == 0) {
    SlotCounts* counts = p.s.counts + static_cast<std::int64_t>(p.slot_layer) * p.s.n_places + r.place;
    const auto add = [](std::uint64_t& to, int v) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&to), static_cast<unsigned long long>(v));
    };
    add(counts->selected, n);
    add(counts->missing, wanted);
    add(counts->replaced, n_replaced);
  }
}

__global__ void __launch_bounds__(kRecallThreads, 8) recall_kernel(RecallArgs p) {
  extern __shared__ __align__(128) std::uint8_t memory[];  // the ring, then lists
  __shared__ std::uint8_t in_use[kMostSlots];
  __shared__ int counters[2];
  auto* slot_of_chosen = reinterpret_cast<std::int32_t*>(memory + p.stages * kPieceBytes);
  auto* missing = reinterpret_cast<Missing*>(slot_of_chosen + p.s.max_listed);
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
    const int length = r.length + (p.when == SelectWhen::kNext ? 1 : 0);
    const PageRegion region = page_region(r.rules, length);
    __syncthreads();
    resolve(p, r, kv_head, from, length, region, slot_of_chosen, in_use, missing, counters);
    __syncthreads();
    const std::int64_t index = slot_index(p.s, p.slot_layer, r.place, kv_head);
    const int fixed = region.first + (region.stop - region.window);
    const int pieces = static_cast<int>(cuda::block_bytes(p.s)) / kPieceBytes, n = counters[0] * pieces;
    const auto source = [&](int i) {
      return block_at(p.pages, p.layer, r.place, kv_head, missing[i / pieces].page) + i % pieces * kPieceBytes;
    };
    const auto target = [&](int i) {
      return p.s.slots + (index * p.s.n_slots + fixed + missing[i / pieces].slot) * cuda::block_bytes(p.s) +
             i % pieces * kPieceBytes;
    };
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) copies.run(n, source, target);
#else
    for (int i = threadIdx.x / kWarp; i < n; i += kRecallThreads / kWarp) copy_piece(target(i), source(i));
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
  const int pieces = block_bytes / kPieceBytes;
  for (int i = blockIdx.x * kWarps + warp; i < p.n * pieces; i += gridDim.x * kWarps) {
    const int page = p.first + i / pieces, offset = i % pieces * kPieceBytes;
    std::byte* to = block_at(p.to, p.to_layer, p.to_slot, kv_head, page);
    copy_piece(to + offset, block_at(p.from, p.from_layer, p.from_slot, kv_head, page) + offset);
  }
}

}  // namespace

void recall_pages_cuda(const SlotRows& rows, SelectWhen when, const KvSlots& s, const KvTables& pages,
                       std::int32_t layer, std::int32_t slot_layer, std::int32_t max_blocks,
                       const CudaContext& context) {
  const int stages = when == SelectWhen::kNow ? kStagesAlone : kStagesBeside;
  const std::size_t shared = static_cast<std::size_t>(stages) * kPieceBytes +
                             static_cast<std::size_t>(s.max_listed + 1) * (sizeof(std::int32_t) + sizeof(Missing));
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
