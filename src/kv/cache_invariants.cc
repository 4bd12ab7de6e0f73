#include "src/kv/cache_invariants.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/size32.h"

namespace mneme {
namespace {

// Adds every table entry to `holders`; describes the first violation.
std::string count_holders(const CacheSnapshot& cache, std::size_t which, std::vector<std::int32_t>& holders) {
  const std::int32_t n_pages = pages_of(cache.length);
  if (cache.length < 0 || cache.n_pages != n_pages)
    return fmt::format("sequence {}: {} tokens in {} pages", which, cache.length, cache.n_pages);
  if (cache.tables.empty() && n_pages > 0) return fmt::format("sequence {}: {} pages, no table", which, n_pages);
  for (std::size_t t = 0; t < cache.tables.size(); ++t) {
    const auto& table = cache.tables[t];
    const std::int32_t stored = cache.stored.empty() ? cache.length : cache.stored[t];
    const auto n = size32(table);
    if (stored < 0 || stored > cache.length)
      return fmt::format("sequence {}, table {}: {} of {} tokens stored", which, t, stored, cache.length);
    // Every page holds a kept token, and the pages hold enough tokens.
    if (stored < cache.length && (n > std::min(n_pages, stored) || n * kPageTokens < stored))
      return fmt::format("sequence {}, table {}: {} blocks for {} tokens", which, t, n, stored);
    if (stored == cache.length && n != n_pages)
      return fmt::format("sequence {}, table {}: {} blocks for {} pages", which, t, table.size(), n_pages);
    for (std::int32_t id : table) {
      if (id < 0 || id >= size32(holders)) return fmt::format("sequence {}, table {}: no block {}", which, t, id);
      ++holders[id];
    }
  }
  for (const std::int32_t id : cache.states) {
    if (id < 0 || id >= size32(holders)) return fmt::format("sequence {}, a state: no block {}", which, id);
    ++holders[id];
  }
  return {};
}

// Within one sequence no block occurs twice.
std::string find_repeated(const CacheSnapshot& cache, std::size_t which, std::vector<std::size_t>& last_seen) {
  for (const auto& table : cache.tables) {
    for (std::int32_t id : table) {
      std::size_t& seen = last_seen[id];
      if (seen == which + 1) return fmt::format("sequence {}: block {} twice", which, id);
      seen = which + 1;
    }
  }
  return {};
}

}  // namespace

PoolSnapshot snapshot_of(const PagePool& pool) {
  PoolSnapshot s;
  s.n_free = pool.n_free();
  for (std::int32_t id = 0; id < pool.n_blocks(); ++id) s.references.push_back(pool.references(BlockId(id)));
  s.free.assign(pool.given_back().begin(), pool.given_back().end());
  for (const std::int32_t id : pool.released_weakly()) s.free.push_back(id);
  for (std::int64_t id = pool.touched_blocks(); id < pool.n_blocks(); ++id) s.free.push_back(count32(id));
  return s;
}

CacheSnapshot snapshot_of(const SequenceCache& cache) {
  CacheSnapshot s{.length = cache.length(), .n_pages = cache.n_pages(), .tables = {}, .stored = {}, .states = {}};
  for (const BlockId id : cache.states().references()) s.states.push_back(id.value);
  for (std::int32_t layer = 0; layer < cache.shape().n_layers; ++layer) {
    for (std::int32_t head = 0; head < cache.shape().n_kv_heads; ++head) {
      auto& table = s.tables.emplace_back();
      for (BlockId id : cache.table(layer, head).subspan(cache.first_page(layer))) table.push_back(id.value);
      if (cache.dropped() || cache.released_pages() > 0) s.stored.push_back(cache.n_stored(layer, head));
    }
  }
  return s;
}

std::string find_violation(const PoolSnapshot& pool, std::span<const CacheSnapshot> caches) {
  std::vector<std::int32_t> holders(pool.references.size(), 0);
  std::vector<std::size_t> last_seen(pool.references.size(), 0);
  for (std::size_t i = 0; i < caches.size(); ++i) {
    std::string wrong = count_holders(caches[i], i, holders);
    if (wrong.empty()) wrong = find_repeated(caches[i], i, last_seen);
    if (!wrong.empty()) return wrong;
  }
  std::vector<std::int32_t> times_free(pool.references.size(), 0);
  for (std::int32_t id : pool.free) {
    if (id < 0 || id >= size32(times_free)) return fmt::format("free: no block {}", id);
    ++times_free[id];
  }
  for (std::size_t id = 0; id < pool.references.size(); ++id) {
    if (pool.references[id] != holders[id])
      return fmt::format("block {}: {} references, {} tables hold it", id, pool.references[id], holders[id]);
    if (times_free[id] != (holders[id] == 0 ? 1 : 0))
      return fmt::format("block {}: {} tables hold it, {} times free", id, holders[id], times_free[id]);
  }
  if (pool.n_free != std::ssize(pool.free))
    return fmt::format("{} blocks free, the pool says {}", pool.free.size(), pool.n_free);
  return {};
}

}  // namespace mneme
