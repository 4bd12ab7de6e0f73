// Resolves a recall: which selected units hit, which miss and which cache slots they evict; then commits the result to
// the tables.
#pragma once

#include "src/offload/unit_lists.cuh"

namespace mneme::cuda::recall {

// Evicts `wanted` cache slots that are not in use, least recently selected first, lowest index first among equals.
template <typename K>
__device__ void assign_slots(const Item& item, const Lists& lists, int wanted) {
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
    const int unit_at = lists.missing[at].unit_at;
    if (!K::kFetchesFour || (unit_at & kNeighbour) == 0) lists.slot[unit_at] = static_cast<std::uint16_t>(i) | kLate;
  }
}

// Adds neighbours to the missing tokens (Lists::found; slot_of of each is -2 - its index in the selection): candidates
// in the same aligned group of four that are in no cache slot, as long as there are cache slots whose unit was never
// selected. Units that were selected once are likelier to be selected again, so they are not evicted for neighbours.
// The thread with the first miss of a group writes all of them, adjacent, so that one warp loads them.
template <typename K>
__device__ void find_fetch_group(const RecallArgs& p, const Item& item, const Lists& lists) {
  Lists::Counters& c = *lists.counters;
  const std::int32_t* selected_ids = p.s.selection.ids[item.from] + item.index * p.s.max_listed;
  const std::int32_t* slot_of = slots_of_units<K>(p, item);
  const int room = max(0, min(c.n_never - c.n_missing, item.n_free - item.n));
  for (int k = threadIdx.x; k < c.n_missing; k += K::kThreads) {
    const int unit = selected_ids[lists.found[k]], first = unit / kFetchGranularity * kFetchGranularity;
    const int4 four = *reinterpret_cast<const int4*>(slot_of + first);  // rows are aligned to a page
    const int slot[kFetchGranularity] = {four.x, four.y, four.z, four.w};
    int n_selected = 0, n_others = 0;
    bool leads = true;
#pragma unroll
    for (int i = 0; i < kFetchGranularity; ++i) {
      leads = leads && (first + i >= unit || slot[i] >= -1);
      n_selected += slot[i] < -1;
      n_others += slot[i] == -1 && first + i >= item.region.first && first + i < item.region.last;
    }
    if (!leads) continue;
    n_others = max(0, min(n_others, room - atomicAdd(&c.n_neighbours, n_others)));
    int at = atomicAdd(&c.n_fetched, n_selected + n_others);
    const std::int32_t token = unit_token(p.pages, 1, p.layer, item.seq_slot, item.kv_head, first);
#pragma unroll
    for (int i = 0; i < kFetchGranularity; ++i) {
      if (slot[i] < -1) {
        lists.missing[at++] = {token + i, static_cast<std::uint16_t>(-2 - slot[i]), 0};
      } else if (n_others > 0 && slot[i] == -1 && first + i >= item.region.first && first + i < item.region.last) {
        lists.missing[at++] = {token + i, static_cast<std::uint16_t>(lists.found[k] | kNeighbour), 0};
        --n_others;
      }
    }
  }
  __syncthreads();
}

// Ages with neighbours: units that were never selected are the oldest.
__device__ __forceinline__ void update_last_used(const Item& item, const Lists& lists, const std::int32_t* last_used,
                                                 int n_threads) {
  Lists::Counters& c = *lists.counters;
  if (threadIdx.x == 0) c.n_fetched = c.n_neighbours = c.n_never = 0;
  __syncthreads();
  int n_never = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < item.n_free; i += n_threads) {
    const std::int32_t at = last_used[i];
    n_never += at < 0;
    lists.age[i] = static_cast<std::uint8_t>(at < 0 ? kOldest : min(item.now - at, kOldest - 1));
  }
  n_never = __reduce_add_sync(~0u, n_never);
  if (threadIdx.x % kWarp == 0) atomicAdd(&c.n_never, n_never);
}
template <typename K>
__device__ __forceinline__ int n_fetched(const Item& item, const Lists::Counters& c) {
  return K::kFetchesFour && item.together ? c.n_fetched : c.n_missing;
}

