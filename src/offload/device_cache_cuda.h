// Device cache of units whose pages are in host memory.
//
// For every (layer with a budget, sequence slot, KV head): cache slots, each with room for one unit (a page's block, or
// one token); the table of their content; the index of all units (boxes of pages, or 1-bit keys of tokens); and the
// selection.
//
// A cache slot is of one of three kinds, in this order:
//
//   [0, sinks)                     holds unit u = slot
//   [sinks, sinks + window)        unit u of the window is in slot sinks + u % window
//   [sinks + window, n_slots)      selected units, in any order
//
// While all tokens are attended (length <= budget), unit u is in slot u instead. Where the pages themselves are on the
// device, units of tokens have no cache slots: attention reads them in their pages.
//
// Units that are lists of tokens (UnitLists) are selected whole and fetched token by token: the unit of a cache slot is
// then a token.
//
// Kernels of a step, in this order: store_qkv_cuda (src/kv/append/append_cuda.h) stores the new token, updates the box
// of the open page, computes the cosine of this step's and the previous step's queries, and evaluates a gate by
// cosines. select_pages_cuda or select_tokens_cuda (one_bit_cuda.h) selects, and evaluates the other gates
// (src/selection/gate/gate.h). recall_units_cuda fetches the misses and writes the cache slots to attend. Attention
// follows. With SelectWhen::kNext selection and recall run concurrently with the rest of the step, for the next step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/context.h"
#include "src/kv/kv_tables_cuda.h"
#include "src/offload/selection_plan.h"
#include "src/offload/unit_indexes.h"

namespace mneme {

// State of a kept selection, per (layer, sequence slot).
struct KeptSelection {
  // Written by select_*_cuda for recall_units_cuda of the same step: the number of the selection that this step makes;
  // 0: none.
  std::int32_t made_now = 0;
  // Written by recall_units_cuda for select_*_cuda of the next step.
  std::int32_t n_made = 0, reused = 0;  // selections so far; steps that reused the last one
  std::int32_t n_units = 0;             // units of the last selection per KV head; with lists: tokens
};

// Cache slots, and the lists of them that attention reads. Shapes are [layers][seq slots][KV heads] first.
struct CacheSlots {
  std::byte* data = nullptr;        // [n_slots] units
  std::int32_t* slot_of = nullptr;  // [max_units()]: cache slot of a selected unit; -1: none
  std::int32_t* unit_of = nullptr;  // [n_slots]: unit in a cache slot of the third kind; -1: none
  // [n_slots]: length (ScheduleKind::kBoundary: number of the selection) when last selected; below 0: empty.
  std::int32_t* last_used = nullptr;
  // [max_listed]: cache slots to attend, ordered by token (with lists: sinks, selection, window from the newest).
  // Without cache slots: blocks, or tokens of the pool (block * kKvPageTokens + token). SlotRows::tickets: | kInFlight.
  std::int32_t* listed = nullptr;
  // SlotRows::tickets: equal to the ticket once `listed` is written; once all fetches of the step have arrived.
  std::int32_t *listed_for = nullptr, *arrived_for = nullptr;
  std::int32_t* relisted = nullptr;  // after recall_units_cuda for this step: 1 where it wrote `listed`; or null
};

// Selections, and what gates and probes need of queries. Shapes are [layers][seq slots] first.
struct Selections {
  // By SelectWhen: [KV heads][max_listed] unit ids, ascending; with lists, token ids, the best unit's first. With
  // mass gates, once recall_units_cuda ran for the next step, always its selection.
  std::int32_t* ids[2] = {};
  std::int32_t* n[2] = {};        // by SelectWhen: [KV heads]
  void* last_q = nullptr;         // [heads][D] bf16: queries of this step, after store_qkv_cuda
  void* asked_q = nullptr;        // queries of the last selection (GateReference::kLastRetrieval); or null
  float* cosine = nullptr;        // [heads]: cosine of last_q with the previous step's queries, or asked_q
  float* mass = nullptr;          // [KV heads], mass gates: missing mass, after select_*_cuda
  std::int32_t* flags = nullptr;  // [KV heads]: the gate's decision, 1: attends a selection made with this step's query
  KeptSelection* kept = nullptr;  // null: no kept selections
  bool whole_attention = false;   // some plan has Domain::kAttention
};

struct DeviceCache {
  std::int32_t n_layers = 0, n_seq_slots = 0, n_kv_heads = 0, n_heads = 0, head_dim = 0;
  // Where every query head selects for itself, n_kv_heads is the number of query heads: so many of them have one KV head
  // of the model, each with cache slots and an index of its own.
  std::int32_t shared = 1;
  std::int32_t unit_tokens = kKvPageTokens;  // 1 or kKvPageTokens, the same for all sequence slots
  std::int32_t n_slots = 0;     // cache slots of one (layer, seq slot, KV head); 0: units are attended in their pages
  std::int32_t max_pages = 0;   // per sequence
  std::int32_t max_listed = 0;  // units that a step may attend
  std::int32_t select_tokens = 1;  // least SelectionPlan::Units::select_tokens
  bool f16 = false;
  KvCodes codes = KvCodes::kNone;
  // Device memory.
  CacheSlots slots;
  UnitIndexes index;
  Selections selection;
  SelectionPlan* plans = nullptr;  // [layers][seq slots]
  SlotCounts* counts = nullptr;    // [layers][seq slots]

