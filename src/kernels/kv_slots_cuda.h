// Pages of sequences whose keys and values lie in host memory, as far as they are on the device: for every (layer that
// reads less than everything, place of a sequence, KV head) some slots, each with room for one page's block, a table of
// what is in them, the boxes of all pages, and what was chosen of them.
//
// A slot is one of three kinds, in this order:
//
//   [0, sinks)                     page p is in slot p
//   [sinks, sinks + window)        page p of the window is in slot sinks + p % window
//   [sinks + window, n_slots)      selected pages, whichever
//
// As long as all tokens are attended (length <= budget), page p is in slot p instead.
//
// The kernels of a step, in this order: store_qkv_cuda (pointwise_cuda.h) writes the new token where it belongs, keeps
// the box of the open page, and measures how far the queries moved; choose_pages_cuda ranks; recall_pages_cuda brings
// what is missing and writes down the slots to attend; then attention. With SelectWhen::kNext the same two run beside
// the rest of the step, for the next one.
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
  kAhead,      // with the query of the step before, unless a KV head's queries moved
};
enum class SlotGate : std::int32_t { kMean, kMax, kAny };  // GatePool's, of a KV head's cosines

// What a sequence attends; regions are src/blocks/region.h's, with units of one page.
struct SlotRules {
  std::int32_t budget = 0, sink = 0, recent = 0;  // tokens; sink and recent are multiples of a page, recent at least 1
  std::int32_t n_select = 0;                      // pages that the budget has room for, beside sinks and window
  SlotSchedule schedule = SlotSchedule::kNone;
  GroupPool pool = GroupPool::kMeanProb;
  SlotGate gate = SlotGate::kMean;
  float alpha = 1, tau = 1;
  // For measuring: which pages are chosen, and which KV heads moved, is drawn at these rates. Below 0: it is not.
  float turnover = -1, correction = -1;
  bool operator==(const SlotRules&) const = default;
};

// What one (layer, place) did, in sums over KV heads and steps.
struct SlotCounts {
  std::uint64_t checks = 0, corrections = 0;  // the gate asked, and the gate flagged
  std::uint64_t selected = 0, missing = 0;    // pages chosen, and those of them that came from the host
  std::uint64_t replaced = 0;                 // chosen, and not chosen the time before
};

inline constexpr std::int32_t kBoxesBeyond = 256;  // that may be read after the last one

struct KvSlots {
  std::int32_t n_layers = 0, n_places = 0, n_kv_heads = 0, n_heads = 0, head_dim = 0;
  std::int32_t n_slots = 0;     // of one (layer, place, KV head)
  std::int32_t max_pages = 0;   // of a sequence
  std::int32_t max_listed = 0;  // pages that a step may attend
  bool f16 = false;
  // Device memory, everything [layers][places][KV heads] first unless it says otherwise.
  std::byte* slots = nullptr;       // [n_slots] blocks
  std::byte* boxes = nullptr;       // [max_pages][hi: D | lo: D], of the dtype of the keys; then kBoxesBeyond more
  std::int32_t* slot_of = nullptr;  // [max_pages]: the slot of a selected page, -1: none
  std::int32_t* page_of = nullptr;  // [n_slots]: the page in a slot of the third kind, -1: none
  std::int32_t* used_at = nullptr;  // [n_slots]: the last length for which it was chosen
  std::int32_t* chosen[2] = {};     // by SelectWhen: [max_listed] pages, ascending
  std::int32_t* n_chosen[2] = {};   // by SelectWhen
  std::int32_t* listed = nullptr;   // [max_listed] slots to attend, in the order of their tokens
  void* last_q = nullptr;           // [layers][places][heads][D] bf16: of this step, once store_qkv_cuda was there
  float* cosine = nullptr;          // [layers][places][heads]: of these with those of the step before
  SlotRules* rules = nullptr;       // [places]
  SlotCounts* counts = nullptr;     // [layers][places]

  std::size_t token_bytes() const { return 4 * static_cast<std::size_t>(head_dim); }
  std::size_t block_bytes() const { return token_bytes() * kKvPageTokens; }
  // What attention reads: `listed` as tables whose layers are those here.
  KvTables tables() const {
    return {.base = slots,
            .blocks = listed,
            .sequence_stride = static_cast<std::int64_t>(n_kv_heads) * max_listed,
            .max_pages = max_listed,
            .n_kv_heads = n_kv_heads,
            .head_dim = head_dim,
            .f16 = f16};
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

inline constexpr std::int32_t kMostKvSlots = 4096;      // of a KV head
inline constexpr std::int32_t kMostKvPages = 40 << 10;  // of a sequence: what one block of threads can rank
// Errors  kUnsupported: more than that.
void expect_slots_cuda(const KvSlots& slots);

// Rows of a step, one a sequence.   places, lengths, anew [n] on the device
struct SlotRows {
  const std::int32_t* places = nullptr;   // -1: no sequence
  const std::int32_t* lengths = nullptr;  // tokens stored, this step's own among them
  const std::int32_t* anew = nullptr;     // not 0: there is no earlier selection that could be attended
  std::int32_t n = 0;
};

// kNow: for this step's attention, in the region of this length, the KV heads that cannot attend what was chosen
// before. kNext: for the next step, in the region of one token more, all others (or all, where that region is another).
enum class SelectWhen : std::int32_t { kNow, kNext };

// Scores all boxes of the region with the row's queries (KvSlots::last_q), pools, and writes the n_select best of
// every KV head. All KV heads of a row are chosen for when one of them needs it.
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

// Brings chosen pages that are in no slot out of their blocks (`pages`: the sequences' tables, whose blocks may lie in
// mapped host memory), in place of those that were not chosen for longest, and writes `listed`. `layer` is the model's,
// slot_layer the one of `slots`. At most max_blocks blocks of threads.
void recall_pages_cuda(const SlotRows& rows, SelectWhen when, const KvSlots& slots, const KvTables& pages,
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

}  // namespace mneme
