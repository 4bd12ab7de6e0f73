// Units out of host memory into slots, by the device itself. Four to eight blocks of threads fill the link with pages
// (docs/cuda.md); more of them hold up whatever else reads device memory. Single tokens
// are bound by their number: 27 million a second come to eight blocks of 128 threads, 48 million to 256 each.
//
// Recall runs beside the products of a step, whose blocks leave 10,000 registers and 47 KiB of shared memory of each
// multiprocessor: it takes less than that, or those would wait for it. So one thread moves pages, with bulk copies from
// host memory to shared memory and from there into slots; tokens are so small that asking for each would be the time,
// and warps load eight of them at once. Neighbours may come with a token (SlotRules::fetch): four aligned ones lie in
// one piece of their page, and go to slots of their own.
//
// What a kernel can do costs registers whether it is done or not, so each kind of recall is one of its own.
#include <algorithm>

#include "src/kernels/bulk_copies.cuh"
#include "src/kernels/kv_slots_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 512, kWarps = kThreads / kWarp;  // of the kernels that run alone
constexpr int kRecallThreads = 128, kListThreads = 256, kListBlocks = 4;
#if __CUDA_ARCH__ >= 900
constexpr int kRecallPiece = kBulkBytes;
#else
constexpr int kRecallPiece = kPieceBytes;
#endif
constexpr int kStagesBeside = 4, kStagesAlone = 12;  // pieces under way: beside products, and with nothing beside
// Single tokens that a step waits for, with nothing beside: as many threads as bring them sooner.
constexpr int kMostRecallThreads = 512;

// What a kernel recalls: units of so many tokens, by blocks of so many threads.
template <int kTokens, int kBlock, bool kFour, bool kKeeping>
struct RecallOf {
  static constexpr int kUnitTokens = kTokens, kThreads = kBlock;
  static constexpr bool kPages = kTokens != 1;
  static constexpr bool kFetchesFour = kFour;  // as some rows ask for
  static constexpr bool kKeeps = kKeeping;     // some rows keep selections
};

