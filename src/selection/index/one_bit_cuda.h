// 1-bit keys on the device (UnitIndexes::keys, which build_unit_entries_cuda() builds), and selection of tokens by them.
// one_bit.h, group_pool.h and topk.h are the specifications; z, s and bits are the same, their order in memory differs.
// Async: all functions enqueue.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/offload/device_cache_cuda.h"

namespace mneme {

// Bytes of OneBitKeys for `heads` (layer, sequence slot, KV head) triples.
std::size_t one_bit_code_bytes(const DeviceCache& cache, std::size_t heads);
std::size_t one_bit_level_bytes(const DeviceCache& cache, std::size_t heads);

// Scores all tokens of the region with the row's queries (Selections::last_q), pools over the group, and writes the
// n_select best tokens of every KV head to `selected_ids`.
//
// kNow selects for this step: for rows that select at every step, and for rows with speculative selection where the
// gate flags the KV head (or compares missing mass, see select_pages_cuda). kNext selects for the next step, for rows
// with speculative selection, from the same scores: it must start after kNow has ended and use the same scratch.
//
//   scratch  select_tokens_scratch_bytes(); not shared by launches that may overlap
//
// Requires   rows, rules and `pages` are written before the first of the overlapping kernels (LaunchOrder) starts.
// Numerics   f32 sums of exact products; group_pool in f32.
// Ties, NaN  as topk.h.
struct SelectTokens {
  SlotRows rows;
  SelectWhen when = SelectWhen::kNow;
  std::byte* scratch = nullptr;
  // The index, too, is written before then, and is read before grid_dependency_wait().
  bool early = false;
  // Without cache slots: the sequences' page tables and the model's layer. kNow then selects for both steps and writes
  // `listed` for this step, so that no recall_units_cuda follows for it.
  const KvTables* pages = nullptr;
  std::int32_t layer = 0;
  // Tokens are scored by the sketches of their pages (sketch.h, DeviceCache::entries) with these HeadTerms
  // (unfused_item.cuh), by up to 8 query heads a KV head; null: by 1-bit keys.
  void* sketch_terms = nullptr;
  bool terms_of_scan = false;  // scan_computes_terms(): the scan writes them first
};
std::size_t select_tokens_scratch_bytes(const DeviceCache& cache, std::int32_t n_rows);
void select_tokens_cuda(const SelectTokens& c, const DeviceCache& cache, std::int32_t slot_layer,
                        const CudaContext& context);
// Whether the scan by sketches computes HeadTerms itself: a cluster of thread blocks a KV head, where that is enough to
// fill the device. llama-2-7b at 32K: a launch fewer a layer.
bool scan_computes_terms(const DeviceCache& cache, std::int32_t n_rows);
// The scores alone, for benchmarks of the scan.
void scan_tokens_cuda(const SelectTokens& c, const DeviceCache& cache, std::int32_t slot_layer,
                      const CudaContext& context);

}  // namespace mneme
