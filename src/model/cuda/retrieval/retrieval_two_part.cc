// Methods with two-part attention on the device: the index for selection per layer, and the parts of a row.
#include <algorithm>

#include "src/model/cuda/retrieval/retrieval.h"

namespace mneme {

// Copies keys of the whole pages of the first n_tokens from host memory.
void CudaRetrieval::index_keys(SeqSlot& p, std::int32_t seq_slot, std::int32_t n_tokens, const KvTables& pages,
                               const CudaContext& context) {
  const std::int32_t whole = n_tokens / kPageTokens;
  if (!by_layer_->copies_keys() || p.indexed >= whole * kPageTokens) return;
  for (std::int32_t l = 0; l < shape_.n_layers; ++l)
    if (slot_layer(l) >= 0)
      by_layer_->copy_keys(l, seq_slot, {pages, l, seq_slot}, p.indexed / kPageTokens, whole, context);
  p.indexed = whole * kPageTokens;
}

void CudaRetrieval::prepare_prompt(const SequenceCache& cache, std::int32_t seq_slot, std::int32_t n,
                                   const KvTables& pages, const Stream& stream) {
  if (!by_layer_ || !by_layer_->copies_keys()) return;
  SeqSlot& p = seq_slots_[static_cast<std::size_t>(seq_slot)];
  if (p.revision != cache.revision()) p = {.revision = cache.revision(), .counts = std::move(p.counts)};
  by_layer_->reserve(seq_slot, cache.length(), stream);
  index_keys(p, seq_slot, cache.length() - n, pages, {.stream = stream.get()});
}

// Parts of a row at position n - 1. In a table of cache slots, window tokens follow the sinks directly.
CudaRetrieval::TwoParts CudaRetrieval::parts_of(const Plan& plan, const SelectionPlan& slots, std::int32_t n) const {
  const bool everything = n <= plan.rules.budget, pre_rope = plan.key_basis == KeyBasis::kPreRope;
  const std::int32_t outside = std::max(0, n - plan.rules.recent);
  TwoParts p{.local_from = everything && !pre_rope ? 0
                           : everything            ? outside
                                                   : region_at(plan.rules, n).recent_from,
             .local_to = n,
             .remote_to = !everything ? plan.rules.sink
                          : pre_rope  ? outside
                                      : 0,
             .local_from_dense = pre_rope ? outside : 0,
             .remote_to_dense = pre_rope ? outside : 0};
  if (everything || pre_rope) return p;
  const std::int32_t sinks = slots.region.sink / kPageTokens,
                     window = std::max(sinks, (n + kPageTokens - 1) / kPageTokens - slots.region.recent / kPageTokens),
                     left_out = (window - sinks) * kPageTokens;
  p.local_from -= left_out, p.local_to -= left_out;
  return p;
}

}  // namespace mneme