struct RecallArgs {
  KvSlots s;
  KvTables pages;
  SlotRows rows;
  SelectWhen when;
  int layer, slot_layer, stages;
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
__device__ __forceinline__ bool tells_arrivals(const RecallArgs& p) {
  return p.rows.tickets != nullptr && p.when == SelectWhen::kNow;
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
  it.length = it.now = r.length + (p.when == SelectWhen::kNext ? 1 : 0);
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

// What the item's list is to be of; false: it stays as it is.
template <typename K>
__device__ bool item_of(const RecallArgs& p, const RowOfSlots& r, int kv_head, Item& it) {
  const bool now = needs_now(p.s, r, p.slot_layer, kv_head), plain = r.rules.schedule == SlotSchedule::kNone;
  it.from = 0, it.keeps_ahead = it.again = false;
  if (p.when == SelectWhen::kNow) {
    if (!now && !plain) return false;
    if (plain && !r.anew && same_region(r.rules, r.length, r.length - 1)) return false;  // listed as it was
  } else {
    if (r.rules.schedule != SlotSchedule::kAhead) return false;
    it.from = chooses(r, p.when, any_needs_now(p.s, r, p.slot_layer)) ? 1 : 0;
    it.keeps_ahead = it.from == 0 && by_mass(r);
    it.again = it.keeps_ahead && now;
    if (it.from == 0 && now && !it.keeps_ahead) return false;  // it has what the next step attends
  }
  set_region<K>(p, r, kv_head, it);
  return true;
}

// Of one thread.
__device__ void count_gate(const RecallArgs& p, const RowOfSlots& r, int kv_head) {
  if (p.when != SelectWhen::kNow || r.rules.schedule != SlotSchedule::kAhead || r.anew) return;
  SlotCounts* counts = p.s.counts + static_cast<std::int64_t>(p.slot_layer) * p.s.n_places + r.place;
  atomicAdd(reinterpret_cast<unsigned long long*>(&counts->checks), 1ull);
  if (needs_now(p.s, r, p.slot_layer, kv_head))
    atomicAdd(reinterpret_cast<unsigned long long*>(&counts->corrections), 1ull);
}

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
  for (int i = tid; i < 256; i += K::kThreads) c.of_age[i] = 0;
  __syncthreads();
  for (int i = tid; i < item.n_free; i += K::kThreads) atomicAdd(&c.of_age[lists.age[i]], 1);
  __syncthreads();
  if (tid < kWarp) {  // lane i has ages 255 - 8 i and down; those in use come first, and do not count
    int own = 0;
    for (int j = 0; j < 8; ++j) own += tid == 0 && j == 0 ? 0 : c.of_age[255 - 8 * tid - j];
    int up_to = own;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int v = __shfl_up_sync(~0u, up_to, d);
      if (tid >= d) up_to += v;
    }
    int before = up_to - own;
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
  for (int i = begin; i < end; ++i) {
    const int age = lists.age[i];
    own.x += age > oldest && age != kInUse, own.y += age == oldest;
  }
  int2 before = sums_before(own, c.of_warps);
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
#pragma unroll 8
    for (int i = tid; i < item.n_free; i += K::kThreads)
      lists.age[i] = static_cast<std::uint8_t>(min(item.now - used_at[i], kOldest));
  }
  if (tid == 0) c.n_missing = c.n_replaced = 0;
  __syncthreads();
  constexpr int kAtOnce = 8;
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
__device__ void list_window(const RecallArgs& p, const Item& item, int lane, int n_lanes) {
  const PageRegion& region = item.region;
  std::int32_t* listed = p.s.listed + item.index * p.s.max_listed + region.first + item.attended;
  const auto first = static_cast<std::int32_t>(item.index * p.s.n_slots) + region.first;
  const int ring = item.fixed - region.first, n = region.stop - region.window;
  for (int i = lane; i < n; i += n_lanes)
    listed[i] = first + (item.newest_first ? region.stop - 1 - i : region.window + i) % ring;
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

__device__ __forceinline__ void count_selected(const RecallArgs& p, int place, int n) {
  SlotCounts* counts = p.s.counts + kept_index(p.s, p.slot_layer, place);
  atomicAdd(reinterpret_cast<unsigned long long*>(&counts->selected), static_cast<unsigned long long>(n));
}

// For tests: as if the link were slow.
__device__ __forceinline__ void delay_copies(const RecallArgs& p, const Item& item) {
  if (p.s.delay_us <= 0) return;
  std::uint64_t begin, now;
  const std::uint64_t nanoseconds =
      draw(static_cast<std::uint32_t>(item.length), static_cast<std::uint32_t>(item.index)) %
      (static_cast<std::uint64_t>(p.s.delay_us) * 1000);
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - begin < nanoseconds);
}

// After a step, of one thread: n_units of a selection that was made, below 0: it was kept.
__device__ __forceinline__ void remember(const RecallArgs& p, int place, int n_units) {
  KeptSelection& kept = p.s.kept[kept_index(p.s, p.slot_layer, place)];
  kept.reused = n_units < 0 ? kept.reused + 1 : 0;
  if (n_units < 0) return;
  kept.n_units = n_units;
  kept.n_made = max(kept.n_made, kept.made_now);
}

// Of one thread: what resolve() found.
template <typename K>
__device__ void count_found(const RecallArgs& p, const Item& item, const Lists::Counters& c) {
  SlotCounts* counts = p.s.counts + kept_index(p.s, p.slot_layer, item.place);
  const auto add = [](std::uint64_t& to, int v) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&to), static_cast<unsigned long long>(v));
  };
  if (!item.again) add(counts->selected, item.attended);
  add(counts->missing, c.n_missing);
  add(counts->replaced, c.n_replaced + c.n_missing);
  if (K::kFetchesFour && item.together) add(counts->neighbours, c.n_brought - c.n_missing);
}

