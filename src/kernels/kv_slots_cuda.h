// Tokens of sequences whose keys and values lie in host memory, as far as they are on the device: for every (layer that
// reads less than everything, place of a sequence, KV head) some slots, each with room for one unit (a page's block, or
// one token), a table of what is in them, what stands for all units (boxes of pages, or 1-bit keys of tokens), and what
// was chosen of them.
//
// A slot is one of three kinds, in this order:
//
//   [0, sinks)                     unit u is in slot u
//   [sinks, sinks + window)        unit u of the window is in slot sinks + u % window
//   [sinks + window, n_slots)      selected units, whichever
//
// As long as all tokens are attended (length <= budget), unit u is in slot u instead. Where the pages themselves lie on
// the device, tokens have no slots: they are attended where they are.
//
// Units that are lists of tokens (UnitLists) are chosen whole and brought token by token: a slot's unit is then a
// token.
//
// The kernels of a step, in this order: store_qkv_cuda (pointwise_cuda.h) writes the new token where it belongs, keeps
// the box of the open page, and measures how far the queries moved; choose_pages_cuda or choose_tokens_cuda
// (one_bit_cuda.h) ranks; recall_units_cuda brings what is missing and writes down the slots to attend; then attention.
// With SelectWhen::kNext the same two run beside the rest of the step, for the next one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/kernels/cuda_context.h"
#include "src/kernels/group_pool.h"
#include "src/kernels/kv_tables_cuda.h"

