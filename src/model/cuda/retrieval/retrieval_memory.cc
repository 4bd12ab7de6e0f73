#include "src/model/cuda/retrieval/retrieval_memory.h"

#include <algorithm>

#include "src/model/cuda/retrieval/launches.h"
#include "src/selection/index/one_bit_cuda.h"
#include "src/selection/summary/summary_cuda.h"
#include "src/selection/topk/top_p_cuda.h"
#include "src/selection/topk/unfused_select_cuda.h"

namespace mneme {

RetrievalMemory::RetrievalMemory(const RetrievalState& t, DeviceCache& view) {
  const std::size_t states = static_cast<std::size_t>(view.n_layers) * static_cast<std::size_t>(view.n_seq_slots);
  const Sizes n{
      .states = states,
      .heads = states * static_cast<std::size_t>(view.n_kv_heads),
      .listed = static_cast<std::size_t>(view.max_listed),
      .slots = static_cast<std::size_t>(view.n_slots),
      .query_bytes = states * static_cast<std::size_t>(view.n_heads) * static_cast<std::size_t>(view.head_dim) * 2};
  if (n.slots > 0)
    slots_ =
        DeviceBuffer(n.heads * n.slots * view.unit_bytes(), "slots for selected units (the budget sets their number)");
  view.slots.data = slots_.data();
  allocate_index(t, n, view.index);
  allocate_tables(t, n, view);
  allocate_queries(t, n, view);
  if (!t.by_layer() && t.any(asks::selects)) allocate_scratch(t);
  const Stream stream = Stream::make();
  for (const DeviceBuffer* b : {&counts.device, &scratch[0], &scratch[1], &queries_, &tables_})
    if (b->size() > 0) set_bytes(b->data(), 0, b->size(), stream);
  stream.synchronize();
}

void RetrievalMemory::allocate_index(const RetrievalState& t, const Sizes& n, UnitIndexes& index) {
  const DeviceCache& cache = t.device_cache();
  const CudaRetrievalNeeds::Keys& keys = t.needs().keys;
  ArenaLayout arrays;
  const char* what = "index of units";
  if (t.groups()) {
    arrays.add(index.keys.codes, one_bit_code_bytes(cache, n.heads));
    arrays.add(index.keys.levels, one_bit_level_bytes(cache, n.heads));
    what = "1-bit keys";
  } else if (t.of_lists()) {
    const auto units = static_cast<std::size_t>(index.lists.max_units),
               tokens = static_cast<std::size_t>(index.lists.max_tokens);
    arrays.add(index.lists.centroids, n.heads * units * static_cast<std::size_t>(list_dim(cache.head_dim)) * 2);
    arrays.add(index.lists.ends, n.heads * units * 4);
    arrays.add(index.lists.members, n.heads * tokens * 4);
    what = "clusters and segments";
  } else if (t.closes() || (!t.two_parts() && !keys.by_token)) {
    // Boxes of pages of 32 are entries too: the unfused selection reads the same.
    if (!t.closes())
      index.entries = {.kind = EntryKind::kMinMaxBox,
                       .tokens = kPageTokens,
                       .bytes = static_cast<std::int32_t>(cache.box_bytes()),
                       .most = cache.max_pages};
    // A warp reads 16 boxes at a time, valid or not.
    const std::size_t beyond = index.entries.kind == EntryKind::kMinMaxBox ? kBoxesBeyond : 0;
    arrays.add(index.entries.data, (n.heads * static_cast<std::size_t>(index.entries.most) + beyond) *
                                       static_cast<std::size_t>(index.entries.bytes));
    arrays.add(index.entries.frames, n.heads * static_cast<std::size_t>(index.entries.frame_floats) * sizeof(float));
    if (t.closes()) frames = DeviceBuffer(fit_frames_scratch_bytes(cache), "keys that frames are fitted to");
  } else {
    return;
  }
  index_ = DeviceBuffer(arrays.total(), what);
  arrays.assign(index_.data());
  if (!t.closes() && !t.of_lists()) index.boxes = index.entries.data;
}

// Cache slots' content, selections, lists.
void RetrievalMemory::allocate_tables(const RetrievalState& t, const Sizes& n, DeviceCache& view) {
  const std::size_t states = n.states, heads = n.heads, listed = n.listed, slots = n.slots;
  ArenaLayout small;
  if (slots > 0) {
    small.add(view.slots.slot_of, heads * static_cast<std::size_t>(view.max_units()) * 4);
    small.add(view.slots.unit_of, heads * slots * 4);
    small.add(view.slots.last_used, heads * slots * 4);
  }
  for (int i = 0; i < 2; ++i)
    small.add(view.selection.ids[i], heads * listed * 4), small.add(view.selection.n[i], heads * 4);
  small.add(view.slots.listed, heads * listed * 4);
  small.add(view.slots.listed_for, heads * 4), small.add(view.slots.arrived_for, heads * 4);
  if (attends_early(t)) small.add(view.slots.relisted, heads * 4);
  if (t.any(asks::keeps_selections)) small.add(view.selection.kept, states * sizeof(KeptSelection));
  if (t.of_lists()) small.add(view.index.lists.n_units, heads * 4), small.add(view.index.lists.grouped, states * 4);
  tables_ = DeviceBuffer(small.total(), "tables of slots");
  small.assign(tables_.data());
}

// Queries of the last step, gates, plans and counters.
void RetrievalMemory::allocate_queries(const RetrievalState& t, const Sizes& n, DeviceCache& view) {
  ArenaLayout arrays;
  arrays.add(view.selection.last_q, n.query_bytes);
  if (t.any(asks::query_of_selection)) arrays.add(view.selection.asked_q, n.query_bytes);
  arrays.add(view.selection.cosine, n.states * static_cast<std::size_t>(view.n_heads) * 4);
  arrays.add(view.selection.mass, n.heads * 4);
  arrays.add(view.selection.flags, n.heads * 4);
  queries_ = DeviceBuffer(arrays.total(), "queries of the last step");
  arrays.assign(queries_.data());
  plans.grow(std::max<std::size_t>(n.states, 1) * sizeof(SelectionPlan), "plans of sequences");
  view.plans = plans.device.as<SelectionPlan>();
  counts.grow(std::max<std::size_t>(n.states, 1) * sizeof(SlotCounts), "counts of methods");
  view.counts = counts.device.as<SlotCounts>();
  if (t.of_lists()) host_units = PinnedBuffer(n.heads * sizeof(std::int32_t));
  if (t.any(asks::budget_by_prompt) && t.n_selecting() > 0)
    layer_rows.grow(2 * static_cast<std::size_t>(t.n_selecting() * t.n_rows()) * 4, "what rows attend, by layer");
}

void RetrievalMemory::allocate_scratch(const RetrievalState& t) {
  const DeviceCache& view = t.device_cache();
  const std::int32_t rows = t.n_rows();
  const std::size_t fused = t.of_lists()              ? select_lists_scratch_bytes(view, rows)
                            : t.groups()              ? select_tokens_scratch_bytes(view, rows)
                            : t.needs().keys.by_token ? 0
                                                      : select_scratch_bytes(view, rows),
                    entries = selects_small_pages(t)      ? select_scratch_bytes(view, rows, true)
                              : t.any(asks::other_scores) ? unfused_select_scratch_bytes(view, rows)
                                                          : 0,
                    bytes =
                        std::max(fused, entries) + (scans_sketches(t) ? select_tokens_scratch_bytes(view, rows) : 0);
  scratch[0] = DeviceBuffer(bytes, "scores of units");
  // A selection for the next step may overlap the one for this step, or for the next layer.
  if (t.any(asks::speculates) && !lists_as_selected(t)) scratch[1] = DeviceBuffer(bytes, "scores of units");
  if (!t.any(asks::prunes)) return;
  const auto all = static_cast<std::size_t>(rows), kv_heads = static_cast<std::size_t>(view.n_kv_heads);
  log_weights = DeviceBuffer(all * kv_heads * static_cast<std::size_t>(t.weight_stride()) * sizeof(float),
                             "weights of listed tokens");
  top_p = DeviceBuffer(top_p_scratch_bytes(view, rows, t.weight_stride()), "scores of listed tokens");
}

std::size_t RetrievalMemory::bytes() const {
  std::size_t n = plans.size() + counts.size() + layer_rows.size();
  for (const DeviceBuffer* b :
       {&slots_, &index_, &tables_, &queries_, &scratch[0], &scratch[1], &frames, &log_weights, &top_p})
    n += b->size();
  return n;
}

}  // namespace mneme
