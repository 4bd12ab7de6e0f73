// Unfused selection on the device: any index, pool, gate and schedule, by plain kernels one after the other (score to
// memory, pool, top-k). It runs what no fused selection (device_cache_cuda.h, one_bit_cuda.h) covers, and is what those are
// tested against. UnitIndex of src/selection/index/unit_index.h is the specification.
//
//   terms   where summaries or a softmax over the whole attention need them: what a query head adds to every unit
//   score   one warp a unit: [query head, unit] f32 to scratch, over the whole device
//   layer   one selection for all KV heads of a layer: pooled scores of the KV heads to one row
//   rank    a cluster a KV head, or one thread block: log-sum-exps, pool, top-k, held units, missing mass, token ids
//
// Numerics   random scores equal the CPU's, bit for bit. f32 sums of exact products (q as the model rotated it, bf16);
//            a page's log-sum-exp and group_pool in f32.
// Ties, NaN  as topk.h.
// Async      enqueues; allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/offload/device_cache_cuda.h"

namespace mneme {

// For rows without SelectionPlan::Scores::own_arrays: selects as select_pages_cuda (device_cache_cuda.h) does, and
// writes units to Selections::ids; with SelectionPlan::Units::select_tokens above 1 the tokens of the selected units.
//
//   pages    page tables of the sequences; keys are read there, blocks may be in mapped host memory
//   layer    of the model: the layer of `pages`, and part of the random seed
//   scratch  unfused_select_scratch_bytes(); not shared by launches that may overlap
struct UnfusedSelect {
  SlotRows rows;
  SelectWhen when = SelectWhen::kNow;
  KvTables pages;
  std::int32_t layer = 0;
  bool pools_layers = false;  // some row has SelectScope::kLayer
  // Single tokens by sketches at every step, by pooled scores alone: scan and selection of 1-bit keys (one_bit_cuda.h).
  // select_tokens_scratch_bytes(); null: as all others.
  std::byte* token_scratch = nullptr;
  bool lists = false;  // with token_scratch: writes CacheSlots::listed too (SelectTokens::pages)
  // Pages of 32 by sketches of up to 16 coefficients, by pooled scores, for heads of 64 or 128 with at most eight query
  // heads a KV head: the fused selection (sketch_pages_cuda.cu).
  bool sketch_pages = false;
  std::byte* scratch = nullptr;
};
std::size_t unfused_select_scratch_bytes(const DeviceCache& cache, std::int32_t n_rows);
void unfused_select_cuda(const UnfusedSelect& c, const DeviceCache& cache, std::int32_t slot_layer,
                         const CudaContext& context);

}  // namespace mneme
