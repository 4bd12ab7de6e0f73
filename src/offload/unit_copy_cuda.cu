// Copies of tokens and pages without selection: cache slots filled when a row starts, a step's tokens written back to
// host memory, positions copied between pages.
#include "src/cuda/bulk_copy.cuh"
#include "src/offload/device_cache_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 512, kWarps = kThreads / kWarp;  // of kernels that run alone
constexpr int kWriteThreads = 128;

struct FillArgs {
  DeviceCache s;
  KvTables pages;
  SelectionPlan plan;
  int seq_slot, length, layer, slot_layer;
};

__global__ void __launch_bounds__(kThreads) fill_kernel(FillArgs p) {
  const int tid = threadIdx.x, kv_head = blockIdx.y, warp = tid / kWarp;
  const std::int64_t index = slot_index(p.s, p.slot_layer, p.seq_slot, kv_head);
  const int bytes = static_cast<int>(p.s.unit_bytes());
  const bool all = p.length <= p.plan.region.budget;
  const PageRegion region = page_region(p.plan, p.length);
  const int ring = window_slots(p.plan);
  if (blockIdx.x == 0) {
    for (int i = tid; i < p.s.max_units(); i += kThreads) p.s.slots.slot_of[index * p.s.max_units() + i] = -1;
    for (int i = tid; i < p.s.n_slots; i += kThreads)
      p.s.slots.unit_of[index * p.s.n_slots + i] = -1, p.s.slots.last_used[index * p.s.n_slots + i] = -2;
    if (all)
      for (int i = tid; i < p.s.max_listed; i += kThreads)
        p.s.slots.listed[index * p.s.max_listed + i] =
            static_cast<std::int32_t>(index * p.s.n_slots) + min(i, p.s.n_slots - 1);
    if (tid == 0) p.s.selection.n[0][index] = p.s.selection.n[1][index] = 0;
  }
  const int n = all ? region.stop : region.first + region.stop - region.window;
  const auto unit_at = [&](int at) { return all || at < region.first ? at : region.window + at - region.first; };
  const auto source = [&](int at) {
    const int unit = unit_at(at);
    return p.pages.base + unit_token(p.pages, p.s.unit_tokens, p.layer, p.seq_slot, kv_head, unit) * p.s.token_bytes();
  };
  const auto target = [&](int at) {
    const int slot = all || at < region.first ? at : region.first + unit_at(at) % ring;
    return p.s.slots.data + (index * p.s.n_slots + slot) * bytes;
  };
  const int own = blockIdx.x * kWarps + warp, n_warps = gridDim.x * kWarps;
  if (p.s.unit_tokens != 1) {
    copy_pages(n, bytes, own, n_warps, source, target);
  } else if (p.s.codes == KvCodes::kNone) {
    copy_half_tokens(n, bytes, own, n_warps, source, target);
  } else {
    copy_code_tokens(n, bytes, own, n_warps, source, target);
  }
}

struct WriteBackArgs {
  DeviceCache s;
  KvTables dense, pages;
  SlotRows rows;
  const std::int32_t* numbers;
  int n_layers;
};

// One warp per (row, layer, KV head): writes the newest token's key and value.
__global__ void __launch_bounds__(kWriteThreads) write_back_kernel(WriteBackArgs p) {
  grid_dependency_wait();
  const int heads = p.pages.n_kv_heads;
  const int item = blockIdx.x * (kWriteThreads / kWarp) + threadIdx.x / kWarp;
  const int row = item / (p.n_layers * heads), layer = item / heads % p.n_layers, kv_head = item % heads;
  if (row >= p.rows.n) return;
  const int seq_slot = p.rows.seq_slots[row];
  if (seq_slot < 0) return;
  const int number = p.numbers[layer], position = p.rows.lengths[row] - 1;
  const std::int64_t offset = position % kKvPageTokens * p.s.token_bytes();
  const std::byte* from =
      number >= 0
          ? resident_token(p.s, p.s.plans[number * p.s.n_seq_slots + seq_slot], number, seq_slot, kv_head * p.s.shared,
                           position, position + 1)
          : block_at(p.dense, (-1 - number) * p.s.n_seq_slots, seq_slot, kv_head, position / kKvPageTokens) + offset;
  std::byte* to = block_at(p.pages, layer, seq_slot, kv_head, position / kKvPageTokens) + offset;
  copy_token(to, from, static_cast<int>(p.s.token_bytes()));
}

struct CopyArgs {
  LayerPages to, from;
  int first, stop;
};

__global__ void __launch_bounds__(kThreads) copy_kernel(CopyArgs p) {
  const int kv_head = blockIdx.y, bytes = static_cast<int>(token_bytes(p.to.tables)) * kKvPageTokens;
  const int shift = p.from.tables.shifts != nullptr ? shift_of(p.from.tables, p.from.layer, p.from.slot, kv_head)
                                                    : shift_of(p.to.tables, p.to.layer, p.to.slot, kv_head);
  const int first = max(0, p.first - shift) / kKvPageTokens,
            n = (p.stop - shift + kKvPageTokens - 1) / kKvPageTokens - first;
  const auto page_of = [&](const LayerPages& of) {
    return [&of, kv_head, first](int i) { return block_at(of.tables, of.layer, of.slot, kv_head, first + i); };
  };
  copy_pages(n, bytes, blockIdx.x * kWarps + threadIdx.x / kWarp, gridDim.x * kWarps, page_of(p.from), page_of(p.to));
}

}  // namespace

void fill_slots_cuda(std::int32_t seq_slot, std::int32_t length, const SelectionPlan& plan, const DeviceCache& s,
                     const KvTables& pages, std::int32_t layer, std::int32_t slot_layer, const CudaContext& context) {
  if (s.n_slots == 0) return;
  launch(context, "fill_slots", fill_kernel, grid_of(4, s.n_kv_heads), kThreads, 0,
         FillArgs{s, pages, plan, seq_slot, length, layer, slot_layer});
}

void write_back_cuda(const SlotRows& rows, const DeviceCache& s, const KvTables& dense, const std::int32_t* numbers,
                     const KvTables& pages, std::int32_t n_layers, const CudaContext& context) {
  const int warps = rows.n * n_layers * pages.n_kv_heads, each = kWriteThreads / kWarp;
  launch(context, "write_back", write_back_kernel, grid_of((warps + each - 1) / each), kWriteThreads, 0,
         WriteBackArgs{s, dense, pages, rows, numbers, n_layers});
}

void copy_pages_cuda(const LayerPages& to, const LayerPages& from, std::int32_t first, std::int32_t stop,
                     std::int32_t blocks_a_head, const CudaContext& context) {
  if (stop <= first) return;
  launch(context, "copy_pages", copy_kernel, grid_of(blocks_a_head, to.tables.n_kv_heads), kThreads, 0,
         CopyArgs{to, from, first, stop});
}

}  // namespace mneme
