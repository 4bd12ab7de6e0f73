// What a state of methods that select is: its needs, the sizes of its device cache, and what follows from them for the
// launches of a step.
#pragma once

#include <cstdint>

#include "src/kv/page_pool.h"
#include "src/model/cuda/retrieval/retrieval_layers.h"
#include "src/model/cuda/retrieval/retrieval_needs.h"

namespace mneme {

class RetrievalTraits {
 public:
  // Errors  kUnsupported.
  RetrievalTraits(const KvShape& shape, std::int32_t n_heads, CudaRetrievalNeeds needs,
                  const CudaRetrievalOptions& options);

  const KvShape& shape() const { return shape_; }
  const CudaRetrievalNeeds& needs() const { return needs_; }
  const CudaRetrievalOptions& options() const { return options_; }
  const DeviceCache& device_cache() const { return view_; }
  std::int32_t n_rows() const { return n_rows_; }  // decode rows of a step, including a graph's padding
  bool uses(RetrievalUse use) const { return needs_.uses.has(use); }
  const RetrievalLayers& layers() const { return layers_; }
  std::int32_t slot_layer(std::int32_t layer) const { return layers_.slot_layer(layer); }
  std::int32_t n_selecting() const { return layers_.n_selecting(); }

  bool two_parts() const { return needs_.two_parts; }
  bool by_layer() const { return needs_.keys.by_layer; }
  bool pre_rope_keys() const { return needs_.ring_pages > 0; }
  bool selects() const { return uses(RetrievalUse::kSelects); }          // some plan selects,
  bool speculative() const { return uses(RetrievalUse::kSpeculative); }  // and does so one step ahead
  bool groups() const { return needs_.keys.fused_entries && is_one_bit(needs_.keys.entries.kind); }  // of 1-bit keys
  bool of_lists() const { return view_.index.lists.max_units > 0; }
  // Whether there is something that close_groups() completes, and whether it must do so before select().
  bool closes() const { return needs_.keys.entries.kind != EntryKind::kNone; }
  bool closes_first() const { return uses(RetrievalUse::kNewest); }
  // Whether, after recall(), the rows attend only what keep_top_p() keeps of it.
  bool prunes() const { return uses(RetrievalUse::kPrunes); }
  // Whether recall() lists a step's units.
  bool recalls() const { return !(in_pages_ && by_layer()); }
  // Whether select() lists for this step what recall() would.
  bool lists_as_selected() const { return in_pages_ && selects() && (groups() || scans_sketches()); }
  // Whether select() for the next step reuses the scores of the one for this step.
  bool shares_scores() const { return speculative() && groups() && !in_pages_; }
  // Whether a selection for the next step must start after the one for this step has ended.
  bool selects_in_sequence() const { return uses(RetrievalUse::kMassGate) || shares_scores(); }
  // Whether hits are attended while recall() fetches the misses: attention with SlotRows::tickets is launched right
  // after it. Where most heads attend the speculative selection it costs more than it gains (freekv at 128K: 5.21 ms a
  // step in place of 5.14 without corrections, equal with 20 %).
  bool merges() const { return selects() && !speculative() && !two_parts() && !prunes() && caches_pages(); }
  // Whether the lists of the step before are attended while select() runs for this step, and then again those of flagged
  // heads, which recall() has written (CacheSlots::relisted). With a gate by mass, where all heads select before one is
  // flagged: `mneme` at 128K takes 5.8 ms a step in place of 6.1 without corrections (H200), as long as before with 20 %.
  // With a gate by cosines, whose selection few layers wait for, nothing is gained: 4.88 and 5.74 ms in place of 4.86
  // and 5.69.
  bool attends_early() const { return uses(RetrievalUse::kMassGate) && !two_parts() && !prunes() && caches_pages(); }

  // CudaRetrievalNeeds::Keys::fused_entries of each kind; pages by boxes as long as one thread block ranks them.
  bool scans_sketches() const;
  bool selects_sketch_pages() const;
  bool selects_small_pages() const;

  // Tokens of an entry of the index: a page, a group of 1-bit keys.
  std::int32_t entry_tokens() const { return closes() ? needs_.keys.entries.tokens : kPageTokens; }
  // CudaRetrieval::Weights::stride.
  std::int64_t weight_stride() const { return std::int64_t{view_.max_listed} * view_.unit_tokens; }

 protected:
  KvShape shape_;
  CudaRetrievalOptions options_;
  CudaRetrievalNeeds needs_;
  bool in_pages_;  // tokens are attended in their pages
  std::int32_t n_rows_;
  RetrievalLayers layers_;
  DeviceCache view_;

 private:
  bool caches_pages() const { return view_.n_slots > 0 && view_.unit_tokens == kPageTokens; }
  void describe_index();
};

}  // namespace mneme