// What resolve() decided, to the tables. `lane` of n_lanes threads.
template <typename K>
__device__ void write_down(const RecallArgs& p, const Item& item, const Lists& lists, int lane, int n_lanes) {
  const PageRegion& region = item.region;
  const std::int64_t slots = item.index * p.s.n_slots;
  const std::int32_t* chosen = p.s.chosen[item.from] + item.index * p.s.max_listed;
  std::int32_t* slot_of = slots_of_units<K>(p, item);
  const int brought = n_brought<K>(item, *lists.counters);
#pragma unroll 4
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
  for (int i = lane; i < region.first; i += n_lanes) listed[i] = first + i;
  const bool tells = tells_arrivals(p);
  for (int i = lane; i < item.n; i += n_lanes) {
    const int slot = lists.slot[i] & ~kLate;
    const std::uint32_t late = tells && (lists.slot[i] & kLate) != 0 ? kOnItsWay : 0;
    p.s.used_at[slots + item.fixed + slot] = item.now;
    if (i < item.attended) listed[region.first + i] = static_cast<std::int32_t>((first + item.fixed + slot) | late);
  }
  if (item.keeps_ahead) {
    std::int32_t* ahead = p.s.chosen[1] + item.index * p.s.max_listed;
    for (int i = lane; i < item.n; i += n_lanes) ahead[i] = chosen[i];
    if (lane == 0) p.s.n_chosen[1][item.index] = item.n;
  }
  list_window(p, item, lane, n_lanes);
  if (lane == 0) count_found<K>(p, item, *lists.counters);
}

// What is brought out of the pages, token by token.
template <typename K>
__device__ __forceinline__ void bring_tokens(const RecallArgs& p, const RowOfSlots& r, const Item& item,
                                             const Lists& lists, std::byte* base) {
  const int bytes = static_cast<int>(token_bytes(p.s)), n = n_brought<K>(item, *lists.counters),
            warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  copy_tokens(
      n, bytes, warp, K::kThreads / kWarp,
      [&](int i) { return p.pages.base + std::int64_t{lists.missing[i].token} * bytes; },
      [&](int i) { return base + lists.missing[i].slot * bytes; });
  if (p.when == SelectWhen::kNow || item.region.last < r.length) return;
  // A window of none or one leaves this step's own token to the next selection, and it is in no page yet.
  __syncthreads();
  const std::int32_t newest = unit_token(p.pages, 1, p.layer, item.place, item.kv_head, r.length - 1);
  const std::byte* own = resident_token(p.s, p.slot_layer, item.place, item.kv_head, r.length - 1, r.length);
  for (int i = warp; i < n; i += K::kThreads / kWarp)
    if (lists.missing[i].token == newest && lane * 16 < bytes)
      reinterpret_cast<uint4*>(base + lists.missing[i].slot * bytes)[lane] =
          __ldcg(reinterpret_cast<const uint4*>(own) + lane);
}

