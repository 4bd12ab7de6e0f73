// Device functions shared by the kernels over cache slots: addresses, regions in units, flags of gates.
#pragma once

#include "src/cuda/common.cuh"
#include "src/kv/kv_tables_cuda.cuh"
#include "src/offload/device_cache_cuda.h"
#include "src/offload/slot_region.h"

namespace mneme::cuda {

// DeviceCache for a kernel of one layer; `plans` is then [seq slots]. Indexing by layer on the device cost the recall of
// pages, which has no register to spare, 16 bytes of stack.
inline DeviceCache of_layer(DeviceCache s, int layer) {
  s.plans += static_cast<std::ptrdiff_t>(layer) * s.n_seq_slots;
  return s;
}

__device__ __forceinline__ std::int64_t kept_index(const DeviceCache& s, int layer, int seq_slot) {
  return static_cast<std::int64_t>(layer) * s.n_seq_slots + seq_slot;
}
// The same for units that are lists: tokens in no list are in the window, and n_select counts tokens.
__device__ __forceinline__ PageRegion region_of(const DeviceCache& s, const SelectionPlan& r, int layer, int seq_slot,
                                                int length) {
  if (s.index.lists.max_units == 0 || r.schedule == ScheduleKind::kNone) return page_region(r, length);
  PageRegion p;
  p.first = r.region.sink;
  p.window = p.last = max(r.region.sink, __ldcg(s.index.lists.grouped + kept_index(s, layer, seq_slot)));
  p.stop = length;
  p.n_select = max(0, r.region.budget - r.region.sink - (length - p.window));
  return p;
}

// KV head of the model whose keys and values a head of the cache slots has.
__device__ __forceinline__ int model_head(const KvTables& t, int kv_head) {
  return t.shared_by == 1 ? kv_head : kv_head / t.shared_by;
}
// Block of a page.
__device__ __forceinline__ std::int32_t block_number(const KvTables& t, int layer, int seq_slot, int kv_head,
                                                     int page) {
  return t.blocks[table_at(t, layer, seq_slot, model_head(t, kv_head)) + page];
}
__device__ __forceinline__ std::byte* block_at(const KvTables& t, int layer, int seq_slot, int kv_head, int page) {
  return t.base + block_number(t, layer, seq_slot, kv_head, page) * (token_bytes(t) * kKvPageTokens);
}
// A unit's first token, as an index into the pool.
__device__ __forceinline__ std::int32_t unit_token(const KvTables& t, int unit_tokens, int layer, int seq_slot,
                                                   int kv_head, int unit) {
  if (unit_tokens != 1) return block_number(t, layer, seq_slot, kv_head, unit) * kKvPageTokens;
  return block_number(t, layer, seq_slot, kv_head, unit / kKvPageTokens) * kKvPageTokens + unit % kKvPageTokens;
}

// A stored token's keys and values.
__device__ __forceinline__ std::byte* token_at(const KvTables& t, int layer, int seq_slot, int kv_head, int position) {
  return block_at(t, layer, seq_slot, kv_head, position / kKvPageTokens) + position % kKvPageTokens * token_bytes(t);
}

__device__ __forceinline__ std::int64_t slot_index(const DeviceCache& s, int layer, int seq_slot, int kv_head) {
  return kept_index(s, layer, seq_slot) * s.n_kv_heads + kv_head;
}

// Address, in its cache slot, of a window token (or of any token while all are attended) of a sequence of `length`
// tokens.
__device__ __forceinline__ std::byte* resident_token(const DeviceCache& s, const SelectionPlan& plan, int layer,
                                                     int seq_slot, int kv_head, int position, int length) {
  int slot = position / s.unit_tokens;
  if (length > plan.region.budget) slot = plan.region.sink / s.unit_tokens + slot % window_slots(plan);
  return s.slots.data + (slot_index(s, layer, seq_slot, kv_head) * s.n_slots + slot) * s.unit_bytes() +
         position % s.unit_tokens * s.token_bytes();
}

constexpr int kMaxSlotGroup = 16;  // query heads of a KV head

// A row of slots returned by of_layer().
struct SlotRow {
  SelectionPlan plan;
  int seq_slot, length, reset_bits;
  bool reset;
  bool sparse;  // the row selects, or attends a window only
};
__device__ __forceinline__ SlotRow row_at(const DeviceCache& s, const SlotRows& rows, int row) {
  SlotRow r;
  r.seq_slot = rows.seq_slots[row], r.length = rows.lengths[row];
  r.sparse = false;
  if (r.seq_slot < 0) return r;
  r.plan = s.plans[r.seq_slot];
  r.reset_bits = rows.reset[row];
  r.reset = r.reset_bits != 0;
  r.sparse = r.length > r.plan.region.budget;
  return r;
}

// One thread. Where tokens have no cache slots and the step attends a speculative selection: lists the step's own token
// last.
__device__ __forceinline__ void list_newest(const DeviceCache& s, const KvTables& pages, int layer, int slot_layer,
                                            const SlotRow& r, int kv_head) {
  const PageRegion region = page_region(r.plan, r.length);
  const int last = region.first + region.n_select + region.stop - region.window - 1;
  s.slots.listed[slot_index(s, slot_layer, r.seq_slot, kv_head) * s.max_listed + last] =
      unit_token(pages, 1, layer, r.seq_slot, kv_head, r.length - 1);
}

__device__ __forceinline__ void add_count(std::uint64_t& to, int n) {
  atomicAdd(reinterpret_cast<unsigned long long*>(&to), static_cast<unsigned long long>(n));
}
// Whether the gate compares the missing mass of this step's selection.
__device__ __forceinline__ bool by_mass(const SelectionPlan& r) {
  return r.schedule == ScheduleKind::kSpeculative && r.gate.kind == GateKind::kMass;
}
__device__ __forceinline__ bool by_mass(const SlotRow& r) {
  return by_mass(r.plan);
}

// Whether a KV head attends a selection made with this step's query. Where a gate decides, it reads the flag that the
// gate has published (src/selection/gate/gate_cuda.cuh says when).
__device__ __forceinline__ bool needs_now(const DeviceCache& s, const SlotRow& r, int layer, int kv_head) {
  if (!r.sparse || r.plan.schedule == ScheduleKind::kNone) return false;
  if (r.plan.schedule == ScheduleKind::kEveryStep || r.reset) return true;
  return __ldcg(s.selection.flags + slot_index(s, layer, r.seq_slot, kv_head)) != 0;
}
// Whether this step's query is scored: some KV head needs it, or the gate will weigh what it selects. Called by a whole
// warp, one lane per head, so that the loads overlap.
__device__ __forceinline__ bool any_needs_now(const DeviceCache& s, const SlotRow& r, int layer) {
  if (by_mass(r)) return r.sparse;
  bool any = false;
  for (int first = 0; first < s.n_kv_heads; first += kWarp) {
    const int h = first + static_cast<int>(threadIdx.x) % kWarp;
    any = __any_sync(~0u, any || (h < s.n_kv_heads && needs_now(s, r, layer, h)));
  }
  return any;
}

// Whether select_pages_cuda ranks a row, given whether some KV head needs a selection now.
__device__ __forceinline__ bool selects(const SlotRow& r, SelectWhen when, bool any_now) {
  if (!r.sparse) return false;
  if (when == SelectWhen::kNow) return any_now;
  return r.plan.schedule == ScheduleKind::kSpeculative && !(any_now && same_region(r.plan, r.length, r.length + 1));
}

}  // namespace mneme::cuda
