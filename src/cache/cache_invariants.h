// What must always be true of a pool and the sequences that live in it, as pure functions over snapshots: tests call
// them after every event, and can break a snapshot to see that it is noticed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/cache/page_pool.h"
#include "src/cache/sequence_cache.h"

namespace mneme {

struct PoolSnapshot {
  std::vector<std::int32_t> references;  // by block
  std::vector<std::int32_t> free;        // blocks, in any order
  std::int64_t n_free = 0;               // what the pool says
};

struct CacheSnapshot {
  std::int32_t length = 0;
  std::int32_t n_pages = 0;
  std::vector<std::vector<std::int32_t>> tables;  // [layer * n_kv_heads + kv_head][page]; none at all while empty
  std::vector<std::int32_t> stored = {};          // by table, tokens that are left; empty: nothing was dropped
};

PoolSnapshot snapshot_of(const PagePool& pool);
CacheSnapshot snapshot_of(const SequenceCache& cache);

// The first thing that is wrong, in words; empty when all of it is true:
//
// * a block has as many references as tables hold it, and is free exactly when that is none
// * a block is free once, and the pool counts its free blocks right
// * every table has the pages that the length asks for, or that what is left of it may need at most, and no block twice
//
// Requires  `caches` are all sequences of that pool.
std::string find_violation(const PoolSnapshot& pool, std::span<const CacheSnapshot> caches);

}  // namespace mneme