template <typename K>
__global__ void __launch_bounds__(K::kThreads, K::kThreads == kRecallThreads ? 8 : 2) recall_kernel(RecallArgs p) {
  extern __shared__ __align__(128) std::uint8_t memory[];  // the ring, then lists
  __shared__ Lists::Counters counters;
  const Lists lists(memory + (K::kPages ? p.stages * kBulkBytes : 0), p.s, K::kFetchesFour, &counters);
#if __CUDA_ARCH__ >= 900
  __shared__ std::uint64_t barriers[kStagesAlone];
  BulkCopies copies{shared_address(memory), shared_address(barriers), p.stages};
  if (K::kPages && threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) barrier_init(copies.barriers + i * 8, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
#endif
  // Attention that reads what is there must not begin before the queries and the choice are.
  const bool tells = tells_arrivals(p);
  if (!tells) let_next_start();
  wait_for_previous();
  if (tells) let_next_start();
  const int items = p.rows.n * p.s.n_kv_heads;
  for (int i = blockIdx.x; i < items; i += gridDim.x) {
    const int row = i / p.s.n_kv_heads, kv_head = i % p.s.n_kv_heads;
    const RowOfSlots r = recall_row<K>(p, row);
    const bool kept = keeps<K>(r), first_head = kv_head == 0 && threadIdx.x == 0;
    const auto all_there = [&] {
      if (!tells || threadIdx.x > 0 || r.place < 0) return;
      tell(p, row, r.place, kv_head, p.s.listed_for);
      tell(p, row, r.place, kv_head, p.s.arrived_for);
    };
    if (kept && p.when == SelectWhen::kNext) continue;
    if (!r.sparse) {
      if (kept && first_head) remember(p, r.place, 0);
      all_there();
      continue;
    }
    if (threadIdx.x == 0) count_gate(p, r, kv_head);
    Item item;
    if (kept && !needs_now(p.s, r, p.slot_layer, kv_head)) {
      item.from = 0;
      set_region<K>(p, r, kv_head, item);
      list_again<K>(p, item);
      if (threadIdx.x == 0) count_selected(p, r.place, item.attended);
      if (first_head) remember(p, r.place, -1);
      __syncthreads();
      all_there();
      continue;
    }
    if (!item_of<K>(p, r, kv_head, item)) {
      all_there();
      continue;
    }
    if (kept && first_head) remember(p, r.place, item.n);
    __syncthreads();
    resolve<K>(p, item, lists);
    std::byte* const base = p.s.slots + (item.index * p.s.n_slots + item.fixed) * unit_bytes_of<K>(p);
    if constexpr (!K::kPages) {
      bring_tokens<K>(p, r, item, lists, base);
      write_down<K>(p, item, lists, static_cast<int>(threadIdx.x), K::kThreads);
      __syncthreads();
      continue;
    }
    // Pages are powers of two: head_dim is 64 or 128.
    const int bytes = kRecallPiece, shift = __ffs(static_cast<int>(unit_bytes_of<K>(p)) / bytes) - 1;
    const int n = counters.n_missing << shift, mask = (1 << shift) - 1;
    const auto source = [&](int i) {
      return p.pages.base + lists.missing[i >> shift].token * token_bytes(p.s) + (i & mask) * bytes;
    };
    const auto target = [&](int i) {
      return base + lists.missing[i >> shift].slot * unit_bytes_of<K>(p) + (i & mask) * bytes;
    };
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      if (n > 0) delay_copies(p, item);
      copies.run(n, source, target);
      asm volatile("fence.proxy.async.global;" ::: "memory");
      if (tells) tell(p, row, r.place, kv_head, p.s.arrived_for);
    } else if (threadIdx.x >= kWarp) {
      constexpr int kLanes = K::kThreads - kWarp;
      write_down<K>(p, item, lists, static_cast<int>(threadIdx.x) - kWarp, kLanes);
      if (tells) {
        asm volatile("bar.sync 1, %0;" ::"n"(kLanes) : "memory");  // these warps alone: the first one copies
        if (threadIdx.x == kWarp) tell(p, row, r.place, kv_head, p.s.listed_for);
      }
    }
#else
    if (n > 0) delay_copies(p, item);
    for (int i = threadIdx.x / kWarp; i < n; i += K::kThreads / kWarp) copy_piece(target(i), source(i));
    write_down<K>(p, item, lists, static_cast<int>(threadIdx.x), K::kThreads);
    __syncthreads();
    all_there();
#endif
    __syncthreads();
  }
}

// Of one thread, for a step that attends what was chosen ahead: its own token, the last that is listed.
__device__ __forceinline__ void list_newest(const RecallArgs& p, const RowOfSlots& r, int kv_head) {
  if (r.rules.schedule != SlotSchedule::kAhead) return;
  const PageRegion region = page_region(r.rules, r.length);
  const int last = region.first + region.n_select + region.stop - region.window - 1;
  p.s.listed[slot_index(p.s, p.slot_layer, r.place, kv_head) * p.s.max_listed + last] =
      unit_token(p.pages, 1, p.layer, r.place, kv_head, r.length - 1);
}

