// What the controls choose on the device: units by lot, or by the keys themselves. RandomIndex and RawKeyIndex of
// src/blocks/unit_index.h are the specifications.
//
// Numerics  what is drawn is the CPU's, bit for bit. Products with keys are exact (q in the keys' type), their sums, a
//           page's log-sum-exp and group_pool's sums in f32.
// Ties, NaN  as topk.h.
// Async     enqueues; allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/kernels/kv_slots_cuda.h"

namespace mneme {

// Of the rows whose SlotRules::score is kDrawn or kKeys, and which select with this step's query (kEveryStep): the
// n_select best of every KV head to KvSlots::chosen[0].
//
//   pages    the sequences' tables, whose blocks may lie in mapped host memory: keys are read there
//   layer    of the model: that of `pages`, and part of what is drawn
//   scratch  choose_controls_scratch_bytes(); not shared by launches that may run at once
struct ChooseControls {
  SlotRows rows;
  KvTables pages;
  std::int32_t layer = 0;
  std::byte* scratch = nullptr;
};
std::size_t choose_controls_scratch_bytes(const KvSlots& slots, std::int32_t n_rows);
void choose_controls_cuda(const ChooseControls& c, const KvSlots& slots, std::int32_t slot_layer,
                          const CudaContext& context);

}  // namespace mneme
