// Resolves a recall: which selected units hit, which miss and which cache slots they evict; then commits the result to
// the tables.
#pragma once

#include "src/offload/unit_lists.cuh"

namespace mneme::cuda::recall {

// Evicts `wanted` cache slots that are not in use, least recently selected first, lowest index first among equals.
template <typename K>
__device__ void assign_slots(const RecallItem& item, const Lists& lists, int wanted) {
  const int tid = threadIdx.x;
  Lists::Counters& c = *lists.counters;
#pragma unroll 1
  for (int i = tid; i < 256; i += K::kThreads) c.of_age[i] = 0;
  __syncthreads();
#pragma unroll 1
  for (int i = tid; i < item.n_free; i += K::kThreads) atomicAdd(&c.of_age[lists.age[i]], 1);
  __syncthreads();
  if (tid < kWarp) {  // lane i has ages 255 - 8 i and down; slots in use come first and do not count
    int own = 0;
#pragma unroll 1
    for (int j = 0; j < 8; ++j) own += tid == 0 && j == 0 ? 0 : c.of_age[255 - 8 * tid - j];
    int before = warp_inclusive_scan(own) - own;
#pragma unroll 1
    for (int j = tid == 0 ? 1 : 0; j < 8; ++j) {
      const int age = 255 - 8 * tid - j;
      if (before < wanted && before + c.of_age[age] >= wanted) c.oldest = age, c.n_oldest = wanted - before;
      before += c.of_age[age];
    }
  }
  __syncthreads();
  const int oldest = c.oldest, n_oldest = c.n_oldest, each = (item.n_free + K::kThreads - 1) / K::kThreads;
  const int begin = min(item.n_free, tid * each), end = min(item.n_free, begin + each);
  int2 own = {0, 0};
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    const int age = lists.age[i];
    own.x += age > oldest && age != kInUse, own.y += age == oldest;
  }
  int2 before = block_exclusive_scan(own, c.of_warps);
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    const int age = lists.age[i];
    if (age == kInUse || age < oldest) continue;
    const int at = age > oldest ? wanted - 1 - before.x++ : before.y++;
    if (age == oldest && at >= n_oldest) continue;
    lists.missing[at].slot = static_cast<std::uint16_t>(i);
    lists.slot[lists.missing[at].unit_at] = static_cast<std::uint16_t>(i) | kLate;
  }
}

// Finds hits and assigns cache slots to misses. Independent loads are issued first, together: each has a latency of 0.5
// us.
template <typename K>
__device__ void resolve(const RecallArgs& p, const RecallItem& item, const Lists& lists) {
  const int tid = threadIdx.x;
  Lists::Counters& c = *lists.counters;
  const std::int32_t* selected_ids = p.s.selection.ids[item.from] + item.index * p.s.max_listed;
  std::int32_t* slot_of = slots_of_units<K>(p, item);
  const std::int32_t* last_used = p.s.slots.last_used + item.index * p.s.n_slots + item.fixed;
#pragma unroll 4
  for (int i = tid; i < item.n_free; i += K::kThreads)
    lists.age[i] = static_cast<std::uint8_t>(min(item.now - last_used[i], kOldest));
  if (tid == 0) c.n_missing = c.n_replaced = 0;
  __syncthreads();
  constexpr int kAtOnce = K::kPages ? 1 : K::kNow ? 2 : 8;
  for (int first = tid; first < item.n; first += kAtOnce * K::kThreads) {
    std::int32_t unit[kAtOnce], slot[kAtOnce], token[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) unit[k] = selected_ids[min(first + k * K::kThreads, item.n - 1)];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      slot[k] = slot_of[unit[k]];
      token[k] = unit_token(p.pages, K::kUnitTokens, p.layer, item.seq_slot, item.kv_head, unit[k]);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = first + k * K::kThreads;
      if (i >= item.n) continue;
      if (slot[k] >= 0) {
        lists.slot[i] = static_cast<std::uint16_t>(slot[k]);
        if (lists.age[slot[k]] > 1) atomicAdd(&c.n_replaced, 1);
        lists.age[slot[k]] = kInUse;
      } else {
        lists.missing[atomicAdd(&c.n_missing, 1)] = {token[k], static_cast<std::uint16_t>(i), 0};
      }
    }
  }
  __syncthreads();
  if (c.n_missing > 0) assign_slots<K>(item, lists, c.n_missing);
  __syncthreads();
}

