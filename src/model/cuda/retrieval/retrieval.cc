#include "src/model/cuda/retrieval/retrieval.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/model/cuda/retrieval/launches.h"
#include "src/model/cuda/retrieval/step_observer.h"
#include "src/selection/index/one_bit_cuda.h"
#include "src/selection/index/unit_entries_cuda.h"
#include "src/selection/summary/summary_cuda.h"
#include "src/selection/topk/top_p_cuda.h"
#include "src/selection/topk/unfused_select_cuda.h"

namespace mneme {
namespace {

constexpr std::int32_t kRecallBlocks = 8;

}  // namespace

CudaRetrieval::CudaRetrieval(const KvShape& shape, std::int32_t n_heads, Needs needs, const KvTables& pages,
                             const CudaRetrievalOptions& options)
    : RetrievalState(shape, n_heads, std::move(needs), options),
      memory_(*this, view_),
      dense_(shape, in_pages_ ? 0 : std::int64_t{layers_.n_dense()} * options.n_seq_slots, view_.max_pages,
             "keys and values of the layers that read everything"),
      slot_tables_(view_.tables()),
      pages_(pages),
      seq_slots_(static_cast<std::size_t>(options.n_seq_slots)) {
  if (by_layer()) by_layer_.emplace(*this, pages);
  if (of_lists()) lists_ = std::make_unique<CudaUnitLists>(view_);
  if (in_pages_) slot_tables_.base = pages.base;
  if (needs_.ring_pages > 0) local_.emplace(*this);
}

SlotStore CudaRetrieval::store(std::int32_t layer, const std::int32_t* seq_slots) const {
  if (slot_layer(layer) >= 0)
    return {.kind = SlotStore::Kind::kSlots, .seq_slots = seq_slots, .layer = slot_layer(layer), .cache = view_};
  if (in_pages_) return {};
  return {.kind = SlotStore::Kind::kTables,
          .seq_slots = seq_slots,
          .tables = dense_.tables(),
          .layer = tables_layer(layer)};
}

std::int32_t CudaRetrieval::tables_layer(std::int32_t layer) const {
  if (in_pages_ && slot_layer(layer) < 0) return layer;
  const std::int32_t number = slot_layer(layer) >= 0 ? slot_layer(layer) : layers_.dense_number(layer);
  return number * options_.n_seq_slots;  // layers of all sequence slots are consecutive
}

void CudaRetrieval::select(SelectWhen when, std::int32_t layer, const SlotRows& rows, const KvTables& pages,
                           const CudaContext& context) {
  if (when == SelectWhen::kNext && lists_as_selected(*this)) return;  // the one for this step has selected for both
  if (shares_scores(*this) && when == SelectWhen::kNow) scores_ = next_scores();
  const auto buffer = static_cast<std::size_t>(shares_scores(*this) ? scores_ : static_cast<int>(when));
  std::byte* scratch = memory_.scratch[buffer].data();
  if (selects_small_pages(*this)) {
    select_pages_cuda({.rows = rows, .when = when, .scratch = scratch, .of_entries = true}, view_, slot_layer(layer),
                      context);
  } else if (any(asks::other_scores)) {
    unfused_select_cuda(
        {.rows = rows,
         .when = when,
         .pages = of_heads(pages),
         .layer = layer,
         .pools_layers = any(asks::pools_layers),
         .token_scratch = scans_sketches(*this) ? scratch + unfused_select_scratch_bytes(view_, n_rows_) : nullptr,
         .lists = lists_as_selected(*this),
         .sketch_pages = selects_sketch_pages(*this),
         .scratch = scratch},
        view_, slot_layer(layer), context);
  }
  if (any(asks::own_arrays) && !selects_small_pages(*this)) select_fused(when, layer, rows, pages, scratch, context);
  after_selection(when, layer, rows, pages, lists_as_selected(*this), context);
  // The same launches have selected for the next step.
  if (lists_as_selected(*this) && any(asks::speculates))
    after_selection(SelectWhen::kNext, layer, rows, pages, true, context);
}

void CudaRetrieval::select_fused(SelectWhen when, std::int32_t layer, const SlotRows& rows, const KvTables& pages,
                                 std::byte* scratch, const CudaContext& context) {
  if (lists_) {
    select_lists_cuda({.rows = rows, .when = when, .scratch = scratch}, view_, slot_layer(layer), context);
  } else if (view_.unit_tokens == 1) {
    select_tokens_cuda({.rows = rows,
                        .when = when,
                        .scratch = scratch,
                        .early = !closes_first(*this),
                        .pages = lists_as_selected(*this) ? &pages : nullptr,
                        .layer = layer},
                       view_, slot_layer(layer), context);
  } else {
    select_pages_cuda({.rows = rows, .when = when, .scratch = scratch}, view_, slot_layer(layer), context);
  }
}

void CudaRetrieval::select_by_layer(std::int32_t layer, const SlotRows& rows, const void* remote_q,
                                    std::int32_t* remote_to, const CudaContext& context) {
  by_layer_->select(layer, rows, remote_q, remote_to, context);
  after_selection(SelectWhen::kNow, layer, rows, pages_, in_pages_, context);
}

void CudaRetrieval::after_append(std::int32_t layer, const SlotRows& rows, const KvTables& pages,
                                 const CudaContext& context) const {
  if (options_.observer != nullptr && (any(asks::speculates) || any(asks::keeps_selections)))
    options_.observer->after_append({view_, rows, of_heads(pages), layer, slot_layer(layer)}, context);
}

void CudaRetrieval::after_selection(SelectWhen when, std::int32_t layer, const SlotRows& rows, const KvTables& pages,
                                    bool listed, const CudaContext& context) const {
  if (options_.observer != nullptr)
    options_.observer->after_selection({view_, rows, of_heads(pages), layer, slot_layer(layer), by_layer(), listed},
                                       when, context);
}

void CudaRetrieval::recall(SelectWhen when, std::int32_t layer, const SlotRows& rows, const KvTables& pages,
                           const CudaContext& context) {
  if (when == SelectWhen::kNow && lists_as_selected(*this)) return;
  recall_units_cuda(rows, when, view_, of_heads(pages), layer, slot_layer(layer), kRecallBlocks, context);
}

CudaRetrieval::Weights CudaRetrieval::keep_top_p(std::int32_t layer, const SlotRows& rows, const void* q,
                                                 const std::int32_t* lengths, float scale, const CudaContext& context) {
  keep_top_p_cuda({.rows = rows,
                   .q = q,
                   .lengths = lengths,
                   .tables = tables(layer),
                   .tables_layer = tables_layer(layer),
                   .scale = scale,
                   .log_weights = memory_.log_weights.as<float>(),
                   .stride = weight_stride(),
                   .scratch = memory_.top_p.data()},
                  view_, slot_layer(layer), context);
  return weights();
}

void CudaRetrieval::close_groups(std::int32_t layer, const SlotRows& rows, const KvTables& pages,
                                 const CudaContext& context) {
  const std::int32_t first = layer < 0 ? 0 : slot_layer(layer), stop = layer < 0 ? n_selecting() : first + 1;
  const auto close = view_.index.entries.summarised() ? close_summaries_cuda : close_unit_entries_cuda;
  close({.rows = rows, .first = first, .stop = stop, .model_layers = layers_.selecting_on_device()}, view_,
        of_heads(pages), context);
}

void CudaRetrieval::write_back(const SlotRows& rows, const KvTables& pages, const CudaContext& context) {
  if (in_pages_) return;
  write_back_cuda(rows, view_, dense_.tables(), layers_.numbers_on_device(), pages, shape_.n_layers, context);
}

std::size_t CudaRetrieval::bytes() const {
  return memory_.bytes() + dense_.bytes() + (local_ ? local_->bytes() : 0) + (by_layer_ ? by_layer_->bytes() : 0) +
         (lists_ ? lists_->bytes() : 0);
}

}  // namespace mneme
