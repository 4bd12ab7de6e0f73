// Tokens of the entries that a kernel builds, for every index: of a prompt's chunk, or of the entry that a step's token
// completes.
#pragma once

#include "src/offload/device_cache_cuda.cuh"

namespace mneme::cuda {

struct BuildArgs {
  DeviceCache s;
  KvTables keys;
  BuildEntries b;
  __device__ __forceinline__ std::int64_t index(int kv_head) const {
    return slot_index(s, b.slot_layer, b.seq_slot, kv_head);
  }
  __device__ __forceinline__ const std::byte* token(int kv_head, int position) const {
    return keys.base + unit_token(keys, 1, b.key_layer, b.key_slot, kv_head, position) * token_bytes(s);
  }
};

struct CloseArgs {
  DeviceCache s;
  KvTables pages;
  CloseEntries c;
};

// A row's entry of a layer, whose last token is the step's.
struct ClosedEntry {
  const CloseArgs& p;
  const SelectionPlan& plan;
  int layer, seq_slot, kv_head, length, first;
  std::int64_t index;

  // False: the step completes none.
  static __device__ __forceinline__ bool is_closed(const CloseArgs& p, int row, int tokens) {
    return p.c.rows.seq_slots[row] >= 0 && p.c.rows.lengths[row] % tokens == 0;
  }
  __device__ __forceinline__ ClosedEntry(const CloseArgs& args, int row, int of_layer, int head, int tokens)
      : p(args),
        plan(args.s.plans[of_layer * args.s.n_seq_slots + args.c.rows.seq_slots[row]]),
        layer(of_layer),
        seq_slot(args.c.rows.seq_slots[row]),
        kv_head(head),
        length(args.c.rows.lengths[row]),
        first(length - tokens),
        index(slot_index(args.s, layer, seq_slot, head)) {}
  // The i-th token: tokens of the window are in their cache slots; where it is shorter than an entry, the others are in
  // the pages.
  __device__ __forceinline__ const std::byte* token(int i) const {
    const int from = p.s.n_slots == 0               ? length
                     : length <= plan.region.budget ? 0
                                                    : length - window_slots(plan) * p.s.unit_tokens;
    if (first + i >= from) return resident_token(p.s, plan, layer, seq_slot, kv_head, first + i, length);
    return p.pages.base +
           unit_token(p.pages, 1, p.c.model_layers[layer], seq_slot, kv_head, first + i) * token_bytes(p.s);
  }
};

}  // namespace mneme::cuda
