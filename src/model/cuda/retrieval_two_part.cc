// What methods need on the device that see in two parts: keys near the newest token turned, what stands for pages that
// a layer selects as a whole, and what layers owe each other.
#include <algorithm>
#include <cstring>

#include "src/kernels/turn_keys_cuda.h"
#include "src/model/cuda_retrieval.h"

namespace mneme {

// Whole pages of the first n_tokens, out of host memory.
void CudaRetrieval::index_keys(Place& p, std::int32_t place, std::int32_t n_tokens, const KvTables& pages,
                               const CudaContext& context) {
  const std::int32_t whole = n_tokens / kPageTokens;
  if (!key_index_ || p.indexed >= whole * kPageTokens) return;
  for (std::int32_t l = 0; l < shape_.n_layers; ++l)
    if (slot_layer(l) >= 0)
      copy_keys_cuda(pages, place, l, layer_keys(l), place, p.indexed / kPageTokens, whole, context);
  p.indexed = whole * kPageTokens;
}

void CudaRetrieval::prepare_prompt(const SequenceCache& cache, std::int32_t place, std::int32_t n,
                                   const KvTables& pages, const Stream& stream) {
  if (!key_index_) return;
  Place& p = places_[static_cast<std::size_t>(place)];
  if (p.revision != cache.revision()) p = {.revision = cache.revision(), .layers = {}, .counts = std::move(p.counts)};
  key_index_->reserve(place, cache.length(), stream);
  index_keys(p, place, cache.length() - n, pages, {.stream = stream.get()});
}

LayerKeys CudaRetrieval::layer_keys(std::int32_t layer) const {
  if (key_index_) return key_index_->keys(slot_layer(layer));
  return {.pages = pages_, .layer = layer};
}

// What layers owe each other in the row's next step.
void CudaRetrieval::send_shares(const Row& row, const Stream& stream) {
  const Plan& plan = row.method->plan();
  const auto layers = static_cast<std::size_t>(n_selecting_), bytes = layers * sizeof(double);
  std::byte* here = host_shares_.data() + static_cast<std::size_t>(row.place) * (sizeof(LayerCut) + bytes);
  auto* later = reinterpret_cast<double*>(here);
  LayerCut cut;
  if (const EntropyCut* shares = row.method->cut()) {
    cut = {.k = plan.layer_choice->n_units, .n_layers = n_selecting_, .reversed = shares->reversed()};
    for (std::int32_t l = 0; l < n_selecting_; ++l) later[l] = shares->later(l);
    copy_bytes(shares_view_.later + std::int64_t{row.place} * n_selecting_, later, bytes, stream);
  }
  std::memcpy(here + bytes, &cut, sizeof(cut));
  copy_bytes(shares_view_.cuts + row.place, here + bytes, sizeof(cut), stream);
}

void CudaRetrieval::choose_by_layer(std::int32_t layer, const SlotRows& rows, const void* far_q, std::int32_t* far_to,
                                    const CudaContext& context) {
  choose_layer_cuda({.keys = layer_keys(layer),
                     .rows = rows,
                     .far_q = far_q,
                     .ranks = shares_view_.ranks,
                     .rank_stride = static_cast<std::int64_t>(rank_stride()),
                     .far_to = far_to,
                     .cuts = shares_view_.cuts,
                     .later = shares_view_.later,
                     .pools = shares_view_.pools,
                     .thetas = shares_view_.thetas},
                    view_, slot_layer(layer), context);
}

// Keys of the last `recent` of n_tokens, out of their pages, where they stand.
void CudaRetrieval::fill_ring(std::int32_t place, std::int32_t n_tokens, std::int32_t recent, const KvTables& pages,
                              const CudaContext& context) {
  turn_keys_cuda({.from = pages,
                  .to = near_tables_,
                  .from_slot = place,
                  .to_slot = 0,
                  .to_layer = place,
                  .to_layer_step = options_.n_places,
                  .n_layers = shape_.n_layers,
                  .begin = std::max(0, n_tokens - recent),
                  .end = n_tokens,
                  .ring = needs_.ring_pages,
                  .inv_freq = inv_freq_.as<double>(),
                  .neighbours = options_.rope->pairs == RopePairs::kNeighbours},
                 context);
}

// Of a row at position n - 1. In a table of slots a token of the window stands behind the sinks, less what is left out
// between them.
CudaRetrieval::TwoParts CudaRetrieval::parts_of(const Plan& plan, const SlotRules& slots, std::int32_t n) const {
  const bool everything = n <= plan.rules.budget, raw = plan.key_basis == KeyBasis::kRaw;
  const std::int32_t outside = std::max(0, n - plan.rules.recent);
  TwoParts p{.near_from = everything && !raw ? 0
                          : everything       ? outside
                                             : region_at(plan.rules, n).recent_from,
             .near_to = n,
             .far_to = !everything ? plan.rules.sink
                       : raw       ? outside
                                   : 0,
             .near_from_dense = raw ? outside : 0,
             .far_to_dense = raw ? outside : 0};
  if (everything || raw) return p;
  const std::int32_t sinks = slots.sink / kPageTokens,
                     window = std::max(sinks, (n + kPageTokens - 1) / kPageTokens - slots.recent / kPageTokens),
                     left_out = (window - sinks) * kPageTokens;
  p.near_from -= left_out, p.near_to -= left_out;
  return p;
}

}  // namespace mneme