namespace mneme {

enum class SlotSchedule : std::int32_t {
  kNone,       // nothing is selected: sinks and window
  kEveryStep,  // with the current query
  kAhead,      // with the query of the step before, unless the gate flags a KV head
  kKept,       // with the current query where those of the layer moved; it stays until they do again
};
// GatePool's, of a KV head's cosines, or (kKept) a layer's; kMass (kAhead): of what this step's query would choose and
// the selection ahead has not, the share of softmax. Then all KV heads choose before the gate is asked.
enum class SlotGate : std::int32_t { kMean, kMax, kAny, kMass };

// By what units are chosen: boxes or 1-bit keys; by lot; the keys themselves (control_choose_cuda.h has the latter
// two).
enum class SlotScore : std::int32_t { kIndex, kDrawn, kKeys };

// What a sequence attends in a layer; regions are src/blocks/region.h's. Layers of a sequence differ in `budget` and
// `n_select` alone.
struct SlotRules {
  std::int32_t unit_tokens = kKvPageTokens;       // 1 or kKvPageTokens
  std::int32_t entry_tokens = kKvPageTokens;      // that an entry of the index covers: a page, or a group of 1-bit keys
                                                  // (kNone in units of tokens: pages of them leave the window whole)
  std::int32_t fetch = 1;                         // of tokens: so many aligned neighbours are brought at once, 1 or 4
  std::int32_t budget = 0, sink = 0, recent = 0;  // tokens; of pages sink and recent are multiples, recent at least 1
  std::int32_t n_select = 0;    // units that the budget has room for, beside sinks and the smallest window
  std::int32_t max_reuse = 0;   // kKept: steps that a selection serves after its own; 0: no limit
  std::int32_t last_asked = 0;  // kKept: not 0: the gate compares with the query of the last selection
  SlotSchedule schedule = SlotSchedule::kNone;
  GroupPool pool = GroupPool::kMeanProb;
  SlotGate gate = SlotGate::kMean;
  SlotScore score = SlotScore::kIndex;
  float alpha = 1, tau = 1;
  float eps = 1;  // SlotGate::kMass: flagged above it
  // For measuring: which units are chosen, and which KV heads moved, is drawn at these rates. Below 0: it is not.
  float turnover = -1, correction = -1;
  std::uint64_t seed = 0;  // kDrawn
  bool operator==(const SlotRules&) const = default;
};

// What one (layer, place) did, in sums over KV heads and steps.
struct SlotCounts {
  std::uint64_t checks = 0, corrections = 0;  // the gate asked, and the gate flagged
  // Units chosen, and those of them that came from the host. Of pages, a KV head that is flagged in the last step of a
  // page has chosen twice: for that step, and for the next one, whose region is another.
  std::uint64_t selected = 0, missing = 0;
  std::uint64_t neighbours = 0;  // that came beside them, see SlotRules::fetch
  std::uint64_t replaced = 0;    // chosen, and not chosen the time before; counted where there are slots
  std::uint64_t made = 0;        // kKept: selections, of all KV heads at once
};

// What a (layer, place) remembers of a selection that is kept.
struct KeptSelection {
  // By choose_*_cuda, for recall_units_cuda of the same step: the number of the selection that the step makes, 0: none.
  std::int32_t made_now = 0;
  // By recall_units_cuda, for choose_*_cuda of the next step.
  std::int32_t n_made = 0, reused = 0;  // selections; steps that the last one served after its own
  std::int32_t n_units = 0;             // that it has, of every KV head; of lists their tokens
};

inline constexpr std::int32_t kBoxesBeyond = 256;  // that may be read after the last one

// 1-bit keys of tokens, in the order in which a warp multiplies them; one_bit.h has the numbers. Everything [layers]
// [places][KV heads] first; a scan reads up to a page of four behind the last one.
//
//   codes   [max_pages][4 D bytes]: of 32 tokens, 0 where a key is at least its zero
//   levels  [groups of max_pages][z: D | s: D] bf16
struct OneBitKeys {
  std::byte* codes = nullptr;
  std::byte* levels = nullptr;
};

// Units that are lists of tokens, of every (layer, place, KV head): unit u is members[ends[u - 1], ends[u]), positions
// in ascending order. Together they are [sink, grouped), each token once; the window is what follows.
//
//   centroids  [max_units][D]  of the dtype of the keys: centroid.h
//   ends       [max_units]
//   members    [max_tokens]
struct UnitLists {
  std::int32_t max_units = 0, max_tokens = 0;  // 0: units are no lists
  std::byte* centroids = nullptr;
  std::int32_t *ends = nullptr, *members = nullptr, *n_units = nullptr;
  std::int32_t* grouped = nullptr;  // [layers][places]
};

struct KvSlots {
  std::int32_t n_layers = 0, n_places = 0, n_kv_heads = 0, n_heads = 0, head_dim = 0;
  std::int32_t unit_tokens = kKvPageTokens;  // 1 or kKvPageTokens: of all places
  std::int32_t group_tokens = 0;             // of 1-bit keys: 32, 64, 128 or 256; 0: boxes, or there is no index
  bool mean_abs = false;                     // OneBitLevels::kMeanAbs
  std::int32_t n_slots = 0;                  // of one (layer, place, KV head); 0: units are attended in their pages
  std::int32_t max_pages = 0;                // of a sequence
  std::int32_t max_listed = 0;               // units that a step may attend
  std::int32_t fetch = 1;                    // the most of SlotRules::fetch
  bool f16 = false;
  // Device memory, everything [layers][places][KV heads] first unless it says otherwise.
  std::byte* slots = nullptr;  // [n_slots] units
  std::byte* boxes = nullptr;  // [max_pages][hi: D | lo: D], of the dtype of the keys; then kBoxesBeyond more
  OneBitKeys keys;             // one_bit_cuda.h
  UnitLists lists;
  std::int32_t* slot_of = nullptr;  // [max_units()]: the slot of a selected unit, -1: none
  std::int32_t* unit_of = nullptr;  // [n_slots]: the unit in a slot of the third kind, -1: none
  std::int32_t* used_at = nullptr;  // [n_slots]: the last length (kKept: selection) for which it was chosen, below 0:
                                    // there is nothing in it, or a neighbour (SlotRules::fetch) that never was
  // By SelectWhen: [max_listed] units, ascending; of lists tokens, the best unit's first. With SlotGate::kMass, when
  // recall_units_cuda was there for the next step, its selection in any case.
  std::int32_t* chosen[2] = {};
  std::int32_t* n_chosen[2] = {};  // by SelectWhen
  std::int32_t* listed = nullptr;  // [max_listed] slots to attend, in the order of their tokens (of lists: sinks, as
                                   // chosen, the window's newest first); without slots, blocks of the pool or tokens of
                                   // it: block * kKvPageTokens + token. SlotRows::tickets: | kOnItsWay
  // SlotRows::tickets: once it stands here, `listed` is written; and all that is on its way has arrived.
  std::int32_t *listed_for = nullptr, *arrived_for = nullptr;
  void* last_q = nullptr;         // [layers][places][heads][D] bf16: of this step, once store_qkv_cuda was there
  void* asked_q = nullptr;        // of the last selection (SlotRules::last_asked); or null
  float* cosine = nullptr;        // [layers][places][heads]: of these with those of the step before, or asked_q
  float* mass = nullptr;          // SlotGate::kMass: what the gate looks at, once choose_*_cuda was there
  KeptSelection* kept = nullptr;  // [layers][places]; null: nothing is kept
  SlotRules* rules = nullptr;     // [layers][places]
  SlotCounts* counts = nullptr;   // [layers][places]
  std::int32_t delay_us = 0;      // for tests: what is missing begins to come up to so much later

