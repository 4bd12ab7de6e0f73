// Keys in one bit a channel on the device (KvSlots::keys), and tokens chosen by them. one_bit.h, group_pool.h and
// topk.h are the specifications: z, s and bits are theirs; their order in memory is not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/kernels/kv_slots_cuda.h"

namespace mneme {

// Bytes of OneBitKeys for so many (layer, place, KV head).
std::size_t one_bit_code_bytes(const KvSlots& slots, std::size_t heads);
std::size_t one_bit_level_bytes(const KvSlots& slots, std::size_t heads);

// Groups [first, stop), complete ones, of a sequence, out of `keys`' sequence key_slot and layer key_layer.
struct BuildOneBit {
  std::int32_t place = 0, slot_layer = 0, first = 0, stop = 0;
  std::int32_t key_slot = 0, key_layer = 0;
};
void build_one_bit_cuda(const BuildOneBit& b, const KvSlots& slots, const KvTables& keys, const CudaContext& context);

// The groups that the rows' newest tokens complete, in slot layers [first, stop). Keys are read in the slots, or where
// there are none in `pages`, in layers model_layers[slot layer] [on the device].
struct CloseOneBit {
  SlotRows rows;
  std::int32_t first = 0, stop = 0;
  const std::int32_t* model_layers = nullptr;
};
void close_one_bit_cuda(const CloseOneBit& c, const KvSlots& slots, const KvTables& pages, const CudaContext& context);

// kNow: scores all tokens of the region with the row's queries (KvSlots::last_q), pools, and writes the n_select best
// of every KV head to `chosen` for this step: of a row that selects at every step, and of one that selects a step ahead
// where the gate flags the KV head (or looks at what is missing, see choose_pages_cuda). kNext, which may begin once
// that has ended and has the same scratch: of rows that select ahead the best for the next step, out of the same
// scores.
//
//   scratch  choose_tokens_scratch_bytes(); not shared by choices that may run at once
//
// Requires  rows, rules and `pages` are there before the first of the kernels that overlap (LaunchOrder) begins.
// Numerics  sums in f32 of exact products, group_pool's in f32.   Ties, NaN  as topk.h.
struct ChooseTokens {
  SlotRows rows;
  SelectWhen when = SelectWhen::kNow;
  std::byte* scratch = nullptr;
  // So is the index, and it is read before the kernel before this one ends.
  bool early = false;
  // Where tokens have no slots: the sequences' tables and the model's layer. Then kNow chooses for both steps, and
  // writes `listed` too, as recall_units_cuda writes it for this step, which does not follow.
  const KvTables* pages = nullptr;
  std::int32_t layer = 0;
};
std::size_t choose_tokens_scratch_bytes(const KvSlots& slots, std::int32_t n_rows);
void choose_tokens_cuda(const ChooseTokens& c, const KvSlots& slots, std::int32_t slot_layer,
                        const CudaContext& context);
// The scores alone: what reads the index, to be measured by itself.
void scan_tokens_cuda(const ChooseTokens& c, const KvSlots& slots, std::int32_t slot_layer, const CudaContext& context);

}  // namespace mneme