// Where there are no slots: the numbers of the tokens that are attended, all of them up to the budget. What is chosen
// for the next step is listed without that step's token, whose page may have no block yet.
using Listed = RecallOf<1, kListThreads, false, true>;

__global__ void __launch_bounds__(kListThreads) list_kernel(RecallArgs p) {
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.y / p.s.n_kv_heads, kv_head = blockIdx.y % p.s.n_kv_heads;
  const RowOfSlots r = recall_row<Listed>(p, row);
  if (r.place < 0) return;
  const bool first_block = blockIdx.x == 0 && threadIdx.x == 0, kept = keeps<Listed>(r);
  if (kept && p.when == SelectWhen::kNext) return;
  Item item;
  item.region = {}, item.attended = 0, item.from = 0;
  int begin = 0;
  if (r.sparse) {
    if (first_block) count_gate(p, r, kv_head);
    if (kept && !needs_now(p.s, r, p.slot_layer, kv_head)) {
      set_region<Listed>(p, r, kv_head, item);
      begin = item.region.first + max(0, item.attended - window_slots(r.rules));  // as list_again()
      if (first_block && kv_head == 0) remember(p, r.place, -1);
    } else {
      if (!item_of<Listed>(p, r, kv_head, item)) {
        if (first_block && p.when == SelectWhen::kNow) list_newest(p, r, kv_head);
        return;
      }
      if (kept && first_block && kv_head == 0) remember(p, r.place, item.n);
    }
  } else {
    if (p.when == SelectWhen::kNext) return;
    item.index = slot_index(p.s, p.slot_layer, r.place, kv_head);
    item.region.stop = r.length;
    if (kept && first_block && kv_head == 0) remember(p, r.place, 0);
  }
  const PageRegion& region = item.region;
  const std::int32_t* chosen = p.s.chosen[item.from] + item.index * p.s.max_listed;
  std::int32_t* listed = p.s.listed + item.index * p.s.max_listed;
  const int n = region.first + item.attended + region.stop - region.window - (p.when == SelectWhen::kNext ? 1 : 0);
  const bool newest_first = r.sparse && item.newest_first;
  for (int i = begin + blockIdx.x * kListThreads + threadIdx.x; i < n; i += gridDim.x * kListThreads) {
    const int at = i - region.first, of_window = at - item.attended;
    const int unit = at < 0          ? i
                     : of_window < 0 ? chosen[at]
                     : newest_first  ? region.stop - 1 - of_window
                                     : region.window + of_window;
    listed[i] = unit_token(p.pages, 1, p.layer, r.place, kv_head, unit);
  }
  if (first_block && r.sparse) count_selected(p, r.place, item.attended);
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
  const int bytes = static_cast<int>(cuda::unit_bytes(p.s));
  const bool all = p.length <= p.rules.budget;
  const PageRegion region = page_region(p.rules, p.length);
  const int ring = window_slots(p.rules);
  if (blockIdx.x == 0) {
    for (int i = tid; i < cuda::max_units(p.s); i += kThreads) p.s.slot_of[index * cuda::max_units(p.s) + i] = -1;
    for (int i = tid; i < p.s.n_slots; i += kThreads)
      p.s.unit_of[index * p.s.n_slots + i] = -1, p.s.used_at[index * p.s.n_slots + i] = -2;
    if (all)
      for (int i = tid; i < p.s.max_listed; i += kThreads)
        p.s.listed[index * p.s.max_listed + i] =
            static_cast<std::int32_t>(index * p.s.n_slots) + min(i, p.s.n_slots - 1);
    if (tid == 0) p.s.n_chosen[0][index] = p.s.n_chosen[1][index] = 0;
  }
  const int n = all ? region.stop : region.first + region.stop - region.window;
  const auto unit_at = [&](int at) { return all || at < region.first ? at : region.window + at - region.first; };
  const auto source = [&](int at) {
    const int unit = unit_at(at);
    return p.pages.base + unit_token(p.pages, p.s.unit_tokens, p.layer, p.place, kv_head, unit) * token_bytes(p.s);
  };
  const auto target = [&](int at) {
    const int slot = all || at < region.first ? at : region.first + unit_at(at) % ring;
    return p.s.slots + (index * p.s.n_slots + slot) * bytes;
  };
  const int own = blockIdx.x * kWarps + warp, n_warps = gridDim.x * kWarps;
  if (p.s.unit_tokens == 1) {
    copy_tokens(n, bytes, own, n_warps, source, target);
    return;
  }
  const int pieces = bytes / kPieceBytes;
  for (int i = own; i < n * pieces; i += n_warps)
    copy_piece(target(i / pieces) + i % pieces * kPieceBytes, source(i / pieces) + i % pieces * kPieceBytes);
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
  const std::int64_t offset = position % kKvPageTokens * token_bytes(p.s);
  const std::byte* from =
      number >= 0 ? resident_token(p.s, number, place, kv_head, position, position + 1)
                  : block_at(p.dense, (-1 - number) * p.s.n_places, place, kv_head, position / kKvPageTokens) + offset;
  std::byte* to = block_at(p.pages, layer, place, kv_head, position / kKvPageTokens) + offset;
  for (int i = lane; i < token_bytes(p.s) / 16; i += kWarp)
    reinterpret_cast<uint4*>(to)[i] = __ldcg(reinterpret_cast<const uint4*>(from) + i);
}

