// Which of a recall's units are in slots, which come and what they take the place of; and what was decided of that,
// written to the tables.
#pragma once

#include "src/kernels/unit_lists.cuh"

namespace mneme::cuda::recall {

// Sums of two numbers of the threads before this one. Every thread of the block takes part.
__device__ __forceinline__ int2 sums_before(int2 own, int (&of_warps)[2][kMostRecallThreads / kWarp]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int2 up_to = own;
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) {
    const int x = __shfl_up_sync(~0u, up_to.x, d), y = __shfl_up_sync(~0u, up_to.y, d);
    if (lane >= d) up_to.x += x, up_to.y += y;
  }
  if (lane == kWarp - 1) of_warps[0][warp] = up_to.x, of_warps[1][warp] = up_to.y;
  __syncthreads();
  int2 before = {up_to.x - own.x, up_to.y - own.y};
  for (int w = 0; w < warp; ++w) before.x += of_warps[0][w], before.y += of_warps[1][w];
  return before;
}

// Gives `wanted` slots away: of those that are not in use, the ones that were not chosen for longest; the first where
// that is equal.
template <typename K>
__device__ void give_slots(const Item& item, const Lists& lists, int wanted) {
  const int tid = threadIdx.x;
  Lists::Counters& c = *lists.counters;
#pragma unroll 1
  for (int i = tid; i < 256; i += K::kThreads) c.of_age[i] = 0;
  __syncthreads();
#pragma unroll 1
  for (int i = tid; i < item.n_free; i += K::kThreads) atomicAdd(&c.of_age[lists.age[i]], 1);
  __syncthreads();
  if (tid < kWarp) {  // lane i has ages 255 - 8 i and down; those in use come first, and do not count
    int own = 0;
#pragma unroll 1
    for (int j = 0; j < 8; ++j) own += tid == 0 && j == 0 ? 0 : c.of_age[255 - 8 * tid - j];
    int up_to = own;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int v = __shfl_up_sync(~0u, up_to, d);
      if (tid >= d) up_to += v;
    }
    int before = up_to - own;
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
  int2 before = sums_before(own, c.of_warps);
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    const int age = lists.age[i];
    if (age == kInUse || age < oldest) continue;
    const int at = age > oldest ? wanted - 1 - before.x++ : before.y++;
    if (age == oldest && at >= n_oldest) continue;
    lists.missing[at].slot = static_cast<std::uint16_t>(i);
    const int chosen = lists.missing[at].chosen;
    if (!K::kFetchesFour || (chosen & kNeighbour) == 0) lists.slot[chosen] = static_cast<std::uint16_t>(i) | kLate;
  }
}

