// What a step of rows that decode adds to their methods' statistics.
#include <algorithm>

#include "src/model/cuda_retrieval.h"

namespace mneme {

void CudaRetrieval::fetch_counts(const Stream& stream) {
  copy_bytes(host_counts_.data(), counts_.data(), counts_.size(), stream);
  if (host_units_.size() > 0) copy_bytes(host_units_.data(), view_.lists.n_units, host_units_.size(), stream);
  if (by_layer()) copy_bytes(host_thetas_.data(), shares_view_.thetas, host_thetas_.size(), stream);
}

// What a step gained in a layer that selects.
void CudaRetrieval::count_layer(const Row& row, std::int32_t layer, const SlotCounts& gained) {
  const PlaceLayer& p = at(row.place, layer);
  LayerStats& s = row.method->stats().layers[static_cast<std::size_t>(layer)];
  const auto checks = static_cast<std::int64_t>(gained.checks), moved = static_cast<std::int64_t>(gained.corrections);
  if (!s.gate_checks.empty()) s.gate_checks[0] += checks, s.corrections[0] += moved;
  const std::int64_t heads = shape_.n_kv_heads;
  if (!p.everything && p.rules.schedule != SlotSchedule::kNone) {
    const std::int64_t anew = p.rules.schedule == SlotSchedule::kKept ? heads * static_cast<std::int64_t>(gained.made)
                              : p.rules.schedule == SlotSchedule::kEveryStep || p.anew != 0 ? heads
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
  if (lists_ && ((p.anew & kNoQuery) != 0 || moved > 0)) row.method->see_boundary(layer);
}

// What the CPU's method would know after this step, but for what no selection by all keys looks at.
void CudaRetrieval::count_by_layer(const Row& row) {
  const double* thetas = host_thetas_.as<double>() + std::int64_t{row.place} * n_selecting_;
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

void CudaRetrieval::count(std::span<const Row> rows) {
  const auto* now = host_counts_.as<SlotCounts>();
  for (const Row& row : rows) {
    Place& p = places_[static_cast<std::size_t>(row.place)];
    p.counts.resize(static_cast<std::size_t>(n_selecting_));
    for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
      LayerStats& s = row.method->stats().layers[static_cast<std::size_t>(l)];
      ++s.steps;
      const std::int32_t c = slot_layer(l);
      const std::int64_t attended = c < 0 ? row.cache->length() : at(row.place, l).attended;
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
      if (by_layer() && !at(row.place, l).everything)  // how many is known now
        s.attended_tokens += static_cast<std::int64_t>(after.selected - before.selected) * kPageTokens;
      before = after;
    }
    if (by_layer()) count_by_layer(row);
    row.method->count_decode_step();
  }
}

}  // namespace mneme
