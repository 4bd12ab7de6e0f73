#include "src/model/cuda_retrieval.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "src/base/check.h"
#include "src/base/error.h"

namespace mneme {
namespace {

constexpr std::int32_t kDenseBlocksAHead = 4;

// Device memory of several arrays in one piece.
class Pieces {
 public:
  void add(void* to, std::size_t bytes) {
    pieces_.push_back({to, total_});
    total_ += (bytes + 255) / 256 * 256;
  }
  std::size_t total() const { return total_; }
  void place(std::byte* base) const {
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

CudaRetrieval::CudaRetrieval(const KvShape& shape, std::int32_t n_heads, Needs needs, const KvTables& pages,
                             const CudaRetrievalOptions& options)
    : shape_(shape),
      options_(options),
      needs_(std::move(needs)),
      in_pages_(options.pages_on_device && (needs_.keys.group_tokens > 0 || needs_.keys.by_key ||
                                            needs_.keys.list_tokens > 0 || needs_.keys.by_layer)),
      places_(static_cast<std::size_t>(options.n_places)) {
  std::vector<std::int32_t> layers;  // of the model, by slot layer
  for (const bool dense : needs_.dense) {
    if (!dense) layers.push_back(static_cast<std::int32_t>(number_.size()));
    number_.push_back(dense ? -1 : n_selecting_++);
    dense_number_.push_back(dense ? n_dense_++ : -1);
  }
  view_.n_layers = n_selecting_;
  view_.n_places = options.n_places;
  view_.n_kv_heads = shape.n_kv_heads;
  view_.n_heads = n_heads;
  view_.head_dim = shape.head_dim;
  view_.max_pages = pages_of_tokens(options.max_context) + 1;  // a choice is made for one token more
  if (needs_.keys.group_tokens > 0) {
    view_.unit_tokens = 1;
    view_.group_tokens = needs_.keys.group_tokens;
    view_.mean_abs = needs_.keys.mean_abs;
  }
  if (needs_.keys.by_key) view_.unit_tokens = 1;
  if (needs_.keys.list_tokens > 0) {
    view_.unit_tokens = 1;
    view_.lists.max_units = CudaUnitLists::most_units(needs_.keys.list_tokens, options.max_context);
    view_.lists.max_tokens = view_.max_pages * kPageTokens;
  }
  view_.n_slots = in_pages_ ? 0 : needs_.n_slots;
  view_.fetch = needs_.fetch;
  view_.max_listed = needs_.max_listed;
  view_.f16 = shape.dtype == DType::kF16;
  view_.delay_us = options.delay_us;
  expect_slots_cuda(view_);

  const auto states = static_cast<std::size_t>(n_selecting_) * static_cast<std::size_t>(options.n_places),
             heads = states * static_cast<std::size_t>(shape.n_kv_heads),
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
    keys.place(index_.data());
  } else if (view_.lists.max_units > 0) {
    const auto units = static_cast<std::size_t>(view_.lists.max_units),
               tokens = static_cast<std::size_t>(view_.lists.max_tokens);
    Pieces lists;
    lists.add(&view_.lists.centroids, heads * units * shape.token_bytes() / 2);
    lists.add(&view_.lists.ends, heads * units * 4);
    lists.add(&view_.lists.members, heads * tokens * 4);
    index_ = DeviceBuffer(lists.total(), "clusters and segments");
    lists.place(index_.data());
  } else if (!needs_.two_parts && !needs_.keys.by_key) {
    // A warp reads 16 boxes at once, whether all are there or not.
    index_ = DeviceBuffer((heads * n_pages + kBoxesBeyond) * shape.token_bytes(), "boxes of pages");
    view_.boxes = index_.data();
  }
  Pieces small;
  if (slots > 0) {
    small.add(&view_.slot_of, heads * static_cast<std::size_t>(view_.max_units()) * 4);
    small.add(&view_.unit_of, heads * slots * 4);
    small.add(&view_.used_at, heads * slots * 4);
  }
  for (int i = 0; i < 2; ++i) small.add(&view_.chosen[i], heads * listed * 4), small.add(&view_.n_chosen[i], heads * 4);
  small.add(&view_.listed, heads * listed * 4);
  small.add(&view_.listed_for, heads * 4), small.add(&view_.arrived_for, heads * 4);
  if (needs_.keeps) small.add(&view_.kept, states * sizeof(KeptSelection));
  if (view_.lists.max_units > 0)
    small.add(&view_.lists.n_units, heads * 4), small.add(&view_.lists.grouped, states * 4);
  tables_ = DeviceBuffer(small.total(), "tables of slots");
  small.place(tables_.data());
  Pieces queries;
  queries.add(&view_.last_q, n_q * static_cast<std::size_t>(shape.head_dim) * 2);
  if (needs_.last_asked) queries.add(&view_.asked_q, n_q * static_cast<std::size_t>(shape.head_dim) * 2);
  queries.add(&view_.cosine, n_q * 4);
  queries.add(&view_.mass, heads * 4);
  queries_ = DeviceBuffer(queries.total(), "queries of the last step");
  queries.place(queries_.data());
  rules_ = DeviceBuffer(static_cast<std::size_t>(options.n_places) * sizeof(SlotRules), "rules of sequences");
  view_.rules = rules_.as<SlotRules>();
  counts_ = DeviceBuffer(std::max<std::size_t>(states, 1) * sizeof(SlotCounts), "counts of methods");
  view_.counts = counts_.as<SlotCounts>();
  host_counts_ = PinnedBuffer(counts_.size());
  if (view_.lists.max_units > 0) host_units_ = PinnedBuffer(heads * sizeof(std::int32_t));
  host_rules_ = PinnedBuffer(rules_.size());
  const std::int32_t rows = (options.n_places + 7) / 8 * 8;  // as a graph has them
  if (by_layer()) {
    const auto places = static_cast<std::size_t>(options.n_places), doubles = states * sizeof(double);
    Pieces shares;
    shares.add(&shares_view_.cuts, places * sizeof(LayerCut));
    shares.add(&shares_view_.later, doubles);
    shares.add(&shares_view_.thetas, doubles);
    shares.add(&shares_view_.pools, places * sizeof(double));
    shares.add(&shares_view_.ranks, static_cast<std::size_t>(rows) * rank_stride() * 4);
    shares_ = DeviceBuffer(shares.total(), "scores of pages");
    shares.place(shares_.data());
    host_shares_ = PinnedBuffer(places * (sizeof(LayerCut) + static_cast<std::size_t>(n_selecting_) * sizeof(double)));
    host_thetas_ = PinnedBuffer(doubles);
    if (!options.pages_on_device) key_index_.emplace(shape, n_selecting_, options.n_places, options.max_context);
  } else if (needs_.selects)
    for (DeviceBuffer& s : scratch_)
      s = DeviceBuffer(std::max(view_.lists.max_units > 0 ? choose_lists_scratch_bytes(view_, rows)
                                : view_.group_tokens > 0  ? choose_tokens_scratch_bytes(view_, rows)
                                : needs_.keys.by_key      ? 0
                                                          : choose_scratch_bytes(view_, rows),
                                needs_.controls ? choose_controls_scratch_bytes(view_, rows) : 0),
                       "scores of units");
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
    const auto blocks = static_cast<std::size_t>(n_dense_) * static_cast<std::size_t>(options.n_places) *
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
    near_tables_ = dense_tables_;
    near_tables_.max_pages = needs_.ring_pages;
    near_tables_.sequence_stride = std::int64_t{shape.n_kv_heads} * needs_.ring_pages;
    const auto blocks = static_cast<std::size_t>(shape.n_layers) * static_cast<std::size_t>(options.n_places) *
                        static_cast<std::size_t>(near_tables_.sequence_stride);
    near_ = DeviceBuffer(blocks * shape.page_bytes(), "turned keys near the newest token");
    near_blocks_ = DeviceBuffer(blocks * sizeof(std::int32_t), "tables of these");
    std::vector<std::int32_t> same(blocks);
    std::iota(same.begin(), same.end(), 0);
    copy_bytes(near_blocks_.data(), same.data(), near_blocks_.size(), stream);
    near_tables_.base = near_.data();
    near_tables_.blocks = near_blocks_.as<std::int32_t>();
    inv_freq_ = DeviceBuffer(options.rope->inv_freq.size() * sizeof(double), "frequencies");
    copy_bytes(inv_freq_.data(), options.rope->inv_freq.data(), inv_freq_.size(), stream);
    stream.synchronize();
  }
  std::vector<std::int32_t> numbers;
  for (std::int32_t l = 0; l < shape.n_layers; ++l)
    numbers.push_back(slot_layer(l) >= 0 ? slot_layer(l) : -1 - dense_number_[static_cast<std::size_t>(l)]);
  numbers_there_ = DeviceBuffer(numbers.size() * sizeof(std::int32_t), "numbers of layers");
  copy_bytes(numbers_there_.data(), numbers.data(), numbers_there_.size(), stream);
  layers_there_ = DeviceBuffer(layers.size() * sizeof(std::int32_t), "numbers of layers");
  if (!layers.empty()) copy_bytes(layers_there_.data(), layers.data(), layers_there_.size(), stream);
  stream.synchronize();
}

// Tokens that a row of n attends in a layer that selects; n is above the budget. As the kernels have it.
std::int32_t CudaRetrieval::attended_by(const SlotRules& r, std::int32_t n) {
  const std::int32_t unit = r.unit_tokens, first = r.sink / unit, stop = (n + unit - 1) / unit;
  if (unit == 1 && r.schedule == SlotSchedule::kKept) return r.budget;
  std::int32_t window = std::max(first, stop - r.recent / unit), most = r.n_select;
  if (unit == 1 && r.schedule == SlotSchedule::kNone) {
    window = std::max(first, whole_pages(n - r.recent));
  } else if (unit == 1) {
    window = std::max(first, std::min(std::max(n - r.recent, 0), (n - 1) / r.entry_tokens * r.entry_tokens));
    most = std::max(0, r.budget - r.sink - (n - window));
  }
  const std::int32_t chosen = r.schedule == SlotSchedule::kNone ? 0 : std::min(most, window - first);
  return r.sink + chosen * unit + n - window * unit;
}

// The index of tokens [first, stop), as far as it is of them; the last page's box may be open.
void CudaRetrieval::build_index(std::int32_t place, std::int32_t number, std::int32_t first, std::int32_t stop,
                                std::int32_t key_slot, std::int32_t key_layer, const KvTables& keys,
                                const CudaContext& context) {
  const std::int32_t each = entry_tokens();
  if (needs_.two_parts || needs_.keys.by_key) return;  // indexed by index_keys(), or not at all
  if (view_.group_tokens > 0) {
    build_one_bit_cuda({.place = place,
                        .slot_layer = number,
                        .first = first / each,
                        .stop = stop / each,
                        .key_slot = key_slot,
                        .key_layer = key_layer},
                       view_, keys, context);
    return;
  }
  build_boxes_cuda({.place = place,
                    .slot_layer = number,
                    .first = first / each,
                    .stop = pages_of_tokens(stop),
                    .n_tokens = stop,
                    .key_slot = key_slot,
                    .key_layer = key_layer},
                   view_, keys, context);
}

// Whether the place had something else before.
bool CudaRetrieval::begin_place(std::int32_t place, const SequenceCache& cache, const Plan& plan,
                                const Stream& stream) {
  Place& p = places_[static_cast<std::size_t>(place)];
  const bool other = p.revision != cache.revision();
  const ClusterUnit clusters = plan.lists ? plan.lists->clusters : ClusterUnit{};
  if (lists_ && (other || !(p.clusters == clusters))) lists_->forget(place, stream);
  if (other) p = {.revision = cache.revision(), .rules = p.rules, .counts = std::move(p.counts), .clusters = {}};
  p.clusters = clusters;
  return other;
}

CudaRetrieval::Place& CudaRetrieval::place_of(const SequenceCache& cache, const Plan& plan, std::int32_t place,
                                              const Stream& stream) {
  Place& p = places_[static_cast<std::size_t>(place)];
  const bool other = begin_place(place, cache, plan, stream);
  SlotRules rules = rules_in(view_.unit_tokens, plan);
  rules.turnover = options_.turnover, rules.correction = options_.correction;
  if (!other && p.rules == rules) return p;
  p.decoded = -1;
  if (p.rules == rules) return p;
  p.rules = rules;
  stream.synchronize();  // the host's copy may be on its way still
  host_rules_.as<SlotRules>()[place] = rules;
  copy_bytes(view_.rules + place, host_rules_.as<SlotRules>() + place, sizeof(rules), stream);
  return p;
}

// Index, units and whole layers of all tokens before the row's own.
void CudaRetrieval::build_before(const Row& row, const KvTables& pages, const Stream& stream) {
  const std::int32_t n = row.cache->length(), before = n - 1, place = row.place;
  const Plan& plan = row.method->plan();
  Place& p = places_[static_cast<std::size_t>(place)];
  const CudaContext context{.stream = stream.get()};
  // Up to the open page or group, with whose index and block the step itself goes on.
  for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
    const std::int32_t number = slot_layer(l);
    if (number < 0 && p.dense != before && !in_pages_)
      copy_pages_cuda(dense_tables_, tables_layer(l), pages, l, place, place, std::min(p.dense, before) / kPageTokens,
                      pages_of_tokens(before), kDenseBlocksAHead, context);
    if (number >= 0 && !plan.selects()) continue;  // needs no index
    if (number >= 0 && lists_) {
      row.method->see_output(l, n, false);  // what leaves the window now does not depend on this step's gate
      lists_->follow({.place = place, .slot_layer = number, .key_slot = place, .key_layer = l}, plan,
                     row.method->layer(l).partition, pages, stream);
    } else if (number >= 0 && p.indexed != before && !two_parts()) {
      build_index(place, number, std::min(p.indexed, before), before, place, l, pages, context);
    }
  }
  if (lists_) {
    lists_->close_segments(pages, stream);
    lists_->join(stream);
  }
  if (!by_layer() && plan.selects()) p.indexed = n;
  p.dense = n;
}

void CudaRetrieval::prepare(Row& row, const KvTables& pages, const Stream& stream) {
  const std::int32_t n = row.cache->length(), place = row.place;
  const Plan& plan = row.method->plan();
  Place& p = place_of(*row.cache, plan, place, stream);
  const CudaContext context{.stream = stream.get()};
  const bool everything = n <= p.rules.budget, goes_on = p.decoded == n - 1;
  build_before(row, pages, stream);
  if (!goes_on || everything != p.everything) {
    for (std::int32_t l = 0; l < shape_.n_layers; ++l)
      if (slot_layer(l) >= 0) fill_slots_cuda(place, n, p.rules, view_, pages, l, slot_layer(l), context);
    row.anew = kNoSelection | (goes_on ? 0 : kNoQuery);
  }
  if (by_layer()) {
    if (key_index_) key_index_->reserve(place, n, stream);
    index_keys(p, place, n - 1, pages, context);
    send_shares(row, stream);
  }
  if (raw_keys() && !goes_on) fill_ring(place, n - 1, plan.rules.recent, pages, context);
  p.everything = everything;
  p.decoded = n;
  row.attended_tokens = everything ? n : attended_by(p.rules, n);
  if (two_parts()) {
    row.parts = parts_of(plan, p.rules, n);
    row.attended_tokens = everything ? n : plan.rules.sink + n - region_at(plan.rules, n).recent_from;
  }
}

void CudaRetrieval::take_prompt(const Prompt& t, std::int32_t layer, const KvTables& keys, const Stream& stream) {
  const Plan& plan = t.method->plan();
  begin_place(t.place, *t.cache, plan, stream);
  Place& p = places_[static_cast<std::size_t>(t.place)];
  const std::int32_t n_tokens = t.first + t.n, begin = t.first / kPageTokens, stop = pages_of_tokens(n_tokens),
                     number = slot_layer(layer);
  const CudaContext context{.stream = stream.get()};
  if (number >= 0 && !plan.selects()) return;
  if (number >= 0 && lists_) {
    t.method->see_prompt(layer, n_tokens, t.left == 0);
    lists_->follow({.place = t.place, .slot_layer = number, .key_slot = t.key_slot, .key_layer = t.key_layer}, plan,
                   t.method->layer(layer).partition, keys, stream);
    lists_->close_segments(keys, stream);
    return;
  }
  // What is missing of earlier tokens, prepare() brings.
  const bool dense = number < 0;
  if (!dense && key_index_) {
    copy_keys_cuda(keys, t.key_slot, t.key_layer, layer_keys(layer), t.place, begin, stop, context);
    if (number + 1 == n_selecting_) p.indexed = n_tokens / kPageTokens * kPageTokens;
    return;
  }
  if (dense ? in_pages_ || p.dense < begin * kPageTokens : p.indexed < t.first / entry_tokens() * entry_tokens())
    return;
  if (dense) {
    copy_pages_cuda(dense_tables_, tables_layer(layer), keys, t.key_layer, t.place, t.key_slot, begin, stop,
                    kDenseBlocksAHead, context);
    if (dense_number_[static_cast<std::size_t>(layer)] + 1 == n_dense_) p.dense = n_tokens;
  } else {
    build_index(t.place, number, t.first, n_tokens, t.key_slot, t.key_layer, keys, context);
    if (number + 1 == n_selecting_) p.indexed = n_tokens;
  }
}

SlotStore CudaRetrieval::store(std::int32_t layer, const std::int32_t* places) const {
  if (slot_layer(layer) < 0 && in_pages_) return {};
  if (slot_layer(layer) < 0)
    return {.kind = SlotStore::Kind::kTables,
            .places = places,
            .tables = dense_tables_,
            .layer = tables_layer(layer),
            .slots = {}};
  return {.kind = SlotStore::Kind::kSlots, .places = places, .tables = {}, .layer = slot_layer(layer), .slots = view_};
}

std::int32_t CudaRetrieval::tables_layer(std::int32_t layer) const {
  if (in_pages_ && slot_layer(layer) < 0) return layer;
  const std::int32_t number =
      slot_layer(layer) >= 0 ? slot_layer(layer) : dense_number_[static_cast<std::size_t>(layer)];
  return number * options_.n_places;  // layers of all places stand one after the other
}

void CudaRetrieval::choose(SelectWhen when, std::int32_t layer, const SlotRows& rows, const KvTables& pages,
                           const CudaContext& context) {
  std::byte* scratch = scratch_[static_cast<std::size_t>(when)].data();
  if (needs_.controls && when == SelectWhen::kNow)
    choose_controls_cuda({.rows = rows, .pages = pages, .layer = layer, .scratch = scratch}, view_, slot_layer(layer),
                         context);
  if (needs_.keys.by_key) return;
  if (lists_) {
    choose_lists_cuda({.rows = rows, .when = when, .scratch = scratch}, view_, slot_layer(layer), context);
  } else if (view_.unit_tokens == 1) {
    choose_tokens_cuda({.rows = rows, .when = when, .scratch = scratch, .early = !needs_.ahead}, view_,
                       slot_layer(layer), context);
  } else {
    choose_pages_cuda({.rows = rows, .when = when, .scratch = scratch}, view_, slot_layer(layer), context);
  }
}

void CudaRetrieval::recall(SelectWhen when, std::int32_t layer, const SlotRows& rows, const KvTables& pages,
                           const CudaContext& context) {
  recall_units_cuda(rows, when, view_, pages, layer, slot_layer(layer), options_.recall_blocks, context);
}

void CudaRetrieval::draw_outcomes(float turnover, float correction, RecallBy recall_by) {
  options_.turnover = turnover, options_.correction = correction;
  if (options_.recall_by == recall_by) return;
  options_.recall_by = recall_by;
  for (Place& p : places_) p = {.revision = 0, .rules = {}, .counts = std::move(p.counts), .clusters = {}};  // anew
}

void CudaRetrieval::recall_by_host(std::int32_t layer, std::span<const Row> rows, const Stream& stream) {
  if (!host_recall_) host_recall_ = std::make_unique<CudaHostRecall>(view_);
  std::vector<CudaHostRecall::Row> all;
  for (const Row& r : rows) {
    const SlotRules& rules = places_[static_cast<std::size_t>(r.place)].rules;
    if (rules.schedule != SlotSchedule::kEveryStep || rules.unit_tokens == 1)
      fail(ErrorKind::kUnsupported, "recall by the host: for methods that select pages at every step");
    all.push_back({r.cache, rules, r.place, r.anew != 0});
  }
  host_recall_->recall(all, options_.recall_by, layer, slot_layer(layer), stream);
}

void CudaRetrieval::close_groups(std::int32_t layer, const SlotRows& rows, const KvTables& pages,
                                 const CudaContext& context) {
  const std::int32_t first = layer < 0 ? 0 : slot_layer(layer), stop = layer < 0 ? n_selecting_ : first + 1;
  close_one_bit_cuda({.rows = rows, .first = first, .stop = stop, .model_layers = layers_there_.as<std::int32_t>()},
                     view_, pages, context);
}

void CudaRetrieval::write_back(const SlotRows& rows, const KvTables& pages, const CudaContext& context) {
  if (in_pages_) return;
  write_back_cuda(rows, view_, dense_tables_, numbers_there_.as<std::int32_t>(), pages, shape_.n_layers, context);
}

void CudaRetrieval::fetch_counts(const Stream& stream) {
  copy_bytes(host_counts_.data(), counts_.data(), counts_.size(), stream);
  if (host_units_.size() > 0) copy_bytes(host_units_.data(), view_.lists.n_units, host_units_.size(), stream);
  if (by_layer()) copy_bytes(host_thetas_.data(), shares_view_.thetas, host_thetas_.size(), stream);
}

// What a step gained in a layer that selects.
void CudaRetrieval::count_layer(const Row& row, std::int32_t layer, const SlotCounts& gained) {
  const Place& p = places_[static_cast<std::size_t>(row.place)];
  LayerStats& s = row.method->stats().layers[static_cast<std::size_t>(layer)];
  const auto checks = static_cast<std::int64_t>(gained.checks), moved = static_cast<std::int64_t>(gained.corrections);
  if (!s.gate_checks.empty()) s.gate_checks[0] += checks, s.corrections[0] += moved;
  const std::int64_t heads = shape_.n_kv_heads;
  if (!p.everything && p.rules.schedule != SlotSchedule::kNone) {
    const std::int64_t anew = p.rules.schedule == SlotSchedule::kKept ? heads * static_cast<std::int64_t>(gained.made)
                              : p.rules.schedule == SlotSchedule::kEveryStep || row.anew != 0 ? heads
                                                                                              : moved;
    s.selections += anew;
    s.reused += heads - anew;
  }
  s.sparse_steps += p.everything ? 0 : 1;
  s.index_bytes_read += index_bytes_read(row, layer, gained);
  s.selected_units += static_cast<std::int64_t>(gained.selected);
  s.missing_units += static_cast<std::int64_t>(gained.missing);
  s.recalled_units += static_cast<std::int64_t>(gained.missing + gained.neighbours);
  s.replaced_units += static_cast<std::int64_t>(gained.replaced);
  // Where there was no query to compare with, an answer begins.
  if (lists_ && ((row.anew & kNoQuery) != 0 || moved > 0)) row.method->see_boundary(layer);
}

void CudaRetrieval::count(std::span<const Row> rows) {
  const auto* now = host_counts_.as<SlotCounts>();
  for (const Row& row : rows) {
    Place& p = places_[static_cast<std::size_t>(row.place)];
    p.counts.resize(static_cast<std::size_t>(n_selecting_));
    for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
      LayerStats& s = row.method->stats().layers[static_cast<std::size_t>(l)];
      ++s.steps;
      const std::int32_t c = slot_layer(l);
      const std::int64_t attended = c < 0 ? row.cache->length() : row.attended_tokens;
      s.attended_tokens += attended * shape_.n_kv_heads;
      s.attended_heads += shape_.n_kv_heads;
      if (c < 0) continue;
      SlotCounts& before = p.counts[static_cast<std::size_t>(c)];
      SlotCounts after = now[static_cast<std::int64_t>(c) * options_.n_places + row.place];
      if (host_recall_) {
        const SlotCounts& too = host_recall_->counts(c, row.place);
        after.selected += too.selected, after.missing += too.missing, after.replaced += too.replaced;
      }
      count_layer(row, l,
                  {.checks = after.checks - before.checks,
                   .corrections = after.corrections - before.corrections,
                   .selected = after.selected - before.selected,
                   .missing = after.missing - before.missing,
                   .neighbours = after.neighbours - before.neighbours,
                   .replaced = after.replaced - before.replaced,
                   .made = after.made - before.made});
      if (by_layer() && !p.everything)  // how many is known now
        s.attended_tokens += static_cast<std::int64_t>(after.selected - before.selected) * kPageTokens;
      before = after;
    }
    if (by_layer()) count_by_layer(row);
    row.method->count_decode_step();
  }
}

std::size_t CudaRetrieval::bytes() const {
  std::size_t n = lists_ ? lists_->bytes() : 0;
  for (const DeviceBuffer* b : {&slots_, &index_, &tables_, &queries_, &rules_, &counts_, &scratch_[0], &scratch_[1],
                                &dense_, &dense_blocks_, &near_, &near_blocks_, &shares_})
    n += b->size();
  return n + (key_index_ ? key_index_->bytes() : 0);
}

}  // namespace mneme
