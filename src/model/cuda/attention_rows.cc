// Attention of the rows that stand alone: those that decode, with what their methods choose and bring around it.
#include "src/kernels/attention_merge_cuda.h"
#include "src/model/cuda_attention.h"

namespace mneme {
namespace {

SlotRows slot_rows(const CudaRowArrays& rows, std::int32_t first, std::int32_t n) {
  return {.places = rows.places + first, .lengths = rows.lengths + first, .anew = rows.anew + first, .n = n};
}

}  // namespace

// Sooner or later, in an order that has nothing to do with the work.
void CudaAttention::delay(const CudaContext& context) {
  if (options_.delay_us <= 0) return;
  delays_ = delays_ * 1664525u + 1013904223u;
  wait_cuda(static_cast<std::int32_t>((delays_ >> 8) % static_cast<std::uint32_t>(options_.delay_us)), context);
}

void CudaAttention::follow(const Stream& then, Event& had, const Stream& first) {
  had.record(first);
  then.wait(had);
}

// Rows that stand alone, of spans from `span` on, all with methods or all without.
void CudaAttention::single_rows(std::int32_t layer, std::int32_t span, std::int32_t first, std::int32_t n,
                                bool with_method, const CudaRowArrays& rows, const Memory& m,
                                const CudaContext& context, const Stream& stream) {
  const std::int64_t at = std::int64_t{first} * q_width_ * 2;
  QkvRows qkv = qkv_rows(first, n, rows, m);
  DecodeAttentionCuda a{.q = m.q + at,
                        .slots = rows.slots + first,
                        .lengths = rows.lengths + first,
                        .out = m.out + at,
                        .n = n,
                        .n_heads = qkv.n_heads,
                        .window = static_cast<std::int32_t>(model_.config().sliding_window),
                        .scale = scale_,
                        .scratch = m.scratch};
  if (!with_method) {
    const bool tapped = taps_->decodes(layer);
    if (tapped) a.lse = taps_->decode_lse() + std::int64_t{span} * qkv.n_heads;
    store_qkv_cuda(qkv, pages(), layer, m.q + at, context);
    attend_decode_cuda(a, pages(), layer, context);
    if (!tapped) return;
    taps_->take_decoded(layer, {.q = a.q, .slots = a.slots, .lengths = rows.attended + first, .first = span, .n = n},
                        pages(), context);
    return;
  }
  CudaRetrieval& r = *retrieval_;
  qkv.store = r.store(layer, rows.places + first);
  qkv.raw_keys = r.raw_keys();
  qkv.near = r.near(layer, rows.places + first);
  const bool selects = r.slot_layer(layer) >= 0, ahead = selects && r.ahead(), shares = ahead && r.shares_scores();
  store_qkv_cuda(qkv, tables_->tables(), layer, m.q + at, context);
  a.slots = rows.places + first;
  if (r.two_parts() && (selects || r.raw_keys())) {
    const SlotRows who = slot_rows(rows, first, n);
    delay(context);
    if (selects && r.by_layer())
      r.choose_by_layer(layer, who, m.far_q + std::int64_t{first} * q_width_ * 2, rows.far_to + first, context);
    const bool recalls = selects && r.recalls(), near_apart = r.raw_keys();
    if (recalls && !near_apart) {
      delay(context);
      r.recall(SelectWhen::kNow, layer, who, tables_->tables(), context);
    } else if (recalls) {
      // What is near lies in the ring of turned keys, and is attended meanwhile.
      const CudaContext beside{.stream = side_.get()};
      follow(side_, stored_, stream);
      delay(beside);
      r.recall(SelectWhen::kNow, layer, who, tables_->tables(), beside);
      attended_.record(side_);
    }
    attend_two_parts(layer, first, a, rows, m, context, recalls && near_apart ? &attended_ : nullptr, stream);
    if (selects) take_audit(layer, first, n, rows, m, stream);
    return;
  }
  if (!selects) {
    attend_decode_cuda(a, r.tables(layer), r.tables_layer(layer), context);
    return;
  }
  SlotRows who = slot_rows(rows, first, n);
  a.lengths = rows.attended + first;
  if (const CudaRetrieval::LayerRows of_layer = r.layer_rows(layer); of_layer.attended != nullptr) {
    who.anew = of_layer.anew + span;
    a.lengths = of_layer.attended + span;
  }
  a.tables_late = a.lengths_early = true;
  if (r.merges()) who.tickets = rows.tickets + first, a.arriving = r.arriving(who.tickets);
  // The choice for the next step stands beside this step, from the queries on (where it is made of this step's, from
  // that on), and brings pages once this step's are read. For pages of four sequences at 32K both ways have been
  // measured: between, 6.3 ms without corrections and 7.1 with 13 %; beside, 6.7 and 6.8.
  const CudaContext beside{.stream = side_.get()};
  const bool in_turn = r.chooses_in_turn();
  if (r.closes_first()) r.close_groups(layer, who, tables_->tables(), context);
  if (ahead && !in_turn) follow(side_, stored_, stream);
  delay(context);
  if (r.selects()) r.choose(SelectWhen::kNow, layer, who, tables_->tables(), context);
  if (ahead && in_turn) follow(side_, chosen_, stream);
  delay(context);
  // The next layer's scores go where those of the last one were. Here, because a kernel that waits for two others does
  // not begin early, and recall has the least to do before it waits.
  const int next_scores = r.next_scores();
  if (shares && scores_read_[next_scores]) stream.wait(scores_free_[next_scores]);
  if (r.recalls_by_host() && r.selects()) {
    r.recall_by_host(layer, method_rows_, stream);
  } else {
    r.recall(SelectWhen::kNow, layer, who, tables_->tables(), context);
  }
  attend_decode_cuda(a, r.tables(layer), r.tables_layer(layer), context);
  take_audit(layer, first, n, rows, m, stream);
  if (ahead) {
    attended_.record(stream);
    delay(beside);
    r.choose(SelectWhen::kNext, layer, who, tables_->tables(), beside);
    if (shares) scores_free_[1 - next_scores].record(side_), scores_read_[1 - next_scores] = true;
    // Of pages in a stream of its own, so that the next layer's choice need not wait for it (four sequences of 32,768
    // without corrections: 5.21 ms a step in place of 5.51). Of tokens that costs more than it gains (20 % turnover:
    // 6.56 ms in place of 6.47).
    const Stream& bringing = shares ? side_ : bringing_;
    if (!shares) follow(bringing_, made_, side_), brings_ = true;
    bringing.wait(attended_);
    const CudaContext brings{.stream = bringing.get()};
    delay(brings);
    r.recall(SelectWhen::kNext, layer, who, tables_->tables(), brings);
    beside_ = true;
  }
}

void CudaAttention::take_audit(std::int32_t layer, std::int32_t first, std::int32_t n, const CudaRowArrays& rows,
                               const Memory& m, const Stream& stream) {
  if (audit_->any())
    audit_->take(layer, first, n, {.q = m.q, .far_q = m.far_q, .out = m.out, .far_to = rows.far_to}, *retrieval_,
                 stream);
}

// What is near by the rows' own queries, what is far by those that stand elsewhere, and both as one.
void CudaAttention::attend_two_parts(std::int32_t layer, std::int32_t first, DecodeAttentionCuda a,
                                     const CudaRowArrays& rows, const Memory& m, const CudaContext& context,
                                     const Event* far_there, const Stream& stream) {
  const CudaRetrieval& r = *retrieval_;
  const bool selects = r.slot_layer(layer) >= 0, raw = r.raw_keys();
  const KeyRing ring = r.near(layer, nullptr);
  void* const out = a.out;
  a.tables_late = true;
  DecodeAttentionCuda far = a;
  a.begins = (selects ? rows.near_from : rows.near_from_dense) + first;
  a.lengths = rows.near_to + first;
  a.page_ring = ring.pages;
  a.out = part_out_[0].data(), a.lse = part_lse_[0].as<float>();
  far.q = has_far_ ? m.far_q + std::int64_t{first} * q_width_ * 2 : a.q;
  far.lengths = (selects ? rows.far_to : rows.far_to_dense) + first;
  far.out = part_out_[1].data(), far.lse = part_lse_[1].as<float>();
  attend_decode_cuda(a, raw ? ring.tables : r.tables(layer), raw ? ring.layer : r.tables_layer(layer), context);
  if (far_there != nullptr) stream.wait(*far_there);
  attend_decode_cuda(far, r.tables(layer), r.tables_layer(layer), context);
  merge_attention_cuda({a.out, a.lse}, {far.out, far.lse}, a.n, a.n_heads, shape_.head_dim, out, context);
}

void CudaAttention::finish(std::int32_t first, std::int32_t n, const CudaRowArrays& rows, const Stream& stream) {
  follow(side_, stored_, stream);
  const SlotRows who = slot_rows(rows, first, n);
  if (retrieval_->groups() && !retrieval_->closes_first())
    retrieval_->close_groups(-1, who, tables_->tables(), {.stream = side_.get()});
  retrieval_->write_back(who, tables_->tables(), {.stream = side_.get()});
  beside_ = true;
}

}  // namespace mneme
