// Methods with two-part attention on the device: rotated local keys, the index for selection per layer, and the shared
// layer budget.
#include <algorithm>
#include <cstring>

#include "src/model/cuda/retrieval/retrieval.h"
#include "src/ops/norm_rope/rotate_keys_cuda.h"

namespace mneme {

// Copies keys of the whole pages of the first n_tokens from host memory.
void CudaRetrieval::index_keys(SeqSlot& p, std::int32_t seq_slot, std::int32_t n_tokens, const KvTables& pages,
                               const CudaContext& context) {
  const std::int32_t whole = n_tokens / kPageTokens;
  if (!key_index_ || p.indexed >= whole * kPageTokens) return;
  for (std::int32_t l = 0; l < shape_.n_layers; ++l)
    if (slot_layer(l) >= 0)
      copy_keys_cuda(pages, seq_slot, l, layer_keys(l), seq_slot, p.indexed / kPageTokens, whole, context);
  p.indexed = whole * kPageTokens;
}

void CudaRetrieval::prepare_prompt(const SequenceCache& cache, std::int32_t seq_slot, std::int32_t n,
                                   const KvTables& pages, const Stream& stream) {
  if (!key_index_) return;
  SeqSlot& p = seq_slots_[static_cast<std::size_t>(seq_slot)];
  if (p.revision != cache.revision()) p = {.revision = cache.revision(), .layers = {}, .counts = std::move(p.counts)};
  key_index_->reserve(seq_slot, cache.length(), stream);
  index_keys(p, seq_slot, cache.length() - n, pages, {.stream = stream.get()});
}

LayerKeys CudaRetrieval::layer_keys(std::int32_t layer) const {
  if (key_index_) return key_index_->keys(slot_layer(layer));
  return {.pages = pages_, .layer = layer};
}

// Sends the shared layer budget of the row's next step.
void CudaRetrieval::send_shares(const Row& row, const Stream& stream) {
  const Plan& plan = row.method->plan();
  const auto layers = static_cast<std::size_t>(n_selecting_), bytes = layers * sizeof(double);
  std::byte* here = host_shares_.data() + static_cast<std::size_t>(row.seq_slot) * (sizeof(LayerCut) + bytes);
  auto* later = reinterpret_cast<double*>(here);
  LayerCut cut;
  if (const EntropyCut* shares = row.method->cut()) {
    cut = {.k = plan.layer_selection->n_units, .n_layers = n_selecting_, .reversed = shares->reversed()};
    for (std::int32_t l = 0; l < n_selecting_; ++l) later[l] = shares->later(l);
    copy_bytes(shares_view_.later + std::int64_t{row.seq_slot} * n_selecting_, later, bytes, stream);
  }
  std::memcpy(here + bytes, &cut, sizeof(cut));
  copy_bytes(shares_view_.cuts + row.seq_slot, here + bytes, sizeof(cut), stream);
}

void CudaRetrieval::select_by_layer(std::int32_t layer, const SlotRows& rows, const void* remote_q,
                                    std::int32_t* remote_to, const CudaContext& context) {
  select_layer_cuda({.keys = layer_keys(layer),
                     .rows = rows,
                     .remote_q = remote_q,
                     .ranks = shares_view_.ranks,
                     .rank_stride = static_cast<std::int64_t>(rank_stride()),
                     .remote_to = remote_to,
                     .cuts = shares_view_.cuts,
                     .later = shares_view_.later,
                     .pools = shares_view_.pools,
                     .thetas = shares_view_.thetas},
                    view_, slot_layer(layer), context);
}

// Rotates keys of the last `recent` of n_tokens to their own positions.
void CudaRetrieval::fill_ring(std::int32_t seq_slot, std::int32_t n_tokens, std::int32_t recent, const KvTables& pages,
                              const CudaContext& context) {
  rotate_keys_cuda({.from = pages,
                    .to = local_tables_,
                    .from_slot = seq_slot,
                    .to_slot = 0,
                    .to_layer = seq_slot,
                    .to_layer_step = options_.n_seq_slots,
                    .n_layers = shape_.n_layers,
                    .begin = std::max(0, n_tokens - recent),
                    .end = n_tokens,
                    .ring = needs_.ring_pages,
                    .inv_freq = inv_freq_.as<double>(),
                    .neighbours = options_.rope->pairs == RopePairs::kNeighbours},
                   context);
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
