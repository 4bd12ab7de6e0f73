// Memory of a CudaRetrieval: index, cache slots, tables, scratch, dense layers, the ring of rotated keys.
#include <algorithm>
#include <numeric>

#include "src/model/cuda/retrieval/retrieval.h"
#include "src/selection/index/unit_entries_cuda.h"
#include "src/selection/summary/summary_cuda.h"
#include "src/selection/topk/top_p_cuda.h"

namespace mneme {
namespace {

// Block i of a table is i.
void fill_with_own_numbers(DeviceBuffer& blocks, const Stream& stream) {
  std::vector<std::int32_t> numbers(blocks.size() / sizeof(std::int32_t));
  std::iota(numbers.begin(), numbers.end(), 0);
  copy_bytes(blocks.data(), numbers.data(), blocks.size(), stream);
  stream.synchronize();
}

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
  number_layers();
  describe(n_heads);
  expect_slots_cuda(view_);
  allocate_slots();
  allocate_index();
  allocate_tables();
  allocate_queries();
  if (by_layer()) {
    allocate_shares();
  } else if (selects()) {
    allocate_scratch();
  }
  if (view_.index.lists.max_units > 0) lists_ = std::make_unique<CudaUnitLists>(view_);
  slot_tables_ = view_.tables();
  if (in_pages_) slot_tables_.base = pages.base;
  pages_ = pages;
  const Stream stream = Stream::make();
  for (const DeviceBuffer* b : {&counts_, &scratch_[0], &scratch_[1], &queries_, &tables_})
    if (b->size() > 0) set_bytes(b->data(), 0, b->size(), stream);
  allocate_dense(stream);
  if (needs_.ring_pages > 0) allocate_ring(stream);
  send_numbers(stream);
}

// Which layers select, and which attend everything.
void CudaRetrieval::number_layers() {
  for (const bool dense : needs_.dense) {
    if (!dense) selecting_.push_back(static_cast<std::int32_t>(number_.size()));
    number_.push_back(dense ? -1 : n_selecting_++);
    dense_number_.push_back(dense ? n_dense_++ : -1);
  }
}

// The view's sizes.
void CudaRetrieval::describe(std::int32_t n_heads) {
  view_.n_layers = n_selecting_;
  view_.n_seq_slots = options_.n_seq_slots;
  view_.shared = needs_.keys.by_query_head ? n_heads / shape_.n_kv_heads : 1;
  view_.n_kv_heads = shape_.n_kv_heads * view_.shared;
  view_.n_heads = n_heads;
  view_.head_dim = shape_.head_dim;
  view_.max_pages = pages_of_tokens(options_.max_context) + 1;  // selections cover one more token
  if (needs_.keys.group_tokens > 0) {
    view_.unit_tokens = 1;
    view_.index.group_tokens = needs_.keys.group_tokens;
    view_.index.mean_abs = needs_.keys.mean_abs;
  }
  if (needs_.keys.by_token) view_.unit_tokens = 1;
  if (needs_.keys.entries != EntryKind::kNone) view_.index.entries = entries_of(needs_.keys, shape_, view_.max_pages);
  view_.selection.whole_attention = uses(RetrievalUse::kWholeAttention);
  if (needs_.keys.list_tokens > 0) {
    view_.unit_tokens = 1;
    view_.index.lists.max_units = CudaUnitLists::most_units(needs_.keys.list_tokens, options_.max_context);
    view_.index.lists.max_tokens = view_.max_pages * kPageTokens;
  }
  view_.n_slots = in_pages_ ? 0 : needs_.n_slots + options_.more_slots;
  view_.fetch = needs_.fetch;
  view_.max_listed = needs_.max_listed;
  view_.select_tokens = needs_.keys.select_tokens;
  view_.f16 = shape_.dtype == DType::kF16;
  view_.codes = kv_codes_of(shape_.dtype);
  view_.delay_us = options_.delay_us;
}

CudaRetrieval::Sizes CudaRetrieval::sizes() const {
  const std::size_t states = static_cast<std::size_t>(n_selecting_) * static_cast<std::size_t>(options_.n_seq_slots);
  return {
      .states = states,
      .heads = states * static_cast<std::size_t>(view_.n_kv_heads),
      .listed = static_cast<std::size_t>(view_.max_listed),
      .slots = static_cast<std::size_t>(view_.n_slots),
      .query_bytes = states * static_cast<std::size_t>(view_.n_heads) * static_cast<std::size_t>(shape_.head_dim) * 2};
}

void CudaRetrieval::allocate_slots() {
  const Sizes n = sizes();
  if (n.slots > 0)
    slots_ =
        DeviceBuffer(n.heads * n.slots * view_.unit_bytes(), "slots for selected units (the budget sets their number)");
  view_.slots.data = slots_.data();
}

void CudaRetrieval::allocate_index() {
  const std::size_t heads = sizes().heads, box_bytes = view_.box_bytes();
  if (view_.index.group_tokens > 0) {
    ArenaLayout keys;
    keys.add(view_.index.keys.codes, one_bit_code_bytes(view_, heads));
    keys.add(view_.index.keys.levels, one_bit_level_bytes(view_, heads));
    index_ = DeviceBuffer(keys.total(), "1-bit keys");
    keys.assign(index_.data());
  } else if (view_.index.lists.max_units > 0) {
    const auto units = static_cast<std::size_t>(view_.index.lists.max_units),
               tokens = static_cast<std::size_t>(view_.index.lists.max_tokens);
    ArenaLayout lists;
    lists.add(view_.index.lists.centroids, heads * units * list_dim(shape_.head_dim) * 2);
    lists.add(view_.index.lists.ends, heads * units * 4);
    lists.add(view_.index.lists.members, heads * tokens * 4);
    index_ = DeviceBuffer(lists.total(), "clusters and segments");
    lists.assign(index_.data());
  } else if (needs_.keys.entries != EntryKind::kNone) {
    ArenaLayout entries;
    const std::size_t beyond = view_.index.entries.kind == EntryKind::kMinMaxBox ? kBoxesBeyond : 0;
    entries.add(view_.index.entries.data, (heads * static_cast<std::size_t>(view_.index.entries.most) + beyond) *
                                              std::size_t(view_.index.entries.bytes));
    entries.add(view_.index.entries.frames,
                heads * static_cast<std::size_t>(view_.index.entries.frame_floats) * sizeof(float));
    index_ = DeviceBuffer(entries.total(), "index of units");
    entries.assign(index_.data());
    frames_ = DeviceBuffer(fit_frames_scratch_bytes(view_), "keys that frames are fitted to");
  } else if (!needs_.two_parts && !needs_.keys.by_token) {
    // A warp reads 16 boxes at a time, valid or not.
    index_ =
        DeviceBuffer((heads * static_cast<std::size_t>(view_.max_pages) + kBoxesBeyond) * box_bytes, "boxes of pages");
    view_.index.boxes = index_.data();
    // The unfused selection reads the same boxes.
    view_.index.entries = {.kind = EntryKind::kMinMaxBox,
                           .tokens = kPageTokens,
                           .bytes = static_cast<std::int32_t>(box_bytes),
                           .most = view_.max_pages,
                           .data = view_.index.boxes};
  }
}

// Cache slots' content, selections, lists.
void CudaRetrieval::allocate_tables() {
  const Sizes n = sizes();
  const std::size_t states = n.states, heads = n.heads, listed = n.listed, slots = n.slots;
  ArenaLayout small;
  if (slots > 0) {
    small.add(view_.slots.slot_of, heads * static_cast<std::size_t>(view_.max_units()) * 4);
    small.add(view_.slots.unit_of, heads * slots * 4);
    small.add(view_.slots.last_used, heads * slots * 4);
  }
  for (int i = 0; i < 2; ++i)
    small.add(view_.selection.ids[i], heads * listed * 4), small.add(view_.selection.n[i], heads * 4);
  small.add(view_.slots.listed, heads * listed * 4);
  small.add(view_.slots.listed_for, heads * 4), small.add(view_.slots.arrived_for, heads * 4);
  if (attends_early()) small.add(view_.slots.relisted, heads * 4);
  if (uses(RetrievalUse::kKeeps)) small.add(view_.selection.kept, states * sizeof(KeptSelection));
  if (view_.index.lists.max_units > 0)
    small.add(view_.index.lists.n_units, heads * 4), small.add(view_.index.lists.grouped, states * 4);
  tables_ = DeviceBuffer(small.total(), "tables of slots");
  small.assign(tables_.data());
}

// Queries of the last step, gates, plans and counters.
void CudaRetrieval::allocate_queries() {
  const Sizes n = sizes();
  ArenaLayout queries;
  queries.add(view_.selection.last_q, n.query_bytes);
  if (uses(RetrievalUse::kLastAsked)) queries.add(view_.selection.asked_q, n.query_bytes);
  if (uses(RetrievalUse::kProbesBelow))
    queries.add(view_.selection.below_q, static_cast<std::size_t>(shape_.n_layers * options_.n_seq_slots) *
                                             static_cast<std::size_t>(view_.n_heads * shape_.head_dim) * 2);
  queries.add(view_.selection.cosine, n.states * static_cast<std::size_t>(view_.n_heads) * 4);
  queries.add(view_.selection.mass, n.heads * 4);
  queries_ = DeviceBuffer(queries.total(), "queries of the last step");
  queries.assign(queries_.data());
  plans_ = DeviceBuffer(std::max<std::size_t>(n.states, 1) * sizeof(SelectionPlan), "plans of sequences");
  view_.plans = plans_.as<SelectionPlan>();
  counts_ = DeviceBuffer(std::max<std::size_t>(n.states, 1) * sizeof(SlotCounts), "counts of methods");
  view_.counts = counts_.as<SlotCounts>();
  host_counts_ = PinnedBuffer(counts_.size());
  if (view_.index.lists.max_units > 0) host_units_ = PinnedBuffer(n.heads * sizeof(std::int32_t));
  host_plans_ = PinnedBuffer(plans_.size());
  if (uses(RetrievalUse::kBudgetByPrompt) && n_selecting_ > 0) {
    layer_rows_ = DeviceBuffer(2 * static_cast<std::size_t>(n_selecting_ * n_rows_) * 4, "what rows attend, by layer");
    host_layer_rows_ = PinnedBuffer(layer_rows_.size());
  }
}

// A layer budget that layers share (EntropyCut).
void CudaRetrieval::allocate_shares() {
  const std::size_t states = sizes().states;
  const auto seq_slots = static_cast<std::size_t>(options_.n_seq_slots), doubles = states * sizeof(double);
  ArenaLayout shares;
  shares.add(shares_view_.cuts, seq_slots * sizeof(LayerCut));
  shares.add(shares_view_.later, doubles);
  shares.add(shares_view_.thetas, doubles);
  shares.add(shares_view_.pools, seq_slots * sizeof(double));
  shares.add(shares_view_.ranks, static_cast<std::size_t>(n_rows_) * rank_stride() * 4);
  shares_ = DeviceBuffer(shares.total(), "scores of pages");
  shares.assign(shares_.data());
  host_shares_ = PinnedBuffer(seq_slots * (sizeof(LayerCut) + static_cast<std::size_t>(n_selecting_) * sizeof(double)));
  host_thetas_ = PinnedBuffer(doubles);
  if (!options_.pages_on_device) key_index_.emplace(shape_, n_selecting_, options_.n_seq_slots, options_.max_context);
}

void CudaRetrieval::allocate_scratch() {
  const std::size_t bytes = std::max(view_.index.lists.max_units > 0 ? select_lists_scratch_bytes(view_, n_rows_)
                                     : view_.index.group_tokens > 0  ? select_tokens_scratch_bytes(view_, n_rows_)
                                     : needs_.keys.by_token          ? 0
                                                                     : select_scratch_bytes(view_, n_rows_),
                                     selects_small_pages() ? select_scratch_bytes(view_, n_rows_, SlotScore::kEntries)
                                     : uses(RetrievalUse::kUnfused) ? unfused_select_scratch_bytes(view_, n_rows_)
                                                                    : 0) +
                            (scans_sketches() ? select_tokens_scratch_bytes(view_, n_rows_) : 0);
  scratch_[0] = DeviceBuffer(bytes, "scores of units");
  // A selection for the next step may overlap the one for this step, or for the next layer.
  if (speculative() && !lists_as_selected()) scratch_[1] = DeviceBuffer(bytes, "scores of units");
  if (!prunes()) return;
  const auto rows = static_cast<std::size_t>(n_rows_), kv_heads = static_cast<std::size_t>(view_.n_kv_heads);
  log_weights_ = DeviceBuffer(rows * kv_heads * static_cast<std::size_t>(weight_stride()) * sizeof(float),
                              "weights of listed tokens");
  top_p_ = DeviceBuffer(top_p_scratch_bytes(view_, n_rows_, weight_stride()), "scores of listed tokens");
}

// Full copies of layers that attend everything, where pages are in host memory.
void CudaRetrieval::allocate_dense(const Stream& stream) {
  dense_tables_ = {.base = nullptr,
                   .blocks = nullptr,
                   .sequence_stride = std::int64_t{shape_.n_kv_heads} * view_.max_pages,
                   .max_pages = view_.max_pages,
                   .n_kv_heads = shape_.n_kv_heads,
                   .head_dim = shape_.head_dim,
                   .f16 = view_.f16,
                   .codes = view_.codes};
  if (n_dense_ == 0 || in_pages_) return;
  const auto blocks = static_cast<std::size_t>(n_dense_) * static_cast<std::size_t>(options_.n_seq_slots) *
                      static_cast<std::size_t>(dense_tables_.sequence_stride);
  dense_ = DeviceBuffer(blocks * shape_.page_bytes(), "keys and values of the layers that read everything");
  dense_blocks_ = DeviceBuffer(blocks * sizeof(std::int32_t), "tables of these");
  fill_with_own_numbers(dense_blocks_, stream);
  dense_tables_.base = dense_.data();
  dense_tables_.blocks = dense_blocks_.as<std::int32_t>();
}

// Rotated keys of the local part, with pre-RoPE keys.
void CudaRetrieval::allocate_ring(const Stream& stream) {
  local_tables_ = dense_tables_;
  local_tables_.max_pages = needs_.ring_pages;
  local_tables_.sequence_stride = std::int64_t{shape_.n_kv_heads} * needs_.ring_pages;
  const auto blocks = static_cast<std::size_t>(shape_.n_layers) * static_cast<std::size_t>(options_.n_seq_slots) *
                      static_cast<std::size_t>(local_tables_.sequence_stride);
  local_ = DeviceBuffer(blocks * shape_.page_bytes(), "rotated keys near the newest token");
  local_blocks_ = DeviceBuffer(blocks * sizeof(std::int32_t), "tables of these");
  fill_with_own_numbers(local_blocks_, stream);
  local_tables_.base = local_.data();
  local_tables_.blocks = local_blocks_.as<std::int32_t>();
  inv_freq_ = DeviceBuffer(options_.rope->inv_freq.size() * sizeof(double), "frequencies");
  copy_bytes(inv_freq_.data(), options_.rope->inv_freq.data(), inv_freq_.size(), stream);
  stream.synchronize();
}

// Numbers of the layers, for kernels over all of them.
void CudaRetrieval::send_numbers(const Stream& stream) {
  std::vector<std::int32_t> numbers;
  for (std::int32_t l = 0; l < shape_.n_layers; ++l)
    numbers.push_back(slot_layer(l) >= 0 ? slot_layer(l) : -1 - dense_number_[static_cast<std::size_t>(l)]);
  numbers_device_ = DeviceBuffer(numbers.size() * sizeof(std::int32_t), "numbers of layers");
  copy_bytes(numbers_device_.data(), numbers.data(), numbers_device_.size(), stream);
  layers_device_ = DeviceBuffer(selecting_.size() * sizeof(std::int32_t), "numbers of layers");
  if (!selecting_.empty()) copy_bytes(layers_device_.data(), selecting_.data(), layers_device_.size(), stream);
  stream.synchronize();
}

}  // namespace mneme
