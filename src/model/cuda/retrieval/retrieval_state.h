// What a state of methods that select is: its needs and the sizes of its device cache.
#pragma once

#include <cstdint>

#include "src/kv/page_pool.h"
#include "src/model/cuda/retrieval/retrieval_layers.h"
#include "src/model/cuda/retrieval/retrieval_needs.h"

namespace mneme {

class RetrievalState {
 public:
  // Errors  kUnsupported.
  RetrievalState(const KvShape& shape, std::int32_t n_heads, CudaRetrievalNeeds needs,
                 const CudaRetrievalOptions& options);

  const KvShape& shape() const { return shape_; }
  const CudaRetrievalNeeds& needs() const { return needs_; }
  const CudaRetrievalOptions& options() const { return options_; }
  const DeviceCache& device_cache() const { return view_; }
  std::int32_t n_rows() const { return n_rows_; }  // decode rows of a step, including a graph's padding
  bool in_pages() const { return in_pages_; }      // tokens are attended in their pages
  // Whether some plan of the state asks for it (plan_asks.h).
  bool any(PlanAsks asks) const { return mneme::any(needs_.plans, asks); }
  const RetrievalLayers& layers() const { return layers_; }
  std::int32_t slot_layer(std::int32_t layer) const { return layers_.slot_layer(layer); }
  std::int32_t n_selecting() const { return layers_.n_selecting(); }

  bool two_parts() const { return needs_.two_parts; }
  bool by_layer() const { return needs_.keys.by_layer; }
  bool pre_rope_keys() const { return needs_.ring_pages > 0; }
  bool groups() const { return needs_.keys.fused_entries && is_one_bit(needs_.keys.entries.kind); }  // of 1-bit keys
  bool of_lists() const { return view_.index.lists.max_units > 0; }
  // Whether there is something that close_groups() completes.
  bool closes() const { return needs_.keys.entries.kind != EntryKind::kNone; }
  // Tokens of an entry of the index: a page, a group of 1-bit keys.
  std::int32_t entry_tokens() const { return closes() ? needs_.keys.entries.tokens : kPageTokens; }
  // CudaRetrieval::Weights::stride.
  std::int64_t weight_stride() const { return std::int64_t{view_.max_listed} * view_.unit_tokens; }

 protected:
  KvShape shape_;
  CudaRetrievalOptions options_;
  CudaRetrievalNeeds needs_;
  bool in_pages_;
  std::int32_t n_rows_;
  RetrievalLayers layers_;
  DeviceCache view_;

 private:
  void describe_index();
};

}  // namespace mneme