  std::size_t token_bytes() const { return 4 * static_cast<std::size_t>(head_dim); }
  std::size_t unit_bytes() const { return token_bytes() * static_cast<std::size_t>(unit_tokens); }
  std::int32_t max_units() const { return max_pages * (kKvPageTokens / unit_tokens); }
  // What attention reads: `listed` as tables whose layers are those here.
  KvTables tables() const {
    return {.base = slots,
            .blocks = listed,
            .sequence_stride = static_cast<std::int64_t>(n_kv_heads) * max_listed,
            .max_pages = max_listed,
            .n_kv_heads = n_kv_heads,
            .head_dim = head_dim,
            .f16 = f16,
            .of_tokens = unit_tokens == 1};
  }
};

// Where the tokens of a step go on the device in place of their pages, until write_back_cuda. Rows whose place is -1
// go to their pages.
struct SlotStore {
  enum class Kind : std::int32_t { kNowhere, kTables, kSlots };
  Kind kind = Kind::kNowhere;
  const std::int32_t* places = nullptr;  // [n]
  KvTables tables;                       // kTables: of a layer that has all pages
  std::int32_t layer = 0;                // of `tables`, or of `slots`
  KvSlots slots;                         // kSlots
};

inline constexpr std::int32_t kMostKvSlots = 8192;        // of a KV head
inline constexpr std::int32_t kMostKvPages = 40 << 10;    // of a sequence: what one block of threads can rank
inline constexpr std::int32_t kMostUnitLists = 24 << 10;  // of a KV head, likewise
// Errors  kUnsupported: more than that.
void expect_slots_cuda(const KvSlots& slots);

// Of an entry of KvSlots::listed: the slot is being filled.
inline constexpr std::uint32_t kOnItsWay = 0x80000000u;

// Rows of a step, one a sequence.   places, lengths, anew, tickets [n] on the device
inline constexpr std::int32_t kNoSelection = 1, kNoQuery = 2;  // bits of SlotRows::anew
struct SlotRows {
  const std::int32_t* places = nullptr;   // -1: no sequence
  const std::int32_t* lengths = nullptr;  // tokens stored, this step's own among them
  const std::int32_t* anew = nullptr;     // not 0: there is no earlier selection that could be attended, or no query
  std::int32_t n = 0;
  // Of pages: a number of this step, another one than that of the step before, and never 0. Then attention of this
  // step, launched right after recall_units_cuda, begins with what is there (ArrivingSlots in attention_cuda.h). Or
  // null.
  const std::int32_t* tickets = nullptr;
};

// kNow: for this step's attention, in the region of this length, the KV heads that cannot attend what was chosen
// before. kNext: for the next step, in the region of one token more, all others (or all, where that region is another).
enum class SelectWhen : std::int32_t { kNow, kNext };

// Scores all boxes of the region with the row's queries (KvSlots::last_q), pools, and writes the n_select best of
// every KV head. All KV heads of a row are chosen for when one of them needs it, or the gate looks at what is missing
// (missing_mass() of group_pool.h; kNext must not begin before kNow has ended then). Rows whose pages are not chosen by
// boxes are left out (SlotRules::score).
//
//   scratch  choose_scratch_bytes(); not shared by launches that may run at once
//
// Numerics  box_score's sums in f32 of exact products; group_pool's in f32.   Ties, NaN  as topk.h.
struct ChoosePages {
  SlotRows rows;
  SelectWhen when = SelectWhen::kNow;
  std::byte* scratch = nullptr;
};
std::size_t choose_scratch_bytes(const KvSlots& slots, std::int32_t n_rows);
void choose_pages_cuda(const ChoosePages& c, const KvSlots& slots, std::int32_t slot_layer, const CudaContext& context);

// The same with units that are lists (kKept alone): the best of them until they have as many tokens as the smallest
// window, or this step's, leaves room for; their tokens, the best unit's first and the last one's cut short, to
// `chosen`. rank.h and centroid.h are the specifications.
std::size_t choose_lists_scratch_bytes(const KvSlots& slots, std::int32_t n_rows);
void choose_lists_cuda(const ChoosePages& c, const KvSlots& slots, std::int32_t slot_layer, const CudaContext& context);

// Brings chosen units that are in no slot out of their pages (`pages`: the sequences' tables, whose blocks may lie in
// mapped host memory), in place of those that were not chosen for longest, and writes `listed`; without slots it does
// the latter alone. With SlotRules::fetch of 4 the candidates among the aligned four of each such token come with it,
// as far as there are slots that hold nothing that was ever chosen. `layer` is the model's, slot_layer the one of
// `slots`. At most max_blocks blocks of threads for single tokens of the next step, twice as many for its pages, and
// four times as many for this step, which waits for them and for little else.
void recall_units_cuda(const SlotRows& rows, SelectWhen when, const KvSlots& slots, const KvTables& pages,
                       std::int32_t layer, std::int32_t slot_layer, std::int32_t max_blocks,
                       const CudaContext& context);

// A place's sequence begins anew at `length` tokens: nothing is selected, its sinks and window (or all of its pages,
// up to the budget) are brought.
void fill_slots_cuda(std::int32_t place, std::int32_t length, const SlotRules& rules, const KvSlots& slots,
                     const KvTables& pages, std::int32_t layer, std::int32_t slot_layer, const CudaContext& context);

// Boxes of pages [first, stop) of a sequence that has n_tokens (the last page may be open), out of `keys`' sequence
// key_slot and layer key_layer.
struct BuildBoxes {
  std::int32_t place = 0, slot_layer = 0, first = 0, stop = 0, n_tokens = 0;
  std::int32_t key_slot = 0, key_layer = 0;
};
void build_boxes_cuda(const BuildBoxes& b, const KvSlots& slots, const KvTables& keys, const CudaContext& context);

// The newest token of every row and layer to its page, out of its slot or, for layers that have all pages, `dense`.
// Once a step: a kernel that writes to host memory ends a microsecond later than one that does not.
//   numbers [n_layers] on the device: the number of a layer among those of `slots`, or -1 - the number in `dense`
void write_back_cuda(const SlotRows& rows, const KvSlots& slots, const KvTables& dense, const std::int32_t* numbers,
                     const KvTables& pages, std::int32_t n_layers, const CudaContext& context);

// Pages [first, stop) of a sequence and layer of one table to those of another, either of which may lie in mapped host
// memory, by so many blocks of threads for each KV head.
void copy_pages_cuda(const KvTables& to, std::int32_t to_layer, const KvTables& from, std::int32_t from_layer,
                     std::int32_t to_slot, std::int32_t from_slot, std::int32_t first, std::int32_t stop,
                     std::int32_t blocks_a_head, const CudaContext& context);
// The same of the pages that have positions [first, stop). Where tokens were dropped, one of the two tables says so,
// and from `first` on none was, or it is 0.
void copy_positions_cuda(const KvTables& to, std::int32_t to_layer, const KvTables& from, std::int32_t from_layer,
                         std::int32_t to_slot, std::int32_t from_slot, std::int32_t first, std::int32_t stop,
                         std::int32_t blocks_a_head, const CudaContext& context);

}  // namespace mneme
