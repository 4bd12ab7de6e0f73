// Statistics that a step of decode rows adds to their methods.
#include <algorithm>

#include "src/model/cuda/retrieval/retrieval.h"

namespace mneme {

void CudaRetrieval::fetch_counts(const Stream& stream) {
  memory_.counts.fetch(memory_.counts.size(), stream);
  if (memory_.host_units.size() > 0)
    copy_bytes(memory_.host_units.data(), view_.index.lists.n_units, memory_.host_units.size(), stream);
  if (by_layer_) by_layer_->fetch(stream);
}

// Counters gained by a step in a layer that selects.
void CudaRetrieval::count_layer(const DecodeStep& row, std::int32_t layer, const SlotCounts& gained) {
  const SeqSlotLayer& p = at(row.seq_slot, layer);
  LayerStats& s = row.method->stats().layers[static_cast<std::size_t>(layer)];
  const auto checks = static_cast<std::int64_t>(gained.checks), moved = static_cast<std::int64_t>(gained.corrections);
  // A cosine gate flags all query heads of a KV head at once.
  const std::int64_t at_once = row.method->plan().mass_gate() ? 1 : view_.shared, heads = view_.n_kv_heads;
  if (!s.gate_checks.empty()) s.gate_checks[0] += checks / at_once, s.corrections[0] += moved / at_once;
  if (!p.everything && p.plan.schedule != ScheduleKind::kNone) {
    const std::int64_t reset = p.plan.schedule == ScheduleKind::kBoundary
                                   ? heads * static_cast<std::int64_t>(gained.made)
                               : p.plan.schedule == ScheduleKind::kEveryStep || p.reset != 0 ? heads
                                                                                             : moved;
    s.selections += reset;
    s.reused += heads - reset;
  }
  s.sparse_steps += p.everything ? 0 : 1;
  s.index_bytes_read += index_bytes_read(row, layer, gained);
  // Units of several tokens that are fetched one by one are counted as units.
  const auto units = [&](std::uint64_t n) { return static_cast<std::int64_t>(n) / p.plan.units.select_tokens; };
  s.selected_units += units(gained.selected);
  s.missing_units += units(gained.missing);
  s.recalled_units += units(gained.missing);
  s.replaced_units += units(gained.replaced);
  s.attended_tokens -= static_cast<std::int64_t>(gained.pruned);
  // Without a query to compare with, an answer starts.
  if (lists_ && row.method->plan().cosine_gate() && ((p.reset & kNoQuery) != 0 || moved > 0))
    row.method->see_boundary(layer);
}

// What the CPU's method would record after this step, except what a selection by all keys does not use.
void CudaRetrieval::count_by_layer(const DecodeStep& row) {
  const double* thetas = by_layer_->entropies(row.seq_slot);
  for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
    const std::int32_t c = slot_layer(l);
    if (c < 0) continue;
    LayerMemory& memory = *row.method->layer(l).memory;
    memory.seen = std::max(memory.seen, row.cache->length());
    memory.mass.skip(memory.seen);
    if (row.method->cut() == nullptr || thetas[c] < 0) continue;
    row.method->cut()->add(c, thetas[c]);
    LayerStats& s = row.method->stats().layers[static_cast<std::size_t>(l)];
    ++s.scored;
    s.score_entropy += thetas[c];
  }
}

void CudaRetrieval::count(std::span<const DecodeStep> rows) {
  const auto* now = memory_.counts.host.as<SlotCounts>();
  for (const DecodeStep& row : rows) {
    SeqSlot& p = seq_slots_[static_cast<std::size_t>(row.seq_slot)];
    p.counts.resize(static_cast<std::size_t>(n_selecting()));
    for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
      LayerStats& s = row.method->stats().layers[static_cast<std::size_t>(l)];
      ++s.steps;
      const std::int32_t c = slot_layer(l);
      const std::int32_t length = row.cache->length(), window = row.method->plan().shape.window_of(l);
      const std::int64_t everything = window > 0 ? std::min(window, length) : length;
      const std::int64_t attended = c < 0 ? everything : at(row.seq_slot, l).attended;
      const bool one_by_one = c >= 0 && !at(row.seq_slot, l).everything;
      const std::int64_t heads = one_by_one ? view_.n_kv_heads : shape_.n_kv_heads;
      s.attended_tokens += attended * heads;
      s.attended_heads += heads;
      if (c < 0) continue;
      SlotCounts& before = p.counts[static_cast<std::size_t>(c)];
      const SlotCounts& after = now[static_cast<std::int64_t>(c) * options_.n_seq_slots + row.seq_slot];
      count_layer(row, l, after - before);
      if (by_layer() && !at(row.seq_slot, l).everything)  // selected tokens are known only now
        s.attended_tokens += static_cast<std::int64_t>(after.selected - before.selected) * kPageTokens;
      before = after;
    }
    if (by_layer()) count_by_layer(row);
    row.method->count_decode_step();
  }
}

}  // namespace mneme
