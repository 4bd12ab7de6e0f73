// Copies of tokens and pages without selection: cache slots filled when a row starts, a step's tokens written back to
// host memory, positions copied between pages.
#include "src/cuda/bulk_copy.cuh"
#include "src/offload/device_cache_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 512, kWarps = kThreads / kWarp;  // of kernels that run alone
constexpr int kWriteThreads = 128;

__global__ void __launch_bounds__(kThreads)
    fill_kernel(DeviceCache s, KvTables pages, SelectionPlan plan, IndexedLayer of, int length) {
  const int tid = threadIdx.x, kv_head = blockIdx.y, warp = tid / kWarp;
  const std::int64_t index = slot_index(s, of.slot_layer, of.seq_slot, kv_head);
  const int bytes = static_cast<int>(s.unit_bytes());
  const bool all = length <= plan.region.budget;
  const PageRegion region = page_region(plan, length);
  const int ring = window_slots(plan);
  if (blockIdx.x == 0) {
    for (int i = tid; i < s.max_units(); i += kThreads) s.slots.slot_of[index * s.max_units() + i] = -1;
    for (int i = tid; i < s.n_slots; i += kThreads)
      s.slots.unit_of[index * s.n_slots + i] = -1, s.slots.last_used[index * s.n_slots + i] = -2;
    if (all)
      for (int i = tid; i < s.max_listed; i += kThreads)
        s.slots.listed[index * s.max_listed + i] = static_cast<std::int32_t>(index * s.n_slots) + min(i, s.n_slots - 1);
    if (tid == 0) s.selection.n[0][index] = s.selection.n[1][index] = 0;
  }
  const int n = all ? region.stop : region.first + region.stop - region.window;
  const auto unit_at = [&](int at) { return all || at < region.first ? at : region.window + at - region.first; };
  const auto source = [&](int at) {
    const int unit = unit_at(at);
    return pages.base + unit_token(pages, s.unit_tokens, of.key_layer, of.key_slot, kv_head, unit) * s.token_bytes();
  };
  const auto target = [&](int at) {
    const int slot = all || at < region.first ? at : region.first + unit_at(at) % ring;
    return s.slots.data + (index * s.n_slots + slot) * bytes;
  };
  const int own = blockIdx.x * kWarps + warp, n_warps = gridDim.x * kWarps;
  if (s.unit_tokens != 1) {
    copy_pages(n, bytes, own, n_warps, source, target);
  } else if (s.codes == KvCodes::kNone) {
    copy_half_tokens(n, bytes, own, n_warps, source, target);
  } else {
    copy_code_tokens(n, bytes, own, n_warps, source, target);
  }
}

// One warp per (row, layer, KV head): writes the newest token's key and value.
__global__ void __launch_bounds__(kWriteThreads)
    write_back_kernel(DeviceCache s, KvTables dense, KvTables pages, SlotRows rows, const std::int32_t* numbers,
                      int n_layers) {
  grid_dependency_wait();
  const int heads = pages.n_kv_heads;
  const int item = blockIdx.x * (kWriteThreads / kWarp) + threadIdx.x / kWarp;
  const int row = item / (n_layers * heads), layer = item / heads % n_layers, kv_head = item % heads;
  if (row >= rows.n) return;
  const int seq_slot = rows.seq_slots[row];
  if (seq_slot < 0) return;
  const int number = numbers[layer], position = rows.lengths[row] - 1;
  const std::byte* from = number >= 0 ? resident_token(s, s.plans[number * s.n_seq_slots + seq_slot], number, seq_slot,
                                                       kv_head * s.shared, position, position + 1)
                                      : token_at(dense, (-1 - number) * s.n_seq_slots, seq_slot, kv_head, position);
  copy_token(token_at(pages, layer, seq_slot, kv_head, position), from, static_cast<int>(s.token_bytes()));
}

__global__ void __launch_bounds__(kThreads) copy_kernel(LayerPages to, LayerPages from, int first, int stop) {
  const int kv_head = blockIdx.y, bytes = static_cast<int>(token_bytes(to.tables)) * kKvPageTokens;
  const int shift = from.tables.shifts != nullptr ? shift_of(from.tables, from.layer, from.slot, kv_head)
                                                  : shift_of(to.tables, to.layer, to.slot, kv_head);
  const int begin = max(0, first - shift) / kKvPageTokens,
            n = (stop - shift + kKvPageTokens - 1) / kKvPageTokens - begin;
  const auto page_of = [&](const LayerPages& of) {
    return [&of, kv_head, begin](int i) { return block_at(of.tables, of.layer, of.slot, kv_head, begin + i); };
  };
  copy_pages(n, bytes, blockIdx.x * kWarps + threadIdx.x / kWarp, gridDim.x * kWarps, page_of(from), page_of(to));
}

}  // namespace

void fill_slots_cuda(std::int32_t seq_slot, std::int32_t length, const SelectionPlan& plan, const DeviceCache& s,
                     const KvTables& pages, std::int32_t layer, std::int32_t slot_layer, const CudaContext& context) {
  if (s.n_slots == 0) return;
  launch(context, "fill_slots", fill_kernel, grid_of(4, s.n_kv_heads), kThreads, 0, s, pages, plan,
         IndexedLayer{seq_slot, slot_layer, seq_slot, layer}, length);
}

void write_back_cuda(const SlotRows& rows, const DeviceCache& s, const KvTables& dense, const std::int32_t* numbers,
                     const KvTables& pages, std::int32_t n_layers, const CudaContext& context) {
  const int warps = rows.n * n_layers * pages.n_kv_heads, each = kWriteThreads / kWarp;
  launch(context, "write_back", write_back_kernel, grid_of((warps + each - 1) / each), kWriteThreads, 0, s, dense,
         pages, rows, numbers, n_layers);
}

void copy_pages_cuda(const LayerPages& to, const LayerPages& from, std::int32_t first, std::int32_t stop,
                     std::int32_t blocks_a_head, const CudaContext& context) {
  if (stop <= first) return;
  launch(context, "copy_pages", copy_kernel, grid_of(blocks_a_head, to.tables.n_kv_heads), kThreads, 0, to, from, first,
         stop);
}

}  // namespace mneme
