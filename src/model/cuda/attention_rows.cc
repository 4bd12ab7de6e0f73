// Attention of the rows that stand alone: those that decode, with what their methods select and fetch around it. One
// function a way of attending; docs/design/device-path.md has all event graphs.
#include "src/model/cuda/attention.h"
#include "src/model/cuda/retrieval/launches.h"
#include "src/ops/attention/attention_merge_cuda.h"

namespace mneme {
namespace {

SlotRows slot_rows(const StepArrays& rows, std::int32_t first, std::int32_t n) {
  return {.seq_slots = rows.seq_slots + first, .lengths = rows.lengths + first, .reset = rows.reset + first, .n = n};
}

}  // namespace

void CudaAttention::before_launch(const CudaContext& context) const {
  if (observer_ != nullptr) observer_->before_launch(context);
}

void CudaAttention::add_sinks(const Memory& m, void* out, float* lse, std::int32_t n,
                              const CudaContext& context) const {
  if (m.sinks == nullptr) return;
  add_sinks_cuda({.out = out,
                  .lse = lse,
                  .sinks = m.sinks,
                  .n = n,
                  .n_heads = static_cast<std::int32_t>(model_.config().n_heads),
                  .head_dim = shape_.head_dim},
                 context);
}

std::int32_t CudaAttention::window_of(std::int32_t layer) const {
  return static_cast<std::int32_t>(model_.config().window_of(layer));
}

// Rows that the host attends (host_attention.h).
void CudaAttention::host_rows(std::int32_t layer, const StepArrays& rows, const Memory& m, const CudaContext& context,
                              const Stream& stream) {
  for (const Span& s : step_.spans) {
    if (!s.by_host) continue;
    QkvRows qkv = qkv_rows(s.first_row, s.n_rows, rows, m);
    qkv.pre_rope_keys = s.pre_rope_keys() && window_of(layer) == 0;
    store_qkv_cuda(qkv, tables_->tables(), layer, m.q + std::int64_t{s.first_row} * q_width_ * 2, context);
  }
  host_->attend(layer, m.q, m.out, stream);
}

void CudaAttention::single_rows(std::int32_t layer, const DecodeSpan& who, const StepArrays& rows, const Memory& m,
                                const CudaContext& context, const Stream& stream) {
  const std::int64_t at = std::int64_t{who.first} * q_width_ * 2;
  QkvRows qkv = qkv_rows(who.first, who.n, rows, m);
  const DecodeAttentionCuda a{.q = m.q + at,
                              .slots = (who.retrieval != nullptr ? rows.seq_slots : rows.slots) + who.first,
                              .lengths = rows.lengths + who.first,
                              .out = m.out + at,
                              .lse = m.sinks == nullptr ? nullptr : m.lse + std::int64_t{who.first} * qkv.n_heads,
                              .n = who.n,
                              .n_heads = qkv.n_heads,
                              .window = window_of(layer),
                              .scale = scale_,
                              .scratch = m.scratch};
  if (who.retrieval == nullptr) {
    stored_rows(layer, who, qkv, a, rows, m, context, stream);
    return;
  }
  CudaRetrieval& r = *who.retrieval;
  qkv.store = r.store(layer, rows.seq_slots + who.first);
  qkv.pre_rope_keys = r.pre_rope_keys();
  qkv.local = r.local(layer, rows.seq_slots + who.first);
  const bool selects = r.slot_layer(layer) >= 0;
  store_qkv_cuda(qkv, tables_->tables(), layer, m.q + at, context);
  if (selects) r.after_append(layer, slot_rows(rows, who.first, who.n), tables_->tables(), context);
  m.lap(StepPhase::kAppend, stream);
  if (r.two_parts() && (selects || r.pre_rope_keys())) {
    remapped_rows(layer, who, a, rows, m, context, stream);
  } else if (selects) {
    selected_rows(layer, who, a, rows, m, context, stream);
  } else {
    attend_decode_cuda(a, r.tables(layer), r.tables_layer(layer), context);
    add_sinks(m, a.out, a.lse, a.n, context);
  }
}

// Rows that attend all stored tokens.
void CudaAttention::stored_rows(std::int32_t layer, const DecodeSpan& who, QkvRows qkv, DecodeAttentionCuda a,
                                const StepArrays& rows, const Memory& m, const CudaContext& context,
                                const Stream& stream) {
  const bool observed = mass_observer_->decodes(layer);
  if (observed) a.lse = mass_observer_->decode_lse() + std::int64_t{who.span} * qkv.n_heads;
  store_qkv_cuda(qkv, pages(), layer, m.q + std::int64_t{who.first} * q_width_ * 2, context);
  m.lap(StepPhase::kAppend, stream);
  attend_decode_cuda(a, pages(), layer, context);
  add_sinks(m, a.out, a.lse, a.n, context);
  if (!observed) return;
  mass_observer_->take_decoded(
      layer, {.q = a.q, .slots = a.slots, .lengths = rows.attended + who.first, .first = who.span, .n = who.n}, pages(),
      context);
}

// Rows with two-part attention.
//
//   main   select ── attend local ──────────────┬─ attend remote ── merge
//   side       └─> recall (pre-RoPE keys) ──────┘
void CudaAttention::remapped_rows(std::int32_t layer, const DecodeSpan& who, const DecodeAttentionCuda& a,
                                  const StepArrays& rows, const Memory& m, const CudaContext& context,
                                  const Stream& stream) {
  CudaRetrieval& r = *who.retrieval;
  const SlotRows slots = slot_rows(rows, who.first, who.n);
  const bool selects = r.slot_layer(layer) >= 0, recalls = selects && mneme::recalls(r), near_apart = r.pre_rope_keys();
  before_launch(context);
  if (selects && r.by_layer())
    r.select_by_layer(layer, slots, m.remote_q + std::int64_t{who.first} * q_width_ * 2, rows.remote_to + who.first,
                      context);
  m.lap(StepPhase::kSelection, stream);
  if (recalls && !near_apart) {
    before_launch(context);
    r.recall(SelectWhen::kNow, layer, slots, tables_->tables(), context);
    m.lap(StepPhase::kRecall, stream);
  } else if (recalls) {
    // The local part is in the ring of rotated keys, and is attended concurrently.
    const CudaContext side_context{.stream = streams_.side.get()};
    follow(streams_.side, streams_.stored, stream);
    before_launch(side_context);
    r.recall(SelectWhen::kNow, layer, slots, tables_->tables(), side_context);
    streams_.attended.record(streams_.side);
  }
  attend_two_parts(layer, who, a, rows, m, context, recalls && near_apart ? &streams_.attended : nullptr, stream);
  if (selects) take_audit(layer, who, rows, m, stream);
}

// Rows that attend a selection, or a window, through cache slots or in their pages.
//
//   main   close ── select(t) ──────────────┬─ recall(t) ── attend(t)
//   early      └─ queries ready ─> attend ──┘
//   side       └─ queries ready, or select(t) done ─> select(t+1) ──┐
//   fetch                                  attended(t) ─────────────┴─> recall(t+1), joined before the next step
//
// `early`, with pages and a gate by mass: all heads attend what the step before has listed, and main those that
// recall(t) has listed again.
//
// Selection for the next step overlaps this step: it starts once the queries are ready (if it reuses this step's scores,
// after this step's selection), and fetches pages after this step has read its own. Pages of four sequences at 32K: in
// sequence 6.3 ms a step without corrections and 7.1 with 13 %, overlapped 6.7 and 6.8.
void CudaAttention::selected_rows(std::int32_t layer, const DecodeSpan& who, DecodeAttentionCuda a,
                                  const StepArrays& rows, const Memory& m, const CudaContext& context,
                                  const Stream& stream) {
  CudaRetrieval& r = *who.retrieval;
  const KvTables& pages = tables_->tables();
  SlotRows slots = slot_rows(rows, who.first, who.n);
  a.lengths = rows.attended + who.first;
  if (const CudaRetrieval::LayerLengths of_layer = r.layer_rows(layer); of_layer.attended != nullptr) {
    slots.reset = of_layer.reset + who.span;
    a.lengths = of_layer.attended + who.span;
  }
  a.tables_late = a.lengths_early = true;
  if (merges(r)) slots.tickets = rows.tickets + who.first, a.arriving = r.arriving(slots.tickets);
  const bool speculative = r.any(asks::speculates), shares = speculative && shares_scores(r),
             in_turn = selects_in_sequence(r);
  if (closes_first(r)) r.close_groups(layer, slots, pages, context);
  if (speculative && !in_turn) follow(streams_.side, streams_.stored, stream);
  before_launch(context);
  const bool early = attends_early(r);
  if (early) attend_early(layer, a, r, stream);
  if (r.any(asks::selects)) r.select(SelectWhen::kNow, layer, slots, pages, context);
  m.lap(StepPhase::kSelection, stream);
  if (speculative && in_turn) follow(streams_.side, streams_.selected, stream);
  before_launch(context);
  // The next layer's scores replace those of the last one. Wait here: a kernel that waits for two others cannot start
  // early, and recall has the least work before its wait.
  const int next_scores = r.next_scores();
  if (shares && streams_.scores_read[next_scores]) stream.wait(streams_.scores_free[next_scores]);
  if (early) stream.wait(streams_.attended_early);
  r.recall(SelectWhen::kNow, layer, slots, pages, context);
  m.lap(StepPhase::kRecall, stream);
  if (r.any(asks::prunes)) {
    const CudaRetrieval::Weights kept = r.keep_top_p(layer, slots, a.q, a.lengths, scale_, context);
    a.log_weights = kept.log_weights, a.log_weight_stride = kept.stride;
  }
  if (early) a.only = r.relisted(), a.lengths_early = false;
  attend_decode_cuda(a, r.tables(layer), r.tables_layer(layer), context);
  add_sinks(m, a.out, a.lse, a.n, context);
  take_audit(layer, who, rows, m, stream);
  if (speculative) select_next(layer, slots, r, stream);
}

// What the step before has listed, by all heads; the results of those that are flagged will be overwritten.
void CudaAttention::attend_early(std::int32_t layer, const DecodeAttentionCuda& a, const CudaRetrieval& r,
                                 const Stream& stream) {
  const CudaContext context{.stream = streams_.early.get()};
  follow(streams_.early, streams_.stored, stream);
  before_launch(context);
  attend_decode_cuda(a, r.tables(layer), r.tables_layer(layer), context);
  streams_.attended_early.record(streams_.early);
}

// Selection and recall for the next step, behind what `streams_.side` waits for already.
void CudaAttention::select_next(std::int32_t layer, const SlotRows& slots, CudaRetrieval& r, const Stream& stream) {
  const KvTables& pages = tables_->tables();
  const bool shares = shares_scores(r);
  const CudaContext side_context{.stream = streams_.side.get()};
  streams_.attended.record(stream);
  before_launch(side_context);
  r.select(SelectWhen::kNext, layer, slots, pages, side_context);
  if (shares)
    streams_.scores_free[1 - r.next_scores()].record(streams_.side), streams_.scores_read[1 - r.next_scores()] = true;
  // Recall of pages in its own stream, so that the next layer's selection need not wait for it (four sequences of
  // 32,768 without corrections: 5.21 ms a step in place of 5.51). For tokens that costs more than it gains (20 %
  // turnover: 6.56 ms in place of 6.47).
  const Stream& fetching = shares ? streams_.side : streams_.fetch;
  if (!shares) follow(streams_.fetch, streams_.made, streams_.side), streams_.fetching = true;
  fetching.wait(streams_.attended);
  const CudaContext fetches{.stream = fetching.get()};
  before_launch(fetches);
  r.recall(SelectWhen::kNext, layer, slots, pages, fetches);
  streams_.side_busy = true;
}

void CudaAttention::take_audit(std::int32_t layer, const DecodeSpan& who, const StepArrays& rows, const Memory& m,
                               const Stream& stream) {
  if (audit_->any() && who.retrieval == step_.audited)
    audit_->take(layer, who.first, who.n, {.q = m.q, .remote_q = m.remote_q, .out = m.out, .remote_to = rows.remote_to},
                 *who.retrieval, stream);
}

// The local part by the rows' own queries, the remote part by rotated ones, then an LSE merge.
void CudaAttention::attend_two_parts(std::int32_t layer, const DecodeSpan& who, DecodeAttentionCuda a,
                                     const StepArrays& rows, const Memory& m, const CudaContext& context,
                                     const Event* remote_device, const Stream& stream) {
  const CudaRetrieval& r = *who.retrieval;
  const std::int32_t first = who.first;
  const bool selects = r.slot_layer(layer) >= 0, pre_rope = r.pre_rope_keys();
  const KeyRing ring = r.local(layer, nullptr);
  void* const out = a.out;
  a.tables_late = true;
  DecodeAttentionCuda remote = a;
  a.begins = (selects ? rows.local_from : rows.local_from_dense) + first;
  a.lengths = rows.local_to + first;
  a.page_ring = ring.pages;
  a.out = parts_.out[0].data(), a.lse = parts_.lse[0].as<float>();
  remote.q = step_.has_remapped ? m.remote_q + std::int64_t{first} * q_width_ * 2 : a.q;
  remote.lengths = (selects ? rows.remote_to : rows.remote_to_dense) + first;
  remote.out = parts_.out[1].data(), remote.lse = parts_.lse[1].as<float>();
  attend_decode_cuda(a, pre_rope ? ring.tables : r.tables(layer), pre_rope ? ring.layer : r.tables_layer(layer),
                     context);
  if (remote_device != nullptr) stream.wait(*remote_device);
  attend_decode_cuda(remote, r.tables(layer), r.tables_layer(layer), context);
  merge_attention_cuda({a.out, a.lse}, {remote.out, remote.lse}, a.n, a.n_heads, shape_.head_dim, out, context);
}

void CudaAttention::finish(const DecodeSpan& who, const StepArrays& rows, const Stream& stream) {
  follow(streams_.side, streams_.stored, stream);
  CudaRetrieval& r = *who.retrieval;
  const SlotRows slots = slot_rows(rows, who.first, who.n);
  if (r.closes() && !closes_first(r)) r.close_groups(-1, slots, tables_->tables(), {.stream = streams_.side.get()});
  r.write_back(slots, tables_->tables(), {.stream = streams_.side.get()});
  streams_.side_busy = true;
}

}  // namespace mneme
