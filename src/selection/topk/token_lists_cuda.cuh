// Lists the tokens that rows without cache slots attend (CacheSlots::listed), beside the selected ones. Written by the
// kernel that selects: another launch took 4 us per layer.
#pragma once

#include "src/selection/topk/token_selection_cuda.cuh"

namespace mneme::cuda::tokens {

// A KV head's tokens that are never selected: [0, first), and after the selection [window, stop).
struct Others {
  int first, n_selected, window, stop;
};
__device__ inline Others others_of(const SlotRow& r) {
  if (!r.sparse) return {0, 0, 0, r.length};
  const PageRegion region = page_region(r.plan, r.length);
  return {region.first, region.n_select, region.window, region.stop};
}

__device__ inline void list_others(const TokenArgs& p, const SlotRow& r, int kv_head, int rank, int blocks) {
  const Others o = others_of(r);
  std::int32_t* listed = p.s.slots.listed + slot_index(p.s, p.layer, r.seq_slot, kv_head) * p.s.max_listed;
  const int n = static_cast<int>(blockDim.x);
  for (int i = rank * n + static_cast<int>(threadIdx.x); i < o.first + o.stop - o.window; i += blocks * n) {
    const bool sink = i < o.first;
    listed[sink ? i : i + o.n_selected] =
        unit_token(p.pages, 1, p.model_layer, r.seq_slot, kv_head, sink ? i : i - o.first + o.window);
  }
}

// Before the selection: lists what a KV head attends in any case, and locates the pages of a block's share.
__device__ inline void list_early(const TokenArgs& p, const TokenRegion& info, int row, int kv_head, int rank,
                                  int blocks, int share, std::int32_t* tables) {
  const SlotRow r = row_at(p.s, p.rows, row);
  if (r.seq_slot < 0) return;
  const int begin = rank * share, stop = min(info.n_now, begin + share), page = (info.base + begin) / kKvPageTokens;
  for (int i = static_cast<int>(threadIdx.x); begin + i * kKvPageTokens < stop; i += static_cast<int>(blockDim.x))
    tables[i] = block_number(p.pages, p.model_layer, r.seq_slot, kv_head, page + i);
  if (info.speculative) return;
  list_others(p, r, kv_head, rank, blocks);
  if (rank == 0 && threadIdx.x == 0 && info.n_select_now > 0)
    add_count(p.s.counts[kept_index(p.s, p.layer, r.seq_slot)].selected, info.n_select_now);
}

// For a row with speculative selection, once the gate is known: lists the speculative selection, with the step's own
// token last, or this step's selection.
__device__ inline void list_late(const TokenArgs& p, bool flagged, int row, int kv_head, int rank, int blocks) {
  const SlotRow r = row_at(p.s, p.rows, row);
  if (flagged) list_others(p, r, kv_head, rank, blocks);
  if (rank > 0 || threadIdx.x > 0) return;
  SlotCounts& counts = p.s.counts[kept_index(p.s, p.layer, r.seq_slot)];
  if (!r.reset) add_count(counts.checks, 1);
  if (flagged) {
    if (!r.reset) add_count(counts.corrections, 1);
    add_count(counts.selected, others_of(r).n_selected);
    return;
  }
  list_newest(p.s, p.pages, p.model_layer, p.layer, r, kv_head);
}

}  // namespace mneme::cuda::tokens