// The missing tokens (Lists::found, each of which slot_of names as -2 - which of the chosen) with those around them
// that may be chosen later and are in no slot, as long as there are slots that hold nothing that was ever chosen: what
// was chosen once is likelier to be chosen again. Of four, the thread that has the first missing one writes all down,
// side by side, so that one warp asks for them.
template <typename K>
__device__ void find_together(const RecallArgs& p, const Item& item, const Lists& lists) {
  Lists::Counters& c = *lists.counters;
  const std::int32_t* chosen = p.s.chosen[item.from] + item.index * p.s.max_listed;
  const std::int32_t* slot_of = slots_of_units<K>(p, item);
  const int room = max(0, min(c.n_never - c.n_missing, item.n_free - item.n));
  for (int k = threadIdx.x; k < c.n_missing; k += K::kThreads) {
    const int unit = chosen[lists.found[k]], first = unit / kTogether * kTogether;
    const int4 four = *reinterpret_cast<const int4*>(slot_of + first);  // rows begin at multiples of a page
    const int slot[kTogether] = {four.x, four.y, four.z, four.w};
    int n_chosen = 0, n_others = 0;
    bool leads = true;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      leads = leads && (first + i >= unit || slot[i] >= -1);
      n_chosen += slot[i] < -1;
      n_others += slot[i] == -1 && first + i >= item.region.first && first + i < item.region.last;
    }
    if (!leads) continue;
    n_others = max(0, min(n_others, room - atomicAdd(&c.n_neighbours, n_others)));
    int at = atomicAdd(&c.n_brought, n_chosen + n_others);
    const std::int32_t token = unit_token(p.pages, 1, p.layer, item.place, item.kv_head, first);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
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

// Ages where neighbours come: nothing is older than what was never chosen.
__device__ __forceinline__ void note_ages(const Item& item, const Lists& lists, const std::int32_t* used_at,
                                          int n_threads) {
  Lists::Counters& c = *lists.counters;
  if (threadIdx.x == 0) c.n_brought = c.n_neighbours = c.n_never = 0;
  __syncthreads();
  int n_never = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < item.n_free; i += n_threads) {
    const std::int32_t at = used_at[i];
    n_never += at < 0;
    lists.age[i] = static_cast<std::uint8_t>(at < 0 ? kOldest : min(item.now - at, kOldest - 1));
  }
  n_never = __reduce_add_sync(~0u, n_never);
  if (threadIdx.x % kWarp == 0) atomicAdd(&c.n_never, n_never);
}
template <typename K>
__device__ __forceinline__ int n_brought(const Item& item, const Lists::Counters& c) {
  return K::kFetchesFour && item.together ? c.n_brought : c.n_missing;
}