struct CopyArgs {
  KvTables to, from;
  int to_layer, from_layer, to_slot, from_slot, first, stop;
};

__global__ void __launch_bounds__(kThreads) copy_kernel(CopyArgs p) {
  const int kv_head = blockIdx.y, warp = threadIdx.x / kWarp;
  const int block_bytes = 4 * p.to.head_dim * kKvPageTokens;
  const int pieces = (block_bytes + kPieceBytes - 1) / kPieceBytes;
  const int shift = p.from.shifts != nullptr ? shift_of(p.from, p.from_layer, p.from_slot, kv_head)
                                             : shift_of(p.to, p.to_layer, p.to_slot, kv_head);
  const int first = max(0, p.first - shift) / kKvPageTokens,
            n = (p.stop - shift + kKvPageTokens - 1) / kKvPageTokens - first;
  for (int i = blockIdx.x * kWarps + warp; i < n * pieces; i += gridDim.x * kWarps) {
    // Of head_dim 80 the last piece has half of the one before it.
    const int page = first + i / pieces, offset = min(i % pieces * kPieceBytes, block_bytes - kPieceBytes);
    std::byte* to = block_at(p.to, p.to_layer, p.to_slot, kv_head, page);
    copy_piece(to + offset, block_at(p.from, p.from_layer, p.from_slot, kv_head, page) + offset);
  }
}

template <typename K>
void launch_recall(const RecallArgs& args, int max_blocks, const CudaContext& context) {
  const std::size_t shared = static_cast<std::size_t>(args.stages) * kBulkBytes + Lists::bytes(args.s);
  static std::size_t allowed = 48 << 10;
  if (shared > allowed) {
    cuda_check(
        cudaFuncSetAttribute(recall_kernel<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "recall's shared memory");
    allowed = shared;
  }
  launch(context, "recall_units", recall_kernel<K>,
         dim3(static_cast<unsigned>(std::min(max_blocks, args.rows.n * args.s.n_kv_heads))),
         dim3(static_cast<unsigned>(K::kThreads)), shared, args);
}

template <int kBlock>
void launch_tokens(const RecallArgs& args, bool four, bool keeping, int max_blocks, const CudaContext& context) {
  const auto run =
      four
          ? (keeping ? launch_recall<RecallOf<1, kBlock, true, true>> : launch_recall<RecallOf<1, kBlock, true, false>>)
          : (keeping ? launch_recall<RecallOf<1, kBlock, false, true>>
                     : launch_recall<RecallOf<1, kBlock, false, false>>);
  run(args, max_blocks, context);
}

}  // namespace