  // Bytes of a token's keys and values, of a box [hi: D | lo: D], of a unit.
  MNEME_HOST_DEVICE std::int64_t token_bytes() const { return kv_token_bytes(codes, head_dim); }
  MNEME_HOST_DEVICE std::int64_t box_bytes() const { return std::int64_t{4} * head_dim; }
  MNEME_HOST_DEVICE std::int64_t unit_bytes() const { return token_bytes() * unit_tokens; }
  MNEME_HOST_DEVICE std::int32_t max_units() const { return max_pages * (kKvPageTokens / unit_tokens); }
  // `listed` as page tables for attention; their layers are those here.
  KvTables tables() const {
    return {.base = slots.data,
            .blocks = slots.listed,
            .sequence_stride = static_cast<std::int64_t>(n_kv_heads) * max_listed,
            .max_pages = max_listed,
            .n_kv_heads = n_kv_heads,
            .head_dim = head_dim,
            .f16 = f16,
            .codes = codes,
            .of_tokens = unit_tokens == 1};
  }
};

// Where the new tokens of a step are stored on the device until write_back_cuda. Rows with sequence slot -1 store to
// their pages.
struct SlotStore {
  enum class Kind : std::int32_t { kNowhere, kTables, kSlots };
  Kind kind = Kind::kNowhere;
  const std::int32_t* seq_slots = nullptr;  // [n]
  KvTables tables;                          // kTables: tables of a layer with all pages on the device
  std::int32_t layer = 0;                   // layer of `tables`, or of `slots`
  DeviceCache cache;                        // kSlots
};

inline constexpr std::int32_t kMaxSlotHeadDim = 256;
inline constexpr std::int32_t kMaxKvSlots = 8192;        // per KV head
inline constexpr std::int32_t kMaxKvPages = 40 << 10;    // per sequence: what one thread block can rank
inline constexpr std::int32_t kMaxUnitLists = 24 << 10;  // per KV head, likewise
// Errors  kUnsupported: above one of these limits.
void expect_slots_cuda(const DeviceCache& cache);

// Bit of an entry of CacheSlots::listed: the fetch into this cache slot is in flight.
inline constexpr std::uint32_t kInFlight = 0x80000000u;

// Rows of a step, one per sequence.   seq_slots, lengths, reset, tickets [n] on the device
inline constexpr std::int32_t kNoSelection = 1, kNoQuery = 2;  // bits of SlotRows::reset
struct SlotRows {
  const std::int32_t* seq_slots = nullptr;  // -1: no sequence
  const std::int32_t* lengths = nullptr;    // tokens stored, including this step's
  const std::int32_t* reset = nullptr;  // bits: no previous selection (kNoSelection), or no previous query (kNoQuery)
  std::int32_t n = 0;
  // With pages: a number that differs from the previous step's and is never 0. Attention of this step, launched right
  // after recall_units_cuda, then starts with the hits (ArrivingSlots in attention_cuda.h). Null: attention waits for
  // all fetches.
  const std::int32_t* tickets = nullptr;
};

// kNow: for this step's attention, in the region of this length: KV heads that cannot attend their previous selection.
// kNext: for the next step, in the region of one more token: all other KV heads (all, where the regions differ).
enum class SelectWhen : std::int32_t { kNow, kNext };

// Scores all boxes of the region with the row's queries (Selections::last_q), pools over the group, and writes the
// n_select best units of every KV head.
//
// All KV heads of a row select when one of them needs it, or when the gate compares missing mass (missing_mass() of
// group_pool.h; kNext must then not start before kNow has ended).
//
//   of_entries  false: pages of 32 by UnitIndexes::boxes. true: pages of SelectionPlan::Units::select_tokens by
//               UnitEntries of kind kMinMaxBox, behind which kBoxesBeyond more may be read; their tokens are written. Rows
//               of the other kind (SelectionPlan::Scores::own_arrays) are skipped.
//   scratch     select_scratch_bytes(); not shared by launches that may overlap
//
// Requires  select_pages_takes(); heads of 64 or 128 channels.
//
// Numerics  box_score: f32 sums of exact products; group_pool: f32.   Ties, NaN  as topk.h.
// Async  enqueues.
struct SelectPages {
  SlotRows rows;
  SelectWhen when = SelectWhen::kNow;
  std::byte* scratch = nullptr;
  bool of_entries = false;
};
std::size_t select_scratch_bytes(const DeviceCache& cache, std::int32_t n_rows, bool of_entries = false);
// Whether a KV head's pages fit what one thread block ranks.
bool select_pages_takes(const DeviceCache& cache, bool of_entries);
void select_pages_cuda(const SelectPages& c, const DeviceCache& cache, std::int32_t slot_layer,
                       const CudaContext& context);

// The same for units that are lists (ScheduleKind::kBoundary alone): takes the best units until their tokens fill what
// the smallest window, or this step's, leaves. Writes their tokens to `selected_ids`, the best unit first, the last unit
// truncated. Specified by rank.h and centroid.h.
std::size_t select_lists_scratch_bytes(const DeviceCache& cache, std::int32_t n_rows);
void select_lists_cuda(const SelectPages& c, const DeviceCache& cache, std::int32_t slot_layer,
                       const CudaContext& context);

// Fetches the misses of the selection from their pages, evicting the least recently selected units, and writes
// `listed`. Without cache slots it only writes `listed`.
//
//   pages      page tables of the sequences; blocks may be in mapped host memory
//   layer      the model's; slot_layer: the layer's index in `slots`
//   max_blocks thread blocks for single tokens of the next step; twice as many for its pages; for this step, which waits
//              for the recall and little else, four times as many for tokens, 24 times as many for pages
//
// Async  enqueues.
void recall_units_cuda(const SlotRows& rows, SelectWhen when, const DeviceCache& cache, const KvTables& pages,
                       std::int32_t layer, std::int32_t slot_layer, std::int32_t max_blocks,
                       const CudaContext& context);

// (Re)starts a sequence slot at `length` tokens: clears the selection and fetches sinks and window (or all pages, up to
// the budget).
void fill_slots_cuda(std::int32_t seq_slot, std::int32_t length, const SelectionPlan& plan, const DeviceCache& cache,
                     const KvTables& pages, std::int32_t layer, std::int32_t slot_layer, const CudaContext& context);

// A layer of a sequence in the index, and (key_*) in the table of keys that it is built from.
struct IndexedLayer {
  std::int32_t seq_slot = 0, slot_layer = 0, key_slot = 0, key_layer = 0;
};

// Entries [first, stop) of an index (UnitIndexes::entries).   n_tokens: of the sequence, where the last entry may be open;
// 0: all are complete
struct BuildEntries {
  IndexedLayer of;
  std::int32_t first = 0, stop = 0, n_tokens = 0;
};

// The entries that the rows' newest tokens complete, in slot layers [first, stop). Keys are read from the cache slots, or,
// where there are none, from the pages, in layers model_layers[slot layer] (on the device).
struct CloseEntries {
  SlotRows rows;
  std::int32_t first = 0, stop = 0;
  const std::int32_t* model_layers = nullptr;
};

// Copies the newest token of every row and layer to its page, from its cache slot or, for layers with all pages on the
// device, from `dense`. One launch per step: a kernel that writes host memory ends 1 us later than one that does not.
//   numbers [n_layers] on the device: the layer's index in `slots`, or -1 - its index in `dense`
void write_back_cuda(const SlotRows& rows, const DeviceCache& cache, const KvTables& dense, const std::int32_t* numbers,
                     const KvTables& pages, std::int32_t n_layers, const CudaContext& context);

// Copies the pages that store positions [first, stop), either of which may be in mapped host memory. Launches
// blocks_a_head thread blocks per KV head.
//
// Requires  where tokens were dropped, one of the tables has shifts and masks, and `first` is 0 or a
//           position from which on every head stores every token.
void copy_pages_cuda(const LayerPages& to, const LayerPages& from, std::int32_t first, std::int32_t stop,
                     std::int32_t blocks_a_head, const CudaContext& context);

}  // namespace mneme
