#include "src/model/cuda/retrieval/retrieval.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/selection/index/unit_entries_cuda.h"
#include "src/selection/summary/summary_cuda.h"

namespace mneme {
namespace {

// Device memory of several arrays in one allocation.
class Pieces {
 public:
  void add(void* to, std::size_t bytes) {
    pieces_.push_back({to, total_});
    total_ += (bytes + 255) / 256 * 256;
  }
  std::size_t total() const { return total_; }
  void seq_slot(std::byte* base) const {
    for (const auto& p : pieces_) {
      std::byte* at = base + p.offset;
      std::memcpy(p.to, &at, sizeof(at));
    }
  }

 private:
  struct Piece {
    void* to;
    std::size_t offset;
  };
  std::vector<Piece> pieces_;
  std::size_t total_ = 0;
};

}  // namespace

UnitEntries CudaRetrieval::entries_of(const Needs::Keys& keys, const KvShape& shape, std::int32_t max_pages) {
  const std::int32_t tokens = keys.entry_tokens, rank = keys.entry_rank;
  UnitEntries e{.kind = keys.entries, .tokens = tokens, .rank = rank};
  e.bytes = e.summarised() ? summary_entry_bytes(e.kind, shape.head_dim, tokens, rank)
                           : unit_entry_bytes(e.kind, shape.head_dim, tokens);
  e.most = (max_pages * kPageTokens + tokens - 1) / tokens;
  if (e.summarised()) e.frame_floats = summary_frame_floats(e.kind, shape.head_dim, rank);
  return e;
}

CudaRetrieval::CudaRetrieval(const KvShape& shape, std::int32_t n_heads, Needs needs, const KvTables& pages,
                             const CudaRetrievalOptions& options)
    : shape_(shape),
      options_(options),
      needs_(std::move(needs)),
      in_pages_(options.pages_on_device && (needs_.keys.group_tokens > 0 || needs_.keys.by_token ||
                                            needs_.keys.list_tokens > 0 || needs_.keys.by_layer)),
      n_rows_((options.n_seq_slots + 7) / 8 * 8),
      seq_slots_(static_cast<std::size_t>(options.n_seq_slots)) {
  for (const bool dense : needs_.dense) {
    if (!dense) selecting_.push_back(static_cast<std::int32_t>(number_.size()));
    number_.push_back(dense ? -1 : n_selecting_++);
    dense_number_.push_back(dense ? n_dense_++ : -1);
  }
  view_.n_layers = n_selecting_;
  view_.n_seq_slots = options.n_seq_slots;
  view_.shared = needs_.keys.by_query_head ? n_heads / shape.n_kv_heads : 1;
  view_.n_kv_heads = shape.n_kv_heads * view_.shared;
  view_.n_heads = n_heads;
  view_.head_dim = shape.head_dim;
  view_.max_pages = pages_of_tokens(options.max_context) + 1;  // selections cover one more token
  if (needs_.keys.group_tokens > 0) {
    view_.unit_tokens = 1;
    view_.group_tokens = needs_.keys.group_tokens;
    view_.mean_abs = needs_.keys.mean_abs;
  }
  if (needs_.keys.by_token) view_.unit_tokens = 1;
  if (needs_.keys.entries != EntryKind::kNone) view_.entries = entries_of(needs_.keys, shape, view_.max_pages);
  view_.whole_attention = needs_.whole_attention;
  if (needs_.keys.list_tokens > 0) {
    view_.unit_tokens = 1;
    view_.lists.max_units = CudaUnitLists::most_units(needs_.keys.list_tokens, options.max_context);
    view_.lists.max_tokens = view_.max_pages * kPageTokens;
  }
  view_.n_slots = in_pages_ ? 0 : needs_.n_slots;
  view_.fetch = needs_.fetch;
  view_.max_listed = needs_.max_listed;
  view_.select_tokens = needs_.keys.select_tokens;
  view_.f16 = shape.dtype == DType::kF16;
  view_.delay_us = options.delay_us;
  expect_slots_cuda(view_);

  const auto states = static_cast<std::size_t>(n_selecting_) * static_cast<std::size_t>(options.n_seq_slots),
             heads = states * static_cast<std::size_t>(view_.n_kv_heads),
             n_pages = static_cast<std::size_t>(view_.max_pages), listed = static_cast<std::size_t>(view_.max_listed),
             slots = static_cast<std::size_t>(view_.n_slots), n_q = states * static_cast<std::size_t>(view_.n_heads);
  if (slots > 0)
    slots_ =
        DeviceBuffer(heads * slots * view_.unit_bytes(), "slots for selected units (the budget sets their number)");
  view_.slots = slots_.data();
  if (view_.group_tokens > 0) {
    Pieces keys;
    keys.add(&view_.keys.codes, one_bit_code_bytes(view_, heads));
    keys.add(&view_.keys.levels, one_bit_level_bytes(view_, heads));
    index_ = DeviceBuffer(keys.total(), "1-bit keys");
    keys.seq_slot(index_.data());
  } else if (view_.lists.max_units > 0) {
    const auto units = static_cast<std::size_t>(view_.lists.max_units),
               tokens = static_cast<std::size_t>(view_.lists.max_tokens);
    Pieces lists;
    lists.add(&view_.lists.centroids, heads * units * shape.token_bytes() / 2);
    lists.add(&view_.lists.ends, heads * units * 4);
    lists.add(&view_.lists.members, heads * tokens * 4);
    index_ = DeviceBuffer(lists.total(), "clusters and segments");
    lists.seq_slot(index_.data());
  } else if (needs_.keys.entries != EntryKind::kNone) {
    Pieces entries;
    entries.add(&view_.entries.data,
                heads * static_cast<std::size_t>(view_.entries.most) * static_cast<std::size_t>(view_.entries.bytes));
    entries.add(&view_.entries.frames, heads * static_cast<std::size_t>(view_.entries.frame_floats) * sizeof(float));
    index_ = DeviceBuffer(entries.total(), "index of units");
    entries.seq_slot(index_.data());
    frames_ = DeviceBuffer(fit_frames_scratch_bytes(view_), "keys that frames are fitted to");
  } else if (!needs_.two_parts && !needs_.keys.by_token) {
    // A warp reads 16 boxes at a time, valid or not.
    index_ = DeviceBuffer((heads * n_pages + kBoxesBeyond) * shape.token_bytes(), "boxes of pages");
    view_.boxes = index_.data();
    // The unfused selection reads the same boxes.
    view_.entries = {.kind = EntryKind::kMinMaxBox,
                     .tokens = kPageTokens,
                     .bytes = static_cast<std::int32_t>(shape.token_bytes()),
                     .most = view_.max_pages,
                     .data = view_.boxes};
  }
  Pieces small;
  if (slots > 0) {
    small.add(&view_.slot_of, heads * static_cast<std::size_t>(view_.max_units()) * 4);
    small.add(&view_.unit_of, heads * slots * 4);
    small.add(&view_.last_used, heads * slots * 4);
  }
  for (int i = 0; i < 2; ++i)
    small.add(&view_.selected_ids[i], heads * listed * 4), small.add(&view_.n_selected[i], heads * 4);
  small.add(&view_.listed, heads * listed * 4);
  small.add(&view_.listed_for, heads * 4), small.add(&view_.arrived_for, heads * 4);
  if (needs_.keeps) small.add(&view_.kept, states * sizeof(KeptSelection));
  if (view_.lists.max_units > 0)
    small.add(&view_.lists.n_units, heads * 4), small.add(&view_.lists.grouped, states * 4);
  tables_ = DeviceBuffer(small.total(), "tables of slots");
  small.seq_slot(tables_.data());
  Pieces queries;
  queries.add(&view_.last_q, n_q * static_cast<std::size_t>(shape.head_dim) * 2);
  if (needs_.last_asked) queries.add(&view_.asked_q, n_q * static_cast<std::size_t>(shape.head_dim) * 2);
  if (needs_.probes_below)
    queries.add(&view_.below_q, static_cast<std::size_t>(shape.n_layers * options.n_seq_slots) *
                                    static_cast<std::size_t>(view_.n_heads * shape.head_dim) * 2);
  queries.add(&view_.cosine, n_q * 4);
  queries.add(&view_.mass, heads * 4);
  queries_ = DeviceBuffer(queries.total(), "queries of the last step");
  queries.seq_slot(queries_.data());
  rules_ = DeviceBuffer(std::max<std::size_t>(states, 1) * sizeof(SlotRules), "rules of sequences");
  view_.rules = rules_.as<SlotRules>();
  counts_ = DeviceBuffer(std::max<std::size_t>(states, 1) * sizeof(SlotCounts), "counts of methods");
  view_.counts = counts_.as<SlotCounts>();
  host_counts_ = PinnedBuffer(counts_.size());
  if (view_.lists.max_units > 0) host_units_ = PinnedBuffer(heads * sizeof(std::int32_t));
  host_rules_ = PinnedBuffer(rules_.size());
  if (needs_.by_prompt && n_selecting_ > 0) {
    layer_rows_ = DeviceBuffer(2 * static_cast<std::size_t>(n_selecting_ * n_rows_) * 4, "what rows attend, by layer");
    host_layer_rows_ = PinnedBuffer(layer_rows_.size());
  }
  if (by_layer()) {
    const auto seq_slots = static_cast<std::size_t>(options.n_seq_slots), doubles = states * sizeof(double);
    Pieces shares;
    shares.add(&shares_view_.cuts, seq_slots * sizeof(LayerCut));
    shares.add(&shares_view_.later, doubles);
    shares.add(&shares_view_.thetas, doubles);
    shares.add(&shares_view_.pools, seq_slots * sizeof(double));
    shares.add(&shares_view_.ranks, static_cast<std::size_t>(n_rows_) * rank_stride() * 4);
    shares_ = DeviceBuffer(shares.total(), "scores of pages");
    shares.seq_slot(shares_.data());
    host_shares_ =
        PinnedBuffer(seq_slots * (sizeof(LayerCut) + static_cast<std::size_t>(n_selecting_) * sizeof(double)));
    host_thetas_ = PinnedBuffer(doubles);
    if (!options.pages_on_device) key_index_.emplace(shape, n_selecting_, options.n_seq_slots, options.max_context);
  } else if (needs_.selects) {
    const std::size_t bytes = std::max(view_.lists.max_units > 0 ? select_lists_scratch_bytes(view_, n_rows_)
                                       : view_.group_tokens > 0  ? select_tokens_scratch_bytes(view_, n_rows_)
                                       : needs_.keys.by_token    ? 0
                                                                 : select_scratch_bytes(view_, n_rows_),
                                       needs_.unfused ? unfused_select_scratch_bytes(view_, n_rows_) : 0);
    scratch_[0] = DeviceBuffer(bytes, "scores of units");
    // A selection for the next step may overlap the one for this step, or for the next layer.
    if (speculative() && !lists_as_selected()) scratch_[1] = DeviceBuffer(bytes, "scores of units");
  }
  if (view_.lists.max_units > 0) lists_ = std::make_unique<CudaUnitLists>(view_);
  slot_tables_ = view_.tables();
  if (in_pages_) slot_tables_.base = pages.base;
  pages_ = pages;

  dense_tables_ = {.base = nullptr,
                   .blocks = nullptr,
                   .sequence_stride = std::int64_t{shape.n_kv_heads} * view_.max_pages,
                   .max_pages = view_.max_pages,
                   .n_kv_heads = shape.n_kv_heads,
                   .head_dim = shape.head_dim,
                   .f16 = view_.f16};
  const Stream stream = Stream::make();
  for (const DeviceBuffer* b : {&counts_, &scratch_[0], &scratch_[1], &queries_, &tables_})
    if (b->size() > 0) set_bytes(b->data(), 0, b->size(), stream);
  if (n_dense_ > 0 && !in_pages_) {
    const auto blocks = static_cast<std::size_t>(n_dense_) * static_cast<std::size_t>(options.n_seq_slots) *
                        static_cast<std::size_t>(dense_tables_.sequence_stride);
    dense_ = DeviceBuffer(blocks * shape.page_bytes(), "keys and values of the layers that read everything");
    dense_blocks_ = DeviceBuffer(blocks * sizeof(std::int32_t), "tables of these");
    std::vector<std::int32_t> same(blocks);
    std::iota(same.begin(), same.end(), 0);
    copy_bytes(dense_blocks_.data(), same.data(), dense_blocks_.size(), stream);
    dense_tables_.base = dense_.data();
    dense_tables_.blocks = dense_blocks_.as<std::int32_t>();
  }
  if (needs_.ring_pages > 0) {
    local_tables_ = dense_tables_;
    local_tables_.max_pages = needs_.ring_pages;
    local_tables_.sequence_stride = std::int64_t{shape.n_kv_heads} * needs_.ring_pages;
    const auto blocks = static_cast<std::size_t>(shape.n_layers) * static_cast<std::size_t>(options.n_seq_slots) *
                        static_cast<std::size_t>(local_tables_.sequence_stride);
    local_ = DeviceBuffer(blocks * shape.page_bytes(), "rotated keys near the newest token");
    local_blocks_ = DeviceBuffer(blocks * sizeof(std::int32_t), "tables of these");
    std::vector<std::int32_t> same(blocks);
    std::iota(same.begin(), same.end(), 0);
    copy_bytes(local_blocks_.data(), same.data(), local_blocks_.size(), stream);
    local_tables_.base = local_.data();
    local_tables_.blocks = local_blocks_.as<std::int32_t>();
    inv_freq_ = DeviceBuffer(options.rope->inv_freq.size() * sizeof(double), "frequencies");
    copy_bytes(inv_freq_.data(), options.rope->inv_freq.data(), inv_freq_.size(), stream);
    stream.synchronize();
  }
  std::vector<std::int32_t> numbers;
  for (std::int32_t l = 0; l < shape.n_layers; ++l)
    numbers.push_back(slot_layer(l) >= 0 ? slot_layer(l) : -1 - dense_number_[static_cast<std::size_t>(l)]);
  numbers_device_ = DeviceBuffer(numbers.size() * sizeof(std::int32_t), "numbers of layers");
  copy_bytes(numbers_device_.data(), numbers.data(), numbers_device_.size(), stream);
  layers_device_ = DeviceBuffer(selecting_.size() * sizeof(std::int32_t), "numbers of layers");
  if (!selecting_.empty()) copy_bytes(layers_device_.data(), selecting_.data(), layers_device_.size(), stream);
  stream.synchronize();
}

SlotStore CudaRetrieval::store(std::int32_t layer, const std::int32_t* seq_slots) const {
  if (slot_layer(layer) < 0 && in_pages_) return {};
  if (slot_layer(layer) < 0)
    return {.kind = SlotStore::Kind::kTables,
            .seq_slots = seq_slots,
            .tables = dense_tables_,
            .layer = tables_layer(layer),
            .slots = {}};
  return {.kind = SlotStore::Kind::kSlots,
          .seq_slots = seq_slots,
          .tables = {},
          .layer = slot_layer(layer),
          .slots = view_};
}

std::int32_t CudaRetrieval::tables_layer(std::int32_t layer) const {
  if (in_pages_ && slot_layer(layer) < 0) return layer;
  const std::int32_t number =
      slot_layer(layer) >= 0 ? slot_layer(layer) : dense_number_[static_cast<std::size_t>(layer)];
  return number * options_.n_seq_slots;  // layers of all sequence slots are consecutive
}

void CudaRetrieval::select(SelectWhen when, std::int32_t layer, const SlotRows& rows, const KvTables& pages,
                           const CudaContext& context) {
  if (shares_scores() && when == SelectWhen::kNow) scores_ = next_scores();
  const auto buffer = static_cast<std::size_t>(shares_scores() ? scores_ : static_cast<int>(when));
  std::byte* scratch = scratch_[buffer].data();
  if (needs_.unfused)
    unfused_select_cuda({.rows = rows, .when = when, .pages = of_heads(pages), .layer = layer, .scratch = scratch},
                        view_, slot_layer(layer), context);
  if (!needs_.fused) return;
  if (lists_) {
    select_lists_cuda({.rows = rows, .when = when, .scratch = scratch}, view_, slot_layer(layer), context);
  } else if (view_.unit_tokens == 1) {
    select_tokens_cuda({.rows = rows,
                        .when = when,
                        .scratch = scratch,
                        .early = !closes_first(),
                        .pages = lists_as_selected() ? &pages : nullptr,
                        .layer = layer},
                       view_, slot_layer(layer), context);
  } else {
    select_pages_cuda({.rows = rows, .when = when, .scratch = scratch}, view_, slot_layer(layer), context);
  }
}

void CudaRetrieval::recall(SelectWhen when, std::int32_t layer, const SlotRows& rows, const KvTables& pages,
                           const CudaContext& context) {
  if (when == SelectWhen::kNow && lists_as_selected()) return;
  recall_units_cuda(rows, when, view_, of_heads(pages), layer, slot_layer(layer), options_.recall_blocks, context);
}

void CudaRetrieval::inject_outcomes(float turnover, float correction, RecallBy recall_by) {
  options_.turnover = turnover, options_.correction = correction;
  if (options_.recall_by == recall_by) return;
  options_.recall_by = recall_by;
  for (SeqSlot& p : seq_slots_)
    p = {.revision = 0, .layers = {}, .counts = std::move(p.counts), .clusters = {}};  // reset
}

void CudaRetrieval::recall_by_host(std::int32_t layer, std::span<const Row> rows, const Stream& stream) {
  if (!host_recall_) host_recall_ = std::make_unique<CudaHostRecall>(view_);
  std::vector<CudaHostRecall::Row> all;
  for (const Row& r : rows) {
    const SlotRules& rules = at(r.seq_slot, layer).rules;
    if (rules.schedule != SlotSchedule::kEveryStep || rules.unit_tokens == 1 || view_.shared > 1)
      fail(ErrorKind::kUnsupported, "recall by the host: for methods that select pages at every step");
    all.push_back({r.cache, rules, r.seq_slot, at(r.seq_slot, layer).reset != 0});
  }
  host_recall_->recall(all, options_.recall_by, layer, slot_layer(layer), stream);
}

void CudaRetrieval::close_groups(std::int32_t layer, const SlotRows& rows, const KvTables& pages,
                                 const CudaContext& context) {
  if (needs_.keys.entries != EntryKind::kNone) {
    const auto close = view_.entries.summarised() ? close_summaries_cuda : close_unit_entries_cuda;
    close(rows, view_, slot_layer(layer), of_heads(pages), layer, context);
    return;
  }
  const std::int32_t first = layer < 0 ? 0 : slot_layer(layer), stop = layer < 0 ? n_selecting_ : first + 1;
  close_one_bit_cuda({.rows = rows, .first = first, .stop = stop, .model_layers = layers_device_.as<std::int32_t>()},
                     view_, pages, context);
}

void CudaRetrieval::keep_probes(std::int32_t layer, const void* q, const SlotRows& rows, const CudaContext& context) {
  if (needs_.probes_below && layer + 1 < shape_.n_layers)
    keep_probes_cuda(q, rows.seq_slots, rows.n, view_, layer, context);
}

void CudaRetrieval::write_back(const SlotRows& rows, const KvTables& pages, const CudaContext& context) {
  if (in_pages_) return;
  write_back_cuda(rows, view_, dense_tables_, numbers_device_.as<std::int32_t>(), pages, shape_.n_layers, context);
}

std::size_t CudaRetrieval::bytes() const {
  std::size_t n = lists_ ? lists_->bytes() : 0;
  for (const DeviceBuffer* b : {&slots_, &index_, &tables_, &queries_, &rules_, &counts_, &scratch_[0], &scratch_[1],
                                &dense_, &dense_blocks_, &local_, &local_blocks_, &shares_, &layer_rows_, &frames_})
    n += b->size();
  return n + (key_index_ ? key_index_->bytes() : 0);
}

}  // namespace mneme
