// What a recall's lists are: of every (row, KV head) its units, its region and what is listed, set before anything is
// resolved (unit_resolve.cuh) or brought (unit_recall_cuda.cu).
#pragma once

#include "src/kernels/bulk_copies.cuh"
#include "src/kernels/kv_slots_cuda.cuh"

namespace mneme::cuda::recall {

constexpr int kRecallThreads = 128;
// Single tokens that a step waits for, with nothing beside: as many threads as bring them sooner.
constexpr int kMostRecallThreads = 512;

// What a kernel recalls: units of so many tokens, for this step or the next.
template <int kTokens, SelectWhen kFor, bool kFour, bool kKeeping>
struct RecallOf {
  static constexpr SelectWhen kWhen = kFor;
  static constexpr bool kPages = kTokens != 1, kNow = kFor == SelectWhen::kNow;
  static constexpr int kUnitTokens = kTokens, kThreads = kNow && !kPages ? kMostRecallThreads : kRecallThreads;
  static constexpr bool kFetchesFour = kFour;  // as some rows ask for
  static constexpr bool kKeeps = kKeeping;     // some rows keep selections
  // Pieces of pages under way. What this step waits for has them beside attention's blocks, which take 136,320 bytes of
  // a multiprocessor's 228 KiB: 11 stages and the lists are 92,260, and with 12 those blocks would begin when recall
  // has ended (four sequences of 32,768 with 13 % corrections: 6.49 ms a step with 11, 6.69 with 12, 6.66 with 6).
  static constexpr int kStages = kNow ? 11 : 4;
  static constexpr int kRingBytes = kPages ? kStages * kBulkBytes : 0;
};

struct RecallArgs {
  KvSlots s;
  KvTables pages;
  SlotRows rows;
  int layer, slot_layer;
};

struct Missing {
  std::int32_t token;          // the unit's first, in the pool
  std::uint16_t chosen, slot;  // which of the chosen units, where it goes
};
// A bit of Missing::chosen: not that unit, but a neighbour of it.
constexpr int kNeighbour = 1 << 15, kTogether = 4;
static_assert(kMostKvSlots < kNeighbour && kKvPageTokens % kTogether == 0);

constexpr std::uint16_t kLate = 0x8000;  // of Lists::slot: what is chosen comes first; kMostKvSlots are fewer

// Steps since a slot was chosen, of as many as are told apart.
constexpr int kOldest = 254, kInUse = 255;

// Whether attention of this step reads what is there while the rest comes.
template <typename K>
__device__ __forceinline__ bool tells_arrivals(const RecallArgs& p) {
  return K::kNow && p.rows.tickets != nullptr;
}
// Of one thread: a KV head's list is written, or (with what is on its way) complete.
__device__ __forceinline__ void tell(const RecallArgs& p, int row, int place, int kv_head, std::int32_t* flags) {
  raise_flag(flags + slot_index(p.s, p.slot_layer, place, kv_head), p.rows.tickets[row]);
}

// Of one (row, KV head), in shared memory: n_free slots of the third kind, max_listed chosen units.
struct Lists {
  Missing* missing;      // [max_listed], with neighbours [n_free]: what is brought
  std::uint16_t* slot;   // [max_listed]: of the chosen units, | kLate
  std::uint16_t* found;  // [max_listed], with neighbours: which of the chosen units are missing
  std::uint8_t* age;     // [n_free]: kInUse for those that hold a chosen unit
  struct Counters {
    int n_missing, n_replaced;
    int oldest, n_oldest;  // slots older than `oldest` are given away, and n_oldest of that age
    int of_age[256];
    int of_warps[2][kMostRecallThreads / kWarp];
    int n_brought, n_neighbours, n_never;  // with neighbours: slots that hold nothing that was ever chosen
  } * counters;
  static __host__ __device__ int most_brought(const KvSlots& s) {
    return s.fetch > 1 && s.n_slots > s.max_listed ? s.n_slots : s.max_listed + 1;
  }
  static __host__ __device__ std::size_t bytes(const KvSlots& s) {
    return static_cast<std::size_t>(s.n_slots) + static_cast<std::size_t>(most_brought(s)) * sizeof(Missing) +
           static_cast<std::size_t>(s.max_listed + 1) * sizeof(std::uint16_t) * (s.fetch > 1 ? 2 : 1);
  }
  __device__ Lists(std::uint8_t* memory, const KvSlots& s, bool four, Counters* counters)
      : missing(reinterpret_cast<Missing*>(memory)), counters(counters) {
    slot = reinterpret_cast<std::uint16_t*>(missing + (four ? most_brought(s) : s.max_listed + 1));
    found = slot + s.max_listed + 1;
    age = reinterpret_cast<std::uint8_t*>(four ? found + s.max_listed + 1 : found);
  }
};

// What a (row, KV head) is to attend.
struct Item {
  std::int64_t index;  // slot_index
  int place, kv_head, length, from;
  PageRegion region;
  int n;              // chosen units: those that are brought
  int attended;       // of them, the first so many
  bool keeps_ahead;   // what was chosen for this step is the selection ahead,
  bool again;         // and listed already
  int fixed, n_free;  // slots
  int now;            // what slots note that are used: the length, or a selection's number
  bool together;      // neighbours are brought too
  bool newest_first;  // the window is listed so
};

template <typename K>
__device__ __forceinline__ RowOfSlots recall_row(const RecallArgs& p, int row) {
  RowOfSlots r = row_at(p.s, p.rows, row);
  r.rules.unit_tokens = K::kUnitTokens;
  return r;
}
template <typename K>
__device__ __forceinline__ std::int64_t unit_bytes_of(const RecallArgs& p) {
  return token_bytes(p.s) * K::kUnitTokens;
}
template <typename K>
__device__ __forceinline__ std::int32_t* slots_of_units(const RecallArgs& p, const Item& item) {
  return p.s.slot_of + item.index * (p.s.max_pages * (kKvPageTokens / K::kUnitTokens));
}
template <typename K>
__device__ __forceinline__ bool keeps(const RowOfSlots& r) {
  return K::kKeeps && r.place >= 0 && r.rules.schedule == SlotSchedule::kKept;
}
template <typename K>
__device__ __forceinline__ void set_region(const RecallArgs& p, const RowOfSlots& r, int kv_head, Item& it) {
  it.index = slot_index(p.s, p.slot_layer, r.place, kv_head);
  it.place = r.place, it.kv_head = kv_head;
  it.length = it.now = r.length + (K::kNow ? 0 : 1);
  it.region = K::kPages ? page_region(r.rules, it.length) : region_of(p.s, r.rules, p.slot_layer, r.place, it.length);
  it.fixed = it.region.first + window_slots(r.rules);
  it.n_free = p.s.n_slots - it.fixed;
  it.together = K::kFetchesFour && r.rules.fetch == kTogether;
  it.newest_first = !K::kPages && p.s.lists.max_units > 0 && r.rules.schedule != SlotSchedule::kNone;
  it.n = it.attended = it.region.n_select == 0 ? 0 : min(it.region.n_select, p.s.n_chosen[it.from][it.index]);
  if (!keeps<K>(r)) return;
  it.n = p.s.n_chosen[it.from][it.index];
  it.now = __ldcg(&p.s.kept[kept_index(p.s, p.slot_layer, r.place)].made_now);
}

// Which KV heads of a row attend a selection made with this step's query.
struct Needs {
  bool own, any;  // this one; any, which is asked for the next step alone
};
// For the next step a whole warp asks. Where that attends another region, it does not depend on them.
template <typename K>
__device__ __forceinline__ Needs needs_of(const RecallArgs& p, const RowOfSlots& r, int kv_head) {
  Needs needs{false, false};
  if constexpr (K::kNow) {
    needs.own = needs_now(p.s, r, p.slot_layer, kv_head);
  } else if constexpr (K::kPages) {  // another token is another region
    if (!same_region(r.rules, r.length, r.length + 1)) return needs;
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

// What the item's list is to be of; false: it stays as it is.
template <typename K>
__device__ bool item_of(const RecallArgs& p, const RowOfSlots& r, int kv_head, const Needs& needs, Item& it) {
  it.from = 0, it.keeps_ahead = it.again = false;
  if (K::kNow) {
    const bool plain = r.rules.schedule == SlotSchedule::kNone;
    if (!needs.own && !plain) return false;
    if (plain && !r.anew && same_region(r.rules, r.length, r.length - 1)) return false;  // listed as it was
  } else {
    if (r.rules.schedule != SlotSchedule::kAhead) return false;
    it.from = chooses(r, K::kWhen, needs.any) ? 1 : 0;
    it.keeps_ahead = it.from == 0 && by_mass(r);
    it.again = it.keeps_ahead && needs.own;
    if (it.from == 0 && needs.own && !it.keeps_ahead) return false;  // it has what the next step attends
  }
  set_region<K>(p, r, kv_head, it);
  return true;
}

// Of one thread.
template <typename K>
__device__ __forceinline__ void count_gate(const RecallArgs& p, const RowOfSlots& r, const Needs& needs) {
  if (!K::kNow || r.rules.schedule != SlotSchedule::kAhead || r.anew) return;
  SlotCounts& counts = p.s.counts[kept_index(p.s, p.slot_layer, r.place)];
  add_count(counts.checks, 1);
  if (needs.own) add_count(counts.corrections, 1);
}

__device__ __forceinline__ void count_selected(const RecallArgs& p, int place, int n) {
  add_count(p.s.counts[kept_index(p.s, p.slot_layer, place)].selected, n);
}

// After a step, of one thread: n_units of a selection that was made, below 0: it was kept.
__device__ __forceinline__ void remember(const RecallArgs& p, int place, int n_units) {
  KeptSelection& kept = p.s.kept[kept_index(p.s, p.slot_layer, place)];
  kept.reused = n_units < 0 ? kept.reused + 1 : 0;
  if (n_units < 0) return;
  kept.n_units = n_units;
  kept.n_made = max(kept.n_made, kept.made_now);
}

}  // namespace mneme::cuda::recall
