// Index bytes that selection read, counted as the CPU's indexes do; but the device scores all KV heads where one of
// them needs it.
#include "src/model/cuda/retrieval/retrieval.h"

namespace mneme {

// Bytes to score the candidates of a step of n_tokens, all KV heads.
std::int64_t CudaRetrieval::entry_bytes_of(const DecodeStep& row, std::int32_t layer, std::int32_t n_tokens) const {
  const Plan& plan = row.method->plan();
  const std::int64_t heads = view_.n_kv_heads;
  if (lists_) {
    const std::int32_t* units = memory_.host_units.as<std::int32_t>() +
                                (std::int64_t{slot_layer(layer)} * options_.n_seq_slots + row.seq_slot) * heads;
    std::int64_t bytes = 0;
    for (std::int64_t m = 0; m < heads; ++m)
      bytes += static_cast<std::int64_t>(plan.index->bytes_read(units[m], plan.shape.attention()));
    return bytes;
  }
  const Region region = region_at(row.method->rules(layer), n_tokens);
  const std::int32_t n = region.last_unit - region.first_unit;
  if (plan.layer_selection) return n * static_cast<std::int64_t>(plan.layer_selection->entry_bytes(plan.shape));
  return heads * static_cast<std::int64_t>(plan.index->bytes_read(n, plan.shape.attention()));
}

std::int64_t CudaRetrieval::index_bytes_read(const DecodeStep& row, std::int32_t layer,
                                             const SlotCounts& gained) const {
  const SeqSlotLayer& p = at(row.seq_slot, layer);
  if (p.everything || !row.method->plan().selects()) return 0;
  const std::int32_t n = row.cache->length();
  const auto pages = [&](std::int32_t tokens) { return (tokens + p.plan.units.tokens - 1) / p.plan.units.tokens; };
  if (p.plan.schedule == ScheduleKind::kBoundary) return gained.made > 0 ? entry_bytes_of(row, layer, n) : 0;
  if (p.plan.schedule != ScheduleKind::kSpeculative) return entry_bytes_of(row, layer, n);
  // For this step if a head needs it, and for the next one unless it has the same candidates.
  const bool now = p.reset != 0 || gained.corrections > 0;
  std::int64_t bytes = now ? entry_bytes_of(row, layer, n) : 0;
  if (!now || pages(n) != pages(n + 1)) bytes += entry_bytes_of(row, layer, n + 1);
  return bytes;
}

}  // namespace mneme
