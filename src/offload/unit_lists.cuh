// A recall's work items: for every (row, KV head) its units, region and list, set up before units are resolved
// (unit_resolve.cuh) or fetched (unit_recall_cuda.cu).
#pragma once

#include "src/cuda/bulk_copy.cuh"
#include "src/offload/device_cache_cuda.cuh"

namespace mneme::cuda::recall {

constexpr int kRecallThreads = 128;
// Single tokens that the step waits for, with no concurrent kernel: more threads fetch them sooner.
constexpr int kMaxRecallThreads = 512;

// Compile-time kind of a recall: tokens per unit, this step or the next. kEight: single tokens are in 8 bits (pages are
// bytes).
template <int kTokens, SelectWhen kFor, bool kKeeping, bool kEight = false>
struct RecallOf {
  static constexpr bool kCodes = kEight;
  static constexpr SelectWhen kWhen = kFor;
  static constexpr bool kPages = kTokens != 1, kNow = kFor == SelectWhen::kNow;
  static constexpr int kUnitTokens = kTokens, kThreads = kNow && !kPages ? kMaxRecallThreads : kRecallThreads;
  static constexpr bool kKeeps = kKeeping;  // some rows keep selections
  // Pieces of pages in flight. A recall for this step runs concurrently with attention, whose thread blocks take
  // 136,320 bytes of an SM's 228 KiB: 11 stages and the lists take 92,260; with 12, attention blocks would start only
  // after the recall ended (four sequences of 32,768 with 13 % corrections: 6.49 ms a step with 11, 6.69 with 12, 6.66
  // with 6).
  static constexpr int kStages = kNow ? 11 : 4;
  static constexpr int kRingBytes = kPages ? kStages * kBulkBytes : 0;
};

struct RecallArgs {
  DeviceCache s;
  KvTables pages;
  SlotRows rows;
  int layer, slot_layer;
};

struct Missing {
  std::int32_t token;           // the unit's first token, in the pool
  std::uint16_t unit_at, slot;  // index in the selection; cache slot to fill
};

constexpr std::uint16_t kLate = 0x8000;  // bit of Lists::slot: not a hit; kMaxKvSlots is smaller

// Steps since a slot was last selected, saturated at kOldest.
constexpr int kOldest = 254, kInUse = 255;

// Whether this step's attention starts with the hits while misses are fetched.
template <typename K>
__device__ __forceinline__ bool signals_arrivals(const RecallArgs& p) {
  return K::kNow && p.rows.tickets != nullptr;
}
// One thread: signals that a KV head's list is written, or (with in-flight entries) complete.
__device__ __forceinline__ void signal(const RecallArgs& p, int row, int seq_slot, int kv_head, std::int32_t* flags) {
  raise_flag(flags + slot_index(p.s, p.slot_layer, seq_slot, kv_head), p.rows.tickets[row]);
}

// Shared memory of one (row, KV head): n_free cache slots of the third kind, max_listed selected units.
struct Lists {
  Missing* missing;     // [max_listed]: what is fetched
  std::uint16_t* slot;  // [max_listed]: cache slot of each selected unit, | kLate
  std::uint8_t* age;    // [n_free]: kInUse for slots that hold a selected unit
  struct Counters {
    int n_missing, n_replaced;
    int oldest, n_oldest;  // slots older than `oldest` are evicted, and n_oldest of that age
    int of_age[256];
    int2 of_warps[kMaxRecallThreads / kWarp];
  } * counters;
  static __host__ __device__ std::size_t bytes(const DeviceCache& s) {
    return static_cast<std::size_t>(s.n_slots) +
           static_cast<std::size_t>(s.max_listed + 1) * (sizeof(Missing) + sizeof(std::uint16_t));
  }
  __device__ Lists(std::uint8_t* memory, const DeviceCache& s, Counters* counters)
      : missing(reinterpret_cast<Missing*>(memory)), counters(counters) {
    slot = reinterpret_cast<std::uint16_t*>(missing + s.max_listed + 1);
    age = reinterpret_cast<std::uint8_t*>(slot + s.max_listed + 1);
  }
};

// What a (row, KV head) attends.
struct RecallItem {
  std::int64_t index;  // slot_index
  int seq_slot, kv_head, length, from;
  PageRegion region;
  int n;                   // selected units: those that are fetched
  int attended;            // how many of them are attended, from the first
  bool keeps_speculative;  // the selection for this step is the speculative one,
  bool again;              // and listed already
  int fixed, n_free;       // cache slots
  int now;                 // last-used stamp of this step: the length, or the selection's number
  bool newest_first;       // the window is listed from the newest token
};

template <typename K>
__device__ __forceinline__ SlotRow recall_row(const RecallArgs& p, int row) {
  SlotRow r = row_at(p.s, p.rows, row);
  r.plan.units.tokens = K::kUnitTokens;
  return r;
}
template <typename K>
__device__ __forceinline__ std::int64_t token_bytes_of(const RecallArgs& p) {
  if constexpr (K::kPages) return p.s.token_bytes();
  return K::kCodes ? 2 * p.s.head_dim + 8 : 4 * p.s.head_dim;
}
template <typename K>
__device__ __forceinline__ std::int64_t unit_bytes_of(const RecallArgs& p) {
  return token_bytes_of<K>(p) * K::kUnitTokens;
}
template <typename K>
__device__ __forceinline__ std::int32_t* slots_of_units(const RecallArgs& p, const RecallItem& item) {
  return p.s.slots.slot_of + item.index * (p.s.max_pages * (kKvPageTokens / K::kUnitTokens));
}
template <typename K>
__device__ __forceinline__ bool keeps(const SlotRow& r) {
  return K::kKeeps && r.seq_slot >= 0 && r.plan.schedule == ScheduleKind::kBoundary;
}
template <typename K>
__device__ __forceinline__ void set_region(const RecallArgs& p, const SlotRow& r, int kv_head, RecallItem& it) {
  it.index = slot_index(p.s, p.slot_layer, r.seq_slot, kv_head);
  it.seq_slot = r.seq_slot, it.kv_head = kv_head;
  it.length = it.now = r.length + (K::kNow ? 0 : 1);
  it.region = K::kPages ? page_region(r.plan, it.length) : region_of(p.s, r.plan, p.slot_layer, r.seq_slot, it.length);
  it.fixed = it.region.first + window_slots(r.plan);
  it.n_free = p.s.n_slots - it.fixed;
  it.newest_first = !K::kPages && p.s.index.lists.max_units > 0 && r.plan.schedule != ScheduleKind::kNone;
  it.n = it.attended = it.region.n_select == 0 ? 0 : min(it.region.n_select, p.s.selection.n[it.from][it.index]);
  if (!keeps<K>(r)) return;
  it.n = p.s.selection.n[it.from][it.index];
  it.now = __ldcg(&p.s.selection.kept[kept_index(p.s, p.slot_layer, r.seq_slot)].made_now);
}

// KV heads of a row that attend a selection made with this step's query.
struct Needs {
  bool own, any;  // this one; any (evaluated for the next step only)
};
// For the next step a whole warp evaluates it. Where the next region differs, the result does not depend on it.
template <typename K>
__device__ __forceinline__ Needs needs_of(const RecallArgs& p, const SlotRow& r, int kv_head) {
  Needs needs{false, false};
  if constexpr (K::kNow) {
    needs.own = needs_now(p.s, r, p.slot_layer, kv_head);
  } else if constexpr (K::kPages) {  // one more token: another region
    if (!same_region(r.plan, r.length, r.length + 1)) return needs;
    for (int first = 0; first < p.s.n_kv_heads; first += kWarp) {
      const int head = first + static_cast<int>(threadIdx.x) % kWarp;
      const bool needed = head < p.s.n_kv_heads && needs_now(p.s, r, p.slot_layer, head);
      needs.any = __any_sync(~0u, needs.any || needed);
      needs.own = __any_sync(~0u, needs.own || (needed && head == kv_head));
    }
    needs.any = needs.any || by_mass(r);
  }
  return needs;
}

// Sets up the item's list; false: the list is unchanged.
template <typename K>
__device__ bool item_of(const RecallArgs& p, const SlotRow& r, int kv_head, const Needs& needs, RecallItem& it) {
  if (K::kNow) {
    const bool plain = r.plan.schedule == ScheduleKind::kNone;
    if (!needs.own && !plain) return false;
    if (plain && !r.reset && same_region(r.plan, r.length, r.length - 1)) return false;  // listed by the previous step
  } else {
    if (r.plan.schedule != ScheduleKind::kSpeculative) return false;
    it.from = selects(r, K::kWhen, needs.any) ? 1 : 0;
    it.keeps_speculative = it.from == 0 && by_mass(r);
    it.again = it.keeps_speculative && needs.own;
    if (it.from == 0 && needs.own && !it.keeps_speculative) return false;  // the next step attends the same selection
  }
  set_region<K>(p, r, kv_head, it);
  return true;
}

// One thread.
template <typename K>
__device__ __forceinline__ void count_gate(const RecallArgs& p, const SlotRow& r, const Needs& needs) {
  if (!K::kNow || r.plan.schedule != ScheduleKind::kSpeculative || r.reset) return;
  SlotCounts& counts = p.s.counts[kept_index(p.s, p.slot_layer, r.seq_slot)];
  add_count(counts.checks, 1);
  if (needs.own) add_count(counts.corrections, 1);
}

__device__ __forceinline__ void count_selected(const RecallArgs& p, int seq_slot, int n) {
  add_count(p.s.counts[kept_index(p.s, p.slot_layer, seq_slot)].selected, n);
}

// What a recall does for a (row, KV head): nothing, update the list of a selection that it keeps, or list another one.
enum class Work { kNone, kAgain, kLists };

// One thread, after a step. n_units of the selection made; below 0: it was kept.
__device__ __forceinline__ void remember(const RecallArgs& p, int seq_slot, int n_units) {
  KeptSelection& kept = p.s.selection.kept[kept_index(p.s, p.slot_layer, seq_slot)];
  kept.reused = n_units < 0 ? kept.reused + 1 : 0;
  if (n_units < 0) return;
  kept.n_units = n_units;
  kept.n_made = max(kept.n_made, kept.made_now);
}

// Sets up a row's item, which is all zeros. `counts`: the calling thread counts for the KV head.
template <typename K>
__device__ __forceinline__ Work work_of(const RecallArgs& p, const SlotRow& r, int kv_head, bool counts,
                                        RecallItem& item) {
  const bool kept = keeps<K>(r), remembers = kept && counts && kv_head == 0;
  if (!r.sparse) {
    if (remembers) remember(p, r.seq_slot, 0);
    return Work::kNone;
  }
  const Needs needs = needs_of<K>(p, r, kv_head);
  if (counts) count_gate<K>(p, r, needs);
  if (kept && !needs.own) {
    set_region<K>(p, r, kv_head, item);
    if (remembers) remember(p, r.seq_slot, -1);
    return Work::kAgain;
  }
  if (!item_of<K>(p, r, kv_head, needs, item)) return Work::kNone;
  if (remembers) remember(p, r.seq_slot, item.n);
  return Work::kLists;
}

}  // namespace mneme::cuda::recall
