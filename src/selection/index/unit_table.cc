#include "src/selection/index/unit_table.h"

#include <cstring>

#include "src/base/check.h"

namespace mneme {

std::int32_t UnitTable::value(const EntryStore& store, std::int32_t i) {
  std::int32_t v;
  std::memcpy(&v, store.entry(i), sizeof(v));
  return v;
}

void UnitTable::append(std::span<const std::int32_t> positions, const SequenceCache& cache, std::int32_t layer,
                       std::int32_t kv_head) {
  MNEME_CHECK(!positions.empty(), "a unit without tokens");
  for (std::int32_t position : positions) {
    std::memcpy(members_.append(), &position, sizeof(position));
    if (copy_.entry_bytes() > 0)
      std::memcpy(copy_.append(), cache.token(layer, kv_head, position), copy_.entry_bytes());
  }
  const std::int32_t end = members_.size();
  std::memcpy(ends_.append(), &end, sizeof(end));
}

void UnitTable::truncate(std::int32_t n_units) {
  const std::int32_t tokens = n_units == 0 ? 0 : value(ends_, n_units - 1);
  ends_.truncate(n_units);
  members_.truncate(tokens);
  if (copy_.entry_bytes() > 0) copy_.truncate(tokens);
}

void UnitTable::append_runs(std::int32_t unit, std::int32_t n, const SequenceCache& cache, std::int32_t layer,
                            std::int32_t kv_head, std::vector<KvRun>& runs) const {
  const std::int32_t first = begin(unit);
  if (copy_.entry_bytes() > 0) {
    copy_.for_contiguous(first, first + n, [&](const std::byte* kv, std::int32_t, std::int32_t count) {
      runs.push_back({kv, count});
    });
    return;
  }
  members_.for_contiguous(first, first + n, [&](const std::byte* bytes, std::int32_t, std::int32_t count) {
    const auto* positions = reinterpret_cast<const std::int32_t*>(bytes);
    const std::int32_t from = positions[0], to = positions[count - 1] + 1;
    if (to - from == count)  // a segment
      cache.append_runs(layer, kv_head, from, to, runs);
    else
      cache.append_units(layer, kv_head, std::span(positions, count), 1, runs);
  });
}

}  // namespace mneme
