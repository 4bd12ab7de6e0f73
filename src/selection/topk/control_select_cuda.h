// Controls on the device: units selected at random, or by the keys themselves. RandomIndex and RawKeyIndex of
// src/selection/index/unit_index.h are the specifications.
//
// Numerics   random scores equal the CPU's, bit for bit. Products with keys are exact (q in the keys' type); their
// sums, a page's log-sum-exp and group_pool in f32.
// Ties, NaN  as topk.h.
// Async      enqueues; allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/offload/kv_slots_cuda.h"

namespace mneme {

// For rows with SlotRules::score kRandom or kKeys that select with this step's query (kEveryStep): writes the n_select
// best units of every KV head to KvSlots::selected_ids[0].
//
//   pages    page tables of the sequences; keys are read there, blocks may be in mapped host memory
//   layer    of the model: the layer of `pages`, and part of the random seed
//   scratch  select_controls_scratch_bytes(); not shared by launches that may overlap
struct SelectControls {
  SlotRows rows;
  KvTables pages;
  std::int32_t layer = 0;
  std::byte* scratch = nullptr;
};
std::size_t select_controls_scratch_bytes(const KvSlots& slots, std::int32_t n_rows);
void select_controls_cuda(const SelectControls& c, const KvSlots& slots, std::int32_t slot_layer,
                          const CudaContext& context);

}  // namespace mneme
