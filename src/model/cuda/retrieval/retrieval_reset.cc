// Reset of a sequence slot before a step: rules, index, cache slots and dense layers for all tokens before the step's
// own.
#include <algorithm>

#include "src/model/cuda/retrieval/retrieval.h"
#include "src/offload/slot_region.h"
#include "src/selection/index/unit_entries_cuda.h"
#include "src/selection/summary/summary_cuda.h"

namespace mneme {
namespace {

constexpr std::int32_t kDenseCtasPerHead = 4;

}  // namespace

// Tokens that a row of n attends in a layer that selects, as the kernels compute it; n is above the budget. grouped:
// start of the window of lists; -1: units are not lists.
std::int32_t CudaRetrieval::attended_by(const SelectionPlan& r, std::int32_t n, std::int32_t grouped) {
  if (r.schedule != ScheduleKind::kNone && grouped >= 0) return std::max(r.region.budget, r.region.sink + n - grouped);
  const PageRegion region = page_region(r, n);
  return r.region.sink + region.n_select * r.units.tokens + n - region.window * r.units.tokens;
}

// Builds the index of tokens [first, stop); the last page's box may be open.
void CudaRetrieval::build_index(const IndexedLayer& of, std::int32_t first, std::int32_t stop, const KvTables& keys,
                                const CudaContext& context) {
  const UnitEntries& entries = view_.index.entries;
  if (entries.kind == EntryKind::kNone) return;  // built by index_keys(), or not needed
  const bool open = view_.index.boxes != nullptr;
  const BuildEntries b{.of = of,
                       .first = first / entries.tokens,
                       .stop = open ? pages_of(stop) : stop / entries.tokens,
                       .n_tokens = open ? stop : 0};
  entries.summarised() ? build_summaries(b, stop, keys, context)
                       : build_unit_entries_cuda(b, view_, of_heads(keys), context);
}

// Fits the frames first where `stop` tokens call for it, and then builds all entries again.
void CudaRetrieval::build_summaries(BuildEntries b, std::int32_t stop, const KvTables& keys,
                                    const CudaContext& context) {
  if (refits(seq_slots_[static_cast<std::size_t>(b.of.seq_slot)], stop)) {
    fit_frames_cuda({.of = b.of, .pages = KeyFrame::pages_for(stop / entry_tokens()), .scratch = memory_.frames.data()},
                    view_, of_heads(keys), context);
    b.first = 0;
  }
  build_summaries_cuda(b, view_, of_heads(keys), context);
}

// The pages of tokens [first, stop) of a dense layer.
void CudaRetrieval::copy_dense(std::int32_t layer, std::int32_t seq_slot, const LayerPages& from, std::int32_t first,
                               std::int32_t stop, const CudaContext& context) {
  copy_pages_cuda({dense_.tables(), tables_layer(layer), seq_slot}, from, first / kPageTokens * kPageTokens,
                  whole_pages(stop), kDenseCtasPerHead, context);
}

// Clears the sequence slot's previous state.
void CudaRetrieval::begin_seq_slot(std::int32_t seq_slot, const SequenceCache& cache, const Plan& plan,
                                   const Stream& stream) {
  SeqSlot& p = seq_slots_[static_cast<std::size_t>(seq_slot)];
  const bool other = p.revision != cache.revision();
  const ClusterUnit clusters = plan.lists ? plan.lists->clusters : ClusterUnit{};
  if (lists_ && (other || !(p.clusters == clusters))) lists_->forget(seq_slot, stream);
  if (other) p = {.revision = cache.revision(), .layers = std::move(p.layers), .counts = std::move(p.counts)};
  p.clusters = clusters;
}

CudaRetrieval::SeqSlot& CudaRetrieval::seq_slot_of(const SequenceCache& cache, const MethodState& method,
                                                   std::int32_t seq_slot, const Stream& stream) {
  const Plan& plan = method.plan();
  SeqSlot& p = seq_slots_[static_cast<std::size_t>(seq_slot)];
  begin_seq_slot(seq_slot, cache, plan, stream);
  p.layers.resize(std::max<std::size_t>(layers_.selecting().size(), 1));
  bool changed = false;
  SelectionPlan selection;
  for (std::size_t i = 0; i < p.layers.size(); ++i) {
    if (i == 0 || plan.norm) selection = selection_plan_in(method, i);
    if (p.layers[i].plan == selection) continue;
    p.layers[i].plan = selection;
    changed = true;
  }
  if (!changed) return p;
  p.decoded = -1;
  if (layers_.selecting().empty()) return p;
  stream.synchronize();  // the host copy may be in flight
  auto* here = memory_.plans.host.as<SelectionPlan>() + seq_slot;
  for (std::size_t i = 0; i < layers_.selecting().size(); ++i)
    here[i * static_cast<std::size_t>(options_.n_seq_slots)] = p.layers[i].plan;
  const std::size_t pitch = static_cast<std::size_t>(options_.n_seq_slots) * sizeof(SelectionPlan);
  copy_rows(view_.plans + seq_slot, pitch, here, pitch, sizeof(SelectionPlan), layers_.selecting().size(), stream);
  return p;
}

// Index, units and dense layers of all tokens before the row's own.
void CudaRetrieval::build_before(const DecodeStep& row, const KvTables& pages, const Stream& stream) {
  const std::int32_t n = row.cache->length(), before = n - 1, seq_slot = row.seq_slot;
  const Plan& plan = row.method->plan();
  SeqSlot& p = seq_slots_[static_cast<std::size_t>(seq_slot)];
  const CudaContext context{.stream = stream.get()};
  // Up to the open page or group, whose index and block the step itself maintains.
  for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
    const std::int32_t number = slot_layer(l);
    if (number < 0 && p.dense != before && !in_pages_)
      copy_dense(l, seq_slot, {pages, l, seq_slot}, std::min(p.dense, before), before, context);
    if (number < 0 || !plan.selects()) continue;  // needs no index
    const IndexedLayer of{.seq_slot = seq_slot, .slot_layer = number, .key_slot = seq_slot, .key_layer = l};
    if (lists_) {
      row.method->see_output(l, n, false);  // what leaves the window now does not depend on this step's gate
      lists_->follow(of, plan, row.method->layer(l).partition, pages, stream);
    } else if (p.indexed != before || refits(p, before)) {
      build_index(of, std::min(p.indexed, before), before, pages, context);
    }
  }
  if (lists_) {
    lists_->close_segments(pages, stream);
    lists_->join(stream);
  }
  if (!by_layer() && plan.selects()) p.indexed = n, p.framed = KeyFrame::pages_for(before / entry_tokens());
  p.dense = n;
}