// Finds hits and assigns cache slots to misses. Independent loads are issued first, together: each has a latency of 0.5
// us.
template <typename K>
__device__ void resolve(const RecallArgs& p, const Item& item, const Lists& lists) {
  const int tid = threadIdx.x;
  Lists::Counters& c = *lists.counters;
  const std::int32_t* selected_ids = p.s.selection.ids[item.from] + item.index * p.s.max_listed;
  std::int32_t* slot_of = slots_of_units<K>(p, item);
  const std::int32_t* last_used = p.s.slots.last_used + item.index * p.s.n_slots + item.fixed;
  if (K::kFetchesFour && item.together) {
    update_last_used(item, lists, last_used, K::kThreads);
  } else {
#pragma unroll 4
    for (int i = tid; i < item.n_free; i += K::kThreads)
      lists.age[i] = static_cast<std::uint8_t>(min(item.now - last_used[i], kOldest));
  }
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
        if (K::kFetchesFour && item.together && lists.age[slot[k]] == kOldest) atomicSub(&c.n_never, 1);
        lists.age[slot[k]] = kInUse;
      } else if (K::kFetchesFour && item.together) {
        lists.found[atomicAdd(&c.n_missing, 1)] = static_cast<std::uint16_t>(i);
        slot_of[unit[k]] = -2 - i;
      } else {
        lists.missing[atomicAdd(&c.n_missing, 1)] = {token[k], static_cast<std::uint16_t>(i), 0};
      }
    }
  }
  __syncthreads();
  if (K::kFetchesFour && item.together) find_fetch_group<K>(p, item, lists);
  const int n = n_fetched<K>(item, c);
  if (n > 0) assign_slots<K>(item, lists, n);
  __syncthreads();
}

// Lists the window's cache slots after the selection. With lists, from the newest token, so that the other entries stay
// in place while the window grows and the selection shrinks.
__device__ inline void list_window(const RecallArgs& p, const Item& item, int lane, int n_lanes) {
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
__device__ void list_again(const RecallArgs& p, const Item& item) {
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
template <typename K>
__device__ void count_found(const RecallArgs& p, const Item& item, const Lists::Counters& c) {
  SlotCounts& counts = p.s.counts[kept_index(p.s, p.slot_layer, item.seq_slot)];
  if (!item.again) add_count(counts.selected, item.attended);
  add_count(counts.missing, c.n_missing);
  add_count(counts.replaced, c.n_replaced + c.n_missing);
  if (K::kFetchesFour && item.together) add_count(counts.neighbours, c.n_fetched - c.n_missing);
}

// Commits what resolve() decided to the tables. Called by `lane` of n_lanes threads.
template <typename K>
__device__ void commit_slots(const RecallArgs& p, const Item& item, const Lists& lists, int lane, int n_lanes) {
  const PageRegion& region = item.region;
  const std::int64_t slots = item.index * p.s.n_slots;
  const std::int32_t* selected_ids = p.s.selection.ids[item.from] + item.index * p.s.max_listed;
  std::int32_t* slot_of = slots_of_units<K>(p, item);
  const int fetched = n_fetched<K>(item, *lists.counters);
#pragma unroll 1
  for (int i = lane; i < fetched; i += n_lanes) {
    const Missing m = lists.missing[i];
    const bool neighbour = K::kFetchesFour && (m.unit_at & kNeighbour) != 0;
    const std::int64_t slot = slots + item.fixed + m.slot;
    int unit = selected_ids[K::kFetchesFour ? m.unit_at & ~kNeighbour : m.unit_at];
    const int before = p.s.slots.unit_of[slot];
    if (neighbour) unit = unit / kFetchGranularity * kFetchGranularity + m.token % kFetchGranularity;
    if (before >= 0) slot_of[before] = -1;  // no longer cached; it is not in the selection
    slot_of[unit] = m.slot;
    p.s.slots.unit_of[slot] = unit;
    if (neighbour) p.s.slots.last_used[slot] = -1;  // fetched, never selected
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
  if (lane == 0) count_found<K>(p, item, *lists.counters);
}

}  // namespace mneme::cuda::recall