// Which of the chosen units are there, and what the others take the place of. Loads that do not depend on one another
// come first, all at once: each is a wait of half a microsecond.
template <typename K>
__device__ void resolve(const RecallArgs& p, const Item& item, const Lists& lists) {
  const int tid = threadIdx.x;
  Lists::Counters& c = *lists.counters;
  const std::int32_t* chosen = p.s.chosen[item.from] + item.index * p.s.max_listed;
  std::int32_t* slot_of = slots_of_units<K>(p, item);
  const std::int32_t* used_at = p.s.used_at + item.index * p.s.n_slots + item.fixed;
  if (K::kFetchesFour && item.together) {
    note_ages(item, lists, used_at, K::kThreads);
  } else {
#pragma unroll 4
    for (int i = tid; i < item.n_free; i += K::kThreads)
      lists.age[i] = static_cast<std::uint8_t>(min(item.now - used_at[i], kOldest));
  }
  if (tid == 0) c.n_missing = c.n_replaced = 0;
  __syncthreads();
  constexpr int kAtOnce = K::kPages ? 1 : K::kNow ? 2 : 8;
  for (int first = tid; first < item.n; first += kAtOnce * K::kThreads) {
    std::int32_t unit[kAtOnce], slot[kAtOnce], token[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) unit[k] = chosen[min(first + k * K::kThreads, item.n - 1)];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      slot[k] = slot_of[unit[k]];
      token[k] = unit_token(p.pages, K::kUnitTokens, p.layer, item.place, item.kv_head, unit[k]);
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
  if (K::kFetchesFour && item.together) find_together<K>(p, item, lists);
  const int n = n_brought<K>(item, c);
  if (n > 0) give_slots<K>(item, lists, n);
  __syncthreads();
}

// The window's slots, behind those of the selection. Of lists the newest first, so that the others stay where they are
// while the window grows and the selection shrinks.
__device__ inline void list_window(const RecallArgs& p, const Item& item, int lane, int n_lanes) {
  const PageRegion& region = item.region;
  std::int32_t* listed = p.s.listed + item.index * p.s.max_listed + region.first + item.attended;
  const auto first = static_cast<std::int32_t>(item.index * p.s.n_slots) + region.first;
  const int ring = item.fixed - region.first, n = region.stop - region.window;  // not more than the ring
  const int step = item.newest_first ? -1 : 1, begin = (item.newest_first ? region.stop - 1 : region.window) % ring;
#pragma unroll 1
  for (int i = lane; i < n; i += n_lanes) {
    const int at = begin + step * i;
    listed[i] = first + (at < 0 ? at + ring : at >= ring ? at - ring : at);
  }
}

// A step that keeps its selection: the window has moved, and where it has shrunk, more of the selection is attended.
template <typename K>
__device__ void list_again(const RecallArgs& p, const Item& item) {
  const std::int32_t* chosen = p.s.chosen[0] + item.index * p.s.max_listed;
  const std::int32_t* slot_of = slots_of_units<K>(p, item);
  std::int32_t* listed = p.s.listed + item.index * p.s.max_listed + item.region.first;
  const auto first = static_cast<std::int32_t>(item.index * p.s.n_slots) + item.fixed;
  for (int i = max(0, item.attended - (item.fixed - item.region.first)) + static_cast<int>(threadIdx.x);
       i < item.attended; i += K::kThreads)
    listed[i] = first + slot_of[chosen[i]];
  list_window(p, item, static_cast<int>(threadIdx.x), K::kThreads);
}

// Of one thread: what resolve() found.
template <typename K>
__device__ void count_found(const RecallArgs& p, const Item& item, const Lists::Counters& c) {
  SlotCounts& counts = p.s.counts[kept_index(p.s, p.slot_layer, item.place)];
  if (!item.again) add_count(counts.selected, item.attended);
  add_count(counts.missing, c.n_missing);
  add_count(counts.replaced, c.n_replaced + c.n_missing);
  if (K::kFetchesFour && item.together) add_count(counts.neighbours, c.n_brought - c.n_missing);
}

// What resolve() decided, to the tables. `lane` of n_lanes threads.
template <typename K>
__device__ void write_down(const RecallArgs& p, const Item& item, const Lists& lists, int lane, int n_lanes) {
  const PageRegion& region = item.region;
  const std::int64_t slots = item.index * p.s.n_slots;
  const std::int32_t* chosen = p.s.chosen[item.from] + item.index * p.s.max_listed;
  std::int32_t* slot_of = slots_of_units<K>(p, item);
  const int brought = n_brought<K>(item, *lists.counters);
#pragma unroll 1
  for (int i = lane; i < brought; i += n_lanes) {
    const Missing m = lists.missing[i];
    const bool neighbour = K::kFetchesFour && (m.chosen & kNeighbour) != 0;
    const std::int64_t slot = slots + item.fixed + m.slot;
    int unit = chosen[K::kFetchesFour ? m.chosen & ~kNeighbour : m.chosen];
    const int before = p.s.unit_of[slot];
    if (neighbour) unit = unit / kTogether * kTogether + m.token % kTogether;
    if (before >= 0) slot_of[before] = -1;  // none of those that were chosen
    slot_of[unit] = m.slot;
    p.s.unit_of[slot] = unit;
    if (neighbour) p.s.used_at[slot] = -1;  // never chosen
  }
  std::int32_t* listed = p.s.listed + item.index * p.s.max_listed;
  const auto first = static_cast<std::int32_t>(slots);
#pragma unroll 1
  for (int i = lane; i < region.first; i += n_lanes) listed[i] = first + i;
  const bool tells = tells_arrivals<K>(p);
#pragma unroll 1
  for (int i = lane; i < item.n; i += n_lanes) {
    const int slot = lists.slot[i] & ~kLate;
    const std::uint32_t late = tells && (lists.slot[i] & kLate) != 0 ? kOnItsWay : 0;
    p.s.used_at[slots + item.fixed + slot] = item.now;
    if (i < item.attended) listed[region.first + i] = static_cast<std::int32_t>((first + item.fixed + slot) | late);
  }
  if (item.keeps_ahead) {
    std::int32_t* ahead = p.s.chosen[1] + item.index * p.s.max_listed;
#pragma unroll 1
    for (int i = lane; i < item.n; i += n_lanes) ahead[i] = chosen[i];
    if (lane == 0) p.s.n_chosen[1][item.index] = item.n;
  }
  list_window(p, item, lane, n_lanes);
  if (lane == 0) count_found<K>(p, item, *lists.counters);
}

}  // namespace mneme::cuda::recall