void CudaRetrieval::prepare(DecodeStep& row, const KvTables& pages, const Stream& stream) {
  const std::int32_t n = row.cache->length(), seq_slot = row.seq_slot;
  const Plan& plan = row.method->plan();
  SeqSlot& p = seq_slot_of(*row.cache, *row.method, seq_slot, stream);
  const CudaContext context{.stream = stream.get()};
  const bool goes_on = p.decoded == n - 1;
  build_before(row, pages, stream);
  for (std::size_t i = 0; i < p.layers.size(); ++i) {
    SeqSlotLayer& layer = p.layers[i];
    const bool everything = n <= layer.plan.region.budget, reset = !goes_on || everything != layer.everything;
    const std::int32_t grouped = plan.lists && i < layers_.selecting().size()
                                     ? row.method->layer(layers_.selecting()[i]).partition.grouped()
                                     : -1;
    if (reset && i < layers_.selecting().size())
      fill_slots_cuda(seq_slot, n, layer.plan, view_, of_heads(pages), layers_.selecting()[i],
                      static_cast<std::int32_t>(i), context);
    layer.everything = everything;
    layer.reset = reset ? kNoSelection | (goes_on ? 0 : kNoQuery) : 0;
    layer.attended = everything    ? n
                     : two_parts() ? plan.rules.sink + n - region_at(plan.rules, n).recent_from
                                   : attended_by(layer.plan, n, grouped);
  }
  if (by_layer()) {
    by_layer_->reserve(seq_slot, n, stream);
    index_keys(p, seq_slot, n - 1, pages, context);
    by_layer_->send_cut(*row.method, seq_slot, stream);
  }
  if (local_ && !goes_on) local_->fill(seq_slot, n - 1, plan.rules.recent, pages, context);
  p.decoded = n;
  row.reset = p.layers.front().reset, row.attended_tokens = p.layers.front().attended;
  if (two_parts()) row.parts = parts_of(plan, p.layers.front().plan, n);
  if (memory_.layer_rows.size() == 0) return;
  auto* rows = memory_.layer_rows.host.as<std::int32_t>() + row.number;
  for (std::size_t i = 0; i < layers_.selecting().size(); ++i) {
    const std::size_t all = static_cast<std::size_t>(n_rows_), at = i * all;
    rows[at] = p.layers[i].reset, rows[layers_.selecting().size() * all + at] = p.layers[i].attended;
  }
}