void recall_units_cuda(const SlotRows& rows, SelectWhen when, const KvSlots& s, const KvTables& pages,
                       std::int32_t layer, std::int32_t slot_layer, std::int32_t max_blocks,
                       const CudaContext& context) {
  RecallArgs args{s, pages, rows, when, layer, slot_layer, 0};
  const int items = rows.n * s.n_kv_heads;
  if (s.n_slots == 0) {
    launch(context, "list_tokens", list_kernel, dim3(kListBlocks, static_cast<unsigned>(items)), dim3(kListThreads), 0,
           args);
    return;
  }
  const bool keeping = s.kept != nullptr, four = s.fetch > 1, waited_for = when == SelectWhen::kNow;
  if (s.unit_tokens == kKvPageTokens) {
    args.stages = waited_for ? kStagesAlone : kStagesBeside;
    keeping ? launch_recall<RecallOf<kKvPageTokens, kRecallThreads, false, true>>(args, max_blocks, context)
            : launch_recall<RecallOf<kKvPageTokens, kRecallThreads, false, false>>(args, max_blocks, context);
  } else if (waited_for) {
    launch_tokens<kMostRecallThreads>(args, four, keeping, 4 * max_blocks, context);
  } else {
    launch_tokens<kRecallThreads>(args, four, keeping, max_blocks, context);
  }
}

void fill_slots_cuda(std::int32_t place, std::int32_t length, const SlotRules& rules, const KvSlots& s,
                     const KvTables& pages, std::int32_t layer, std::int32_t slot_layer, const CudaContext& context) {
  if (s.n_slots == 0) return;
  launch(context, "fill_slots", fill_kernel, dim3(4, static_cast<unsigned>(s.n_kv_heads)), dim3(kThreads), 0,
         FillArgs{s, pages, rules, place, length, layer, slot_layer});
}

void write_back_cuda(const SlotRows& rows, const KvSlots& s, const KvTables& dense, const std::int32_t* numbers,
                     const KvTables& pages, std::int32_t n_layers, const CudaContext& context) {
  const int warps = rows.n * n_layers * s.n_kv_heads, each = kRecallThreads / kWarp;
  launch(context, "write_back", write_back_kernel, dim3(static_cast<unsigned>((warps + each - 1) / each)),
         dim3(kRecallThreads), 0, WriteBackArgs{s, dense, pages, rows, numbers, n_layers});
}

void copy_positions_cuda(const KvTables& to, std::int32_t to_layer, const KvTables& from, std::int32_t from_layer,
                         std::int32_t to_slot, std::int32_t from_slot, std::int32_t first, std::int32_t stop,
                         std::int32_t blocks_a_head, const CudaContext& context) {
  if (stop <= first) return;
  launch(context, "copy_pages", copy_kernel,
         dim3(static_cast<unsigned>(blocks_a_head), static_cast<unsigned>(to.n_kv_heads)), dim3(kThreads), 0,
         CopyArgs{to, from, to_layer, from_layer, to_slot, from_slot, first, stop});
}

void copy_pages_cuda(const KvTables& to, std::int32_t to_layer, const KvTables& from, std::int32_t from_layer,
                     std::int32_t to_slot, std::int32_t from_slot, std::int32_t first, std::int32_t stop,
                     std::int32_t blocks_a_head, const CudaContext& context) {
  copy_positions_cuda(to, to_layer, from, from_layer, to_slot, from_slot, first * kKvPageTokens, stop * kKvPageTokens,
                      blocks_a_head, context);
}

}  // namespace mneme
