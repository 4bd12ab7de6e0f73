// Invariants of a page pool and its sequences, as pure functions over snapshots. Tests check them after every event,
// and corrupt a snapshot to see that it is detected.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/kv/page_pool.h"
#include "src/kv/sequence_cache.h"

namespace mneme {

struct PoolSnapshot {
  std::vector<std::int32_t> references;  // references of each block
  std::vector<std::int32_t> free;        // free blocks, in any order
  std::int64_t n_free = 0;               // the pool's own count
};

struct CacheSnapshot {
  std::int32_t length = 0;
  std::int32_t n_pages = 0;
  std::vector<std::vector<std::int32_t>> tables;  // [layer * n_kv_heads + kv_head][page]; empty at length 0
  std::vector<std::int32_t> stored = {};          // by table: tokens kept; empty: nothing was dropped
  std::vector<std::int32_t> states = {};          // blocks of recurrent states, once a reference
};

PoolSnapshot snapshot_of(const PagePool& pool);
CacheSnapshot snapshot_of(const SequenceCache& cache);

// Describes the first violated invariant; empty when all hold:
//
// * a block's reference count is the number of table entries and states that hold it; it is free exactly when that is 0
// * a block is on the free list at most once, and n_free is the length of that list
// * a table holds the pages that the length needs, or at most those that the kept tokens may need, and no block twice
//
// Requires  `caches` are all sequences of that pool.
std::string find_violation(const PoolSnapshot& pool, std::span<const CacheSnapshot> caches);

}  // namespace mneme