void CudaRetrieval::begin_rows() {
  std::fill_n(memory_.layer_rows.host.data(), memory_.layer_rows.size(), std::byte{});
}

void CudaRetrieval::send_rows(const Stream& stream) {
  if (memory_.layer_rows.size() > 0) memory_.layer_rows.send(memory_.layer_rows.size(), stream);
}

CudaRetrieval::LayerLengths CudaRetrieval::layer_rows(std::int32_t layer) const {
  if (memory_.layer_rows.size() == 0) return {};
  const std::int32_t *reset = memory_.layer_rows.device.as<std::int32_t>() + std::int64_t{slot_layer(layer)} * n_rows_,
                     *attended = reset + std::int64_t{n_selecting()} * n_rows_;
  return {reset, attended};
}

void CudaRetrieval::take_prompt(const Prompt& t, std::int32_t layer, const KvTables& keys, const Stream& stream) {
  const Plan& plan = t.method->plan();
  begin_seq_slot(t.seq_slot, *t.cache, plan, stream);
  SeqSlot& p = seq_slots_[static_cast<std::size_t>(t.seq_slot)];
  const std::int32_t n_tokens = t.first + t.n, begin = t.first / kPageTokens, stop = pages_of(n_tokens),
                     number = slot_layer(layer);
  const CudaContext context{.stream = stream.get()};
  const IndexedLayer of{.seq_slot = t.seq_slot, .slot_layer = number, .key_slot = t.key_slot, .key_layer = t.key_layer};
  if (number >= 0 && !plan.selects()) return;
  if (number >= 0 && lists_) {
    t.method->see_prompt(layer, n_tokens, t.left == 0);
    lists_->follow(of, plan, t.method->layer(layer).partition, keys, stream);
    lists_->close_segments(keys, stream);
    return;
  }
  // prepare() fills in what is missing of earlier tokens.
  const bool dense = number < 0;
  if (!dense && by_layer_ && by_layer_->copies_keys()) {
    by_layer_->copy_keys(layer, t.seq_slot, {keys, t.key_layer, t.key_slot}, begin, stop, context);
    if (number + 1 == n_selecting()) p.indexed = n_tokens / kPageTokens * kPageTokens;
    return;
  }
  if (dense ? in_pages_ || p.dense < begin * kPageTokens : p.indexed < t.first / entry_tokens() * entry_tokens())
    return;
  if (dense) {
    copy_dense(layer, t.seq_slot, {keys, t.key_layer, t.key_slot}, t.first, n_tokens, context);
    if (layers_.dense_number(layer) + 1 == layers_.n_dense()) p.dense = n_tokens;
  } else {
    build_index(of, t.first, n_tokens, keys, context);
    if (number + 1 == n_selecting()) p.indexed = n_tokens, p.framed = KeyFrame::pages_for(n_tokens / entry_tokens());
  }
}

}  // namespace mneme
