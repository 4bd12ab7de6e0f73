// Append-only table of units that are lists of tokens, for one (layer, KV head). Forks share complete chunks of the
// EntryStores that it is made of.
//
// A table may hold a private copy of its tokens' keys and values, unit after unit, so that a unit is contiguous.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/kv/sequence_cache.h"
#include "src/selection/index/entry_store.h"

namespace mneme {

class UnitTable {
 public:
  UnitTable() = default;
  // copy_bytes: bytes of one token's [K | V] pair, to store copies; 0: keys and values are read from the cache.
  explicit UnitTable(std::size_t copy_bytes) : copy_(copy_bytes) {}

  std::int32_t size() const { return ends_.size(); }         // units
  std::int32_t n_tokens() const { return members_.size(); }  // of all units
  std::int32_t n_tokens(std::int32_t unit) const { return end(unit) - begin(unit); }
  // Position of a unit's i-th token; ascending in i.
  std::int32_t token(std::int32_t unit, std::int32_t i) const { return value(members_, begin(unit) + i); }

  // Appends a unit of tokens of `cache` at ascending positions. Requires  at least one.
  void append(std::span<const std::int32_t> positions, const SequenceCache& cache, std::int32_t layer,
              std::int32_t kv_head);
  void truncate(std::int32_t n_units);

  // Appends the runs of a unit's first n tokens, in order.
  void append_runs(std::int32_t unit, std::int32_t n, const SequenceCache& cache, std::int32_t layer,
                   std::int32_t kv_head, std::vector<KvRun>& runs) const;

  // Prefetches the unit's list. Lists are scattered: a step reads about 100 of them at 80 ns latency each.
  void prefetch(std::int32_t unit) const {
    const std::int32_t first = begin(unit);
    __builtin_prefetch(copy_.entry_bytes() > 0 ? copy_.entry(first) : members_.entry(first));
  }

  std::size_t list_bytes() const { return ends_.bytes() + members_.bytes(); }
  std::size_t copy_bytes() const { return copy_.bytes(); }

 private:
  static std::int32_t value(const EntryStore& store, std::int32_t i);
  std::int32_t begin(std::int32_t unit) const { return unit == 0 ? 0 : value(ends_, unit - 1); }
  std::int32_t end(std::int32_t unit) const { return value(ends_, unit); }

  EntryStore ends_{sizeof(std::int32_t)}, members_{sizeof(std::int32_t)}, copy_{0};
};

}  // namespace mneme