// Lists the window's cache slots after the selection. With lists, from the newest token, so that the other entries stay
// in place while the window grows and the selection shrinks.
__device__ inline void list_window(const RecallArgs& p, const RecallItem& item, int lane, int n_lanes) {
  const PageRegion& region = item.region;
  std::int32_t* listed = p.s.slots.listed + item.index * p.s.max_listed + region.first + item.attended;
  const auto first = static_cast<std::int32_t>(item.index * p.s.n_slots) + region.first;
  const int ring = item.fixed - region.first, n = region.stop - region.window;  // at most the ring
  const int step = item.newest_first ? -1 : 1, begin = (item.newest_first ? region.stop - 1 : region.window) % ring;
#pragma unroll 1
  for (int i = lane; i < n; i += n_lanes) {
    const int at = begin + step * i;
    listed[i] = first + (at < 0 ? at + ring : at >= ring ? at - ring : at);
  }
}

// A step that keeps its selection: updates the window, and where it has shrunk, attends more of the selection.
template <typename K>
__device__ void list_again(const RecallArgs& p, const RecallItem& item) {
  const std::int32_t* selected_ids = p.s.selection.ids[0] + item.index * p.s.max_listed;
  const std::int32_t* slot_of = slots_of_units<K>(p, item);
  std::int32_t* listed = p.s.slots.listed + item.index * p.s.max_listed + item.region.first;
  const auto first = static_cast<std::int32_t>(item.index * p.s.n_slots) + item.fixed;
  for (int i = max(0, item.attended - (item.fixed - item.region.first)) + static_cast<int>(threadIdx.x);
       i < item.attended; i += K::kThreads)
    listed[i] = first + slot_of[selected_ids[i]];
  list_window(p, item, static_cast<int>(threadIdx.x), K::kThreads);
}

// One thread: counts what resolve() found.
__device__ inline void count_found(const RecallArgs& p, const RecallItem& item, const Lists::Counters& c) {
  SlotCounts& counts = p.s.counts[kept_index(p.s, p.slot_layer, item.seq_slot)];
  if (!item.again) add_count(counts.selected, item.attended);
  add_count(counts.missing, c.n_missing);
  add_count(counts.replaced, c.n_replaced + c.n_missing);
}

// Commits what resolve() decided to the tables. Called by `lane` of n_lanes threads.
template <typename K>
__device__ void commit_slots(const RecallArgs& p, const RecallItem& item, const Lists& lists, int lane, int n_lanes) {
  const PageRegion& region = item.region;
  const std::int64_t slots = item.index * p.s.n_slots;
  const std::int32_t* selected_ids = p.s.selection.ids[item.from] + item.index * p.s.max_listed;
  std::int32_t* slot_of = slots_of_units<K>(p, item);
  const int missing = lists.counters->n_missing;
#pragma unroll 1
  for (int i = lane; i < missing; i += n_lanes) {
    const Missing m = lists.missing[i];
    const std::int64_t slot = slots + item.fixed + m.slot;
    const int unit = selected_ids[m.unit_at], before = p.s.slots.unit_of[slot];
    if (before >= 0) slot_of[before] = -1;  // no longer cached; it is not in the selection
    slot_of[unit] = m.slot;
    p.s.slots.unit_of[slot] = unit;
  }
  std::int32_t* listed = p.s.slots.listed + item.index * p.s.max_listed;
  const auto first = static_cast<std::int32_t>(slots);
#pragma unroll 1
  for (int i = lane; i < region.first; i += n_lanes) listed[i] = first + i;
  const bool signals = signals_arrivals<K>(p);
#pragma unroll 1
  for (int i = lane; i < item.n; i += n_lanes) {
    const int slot = lists.slot[i] & ~kLate;
    const std::uint32_t late = signals && (lists.slot[i] & kLate) != 0 ? kInFlight : 0;
    p.s.slots.last_used[slots + item.fixed + slot] = item.now;
    if (i < item.attended) listed[region.first + i] = static_cast<std::int32_t>((first + item.fixed + slot) | late);
  }
  if (item.keeps_speculative) {
    std::int32_t* speculative = p.s.selection.ids[1] + item.index * p.s.max_listed;
#pragma unroll 1
    for (int i = lane; i < item.n; i += n_lanes) speculative[i] = selected_ids[i];
    if (lane == 0) p.s.selection.n[1][item.index] = item.n;
  }
  list_window(p, item, lane, n_lanes);
  if (lane == 0) count_found(p, item, *lists.counters);
}

}  // namespace mneme::cuda::recall
