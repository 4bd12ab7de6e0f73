// Pages of sequences that do not run, in host memory beside a pool: page-locked where the pool is a device's, so that
// one copy over the link moves pages and no step waits for it.
//
// A page here is what a sequence stores of kPageTokens tokens, all layers and KV heads together. Which page it is, and
// which goes first when there is no room, is as on the disk (PageIndex). Nothing survives the process.
//
// Threads  the pool's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/kv/disk/page_index.h"
#include "src/kv/sequence_cache.h"

namespace mneme {

class HostStore {
 public:
  // Requires  the pool outlives it. Errors  kResource: no such memory; kOption: no room for a page.
  HostStore(const PagePool& pool, std::int64_t bytes);
  // Waits for what is in flight.
  ~HostStore();
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;

  // How many pages of a sequence are here, from its first on. They are used with that.
  std::int32_t find(std::span<const PageKey> sequence) { return index_.find_first(sequence); }

  // Copies the pages of a cache that keys.numbers name, ascending, unless they are here; false: not all found room, and
  // those behind are not here. Requires  SequenceCache::append_places().
  bool store(const SequenceCache& cache, std::span<const PageKey> keys);
  // Copies these pages to a cache that was extended by them. Requires  they are here.
  void load(SequenceCache& cache, std::span<const PageKey> keys);
  // Pages that are held are not evicted. Requires  they are here.
  void hold(std::span<const PageKey> keys);
  void release(std::span<const PageKey> keys);
  // Forgets pages that will not be requested again, if they are stored and not held.
  void drop(std::span<const PageKey> keys);

  struct Stats {
    std::int64_t pages = 0, slots = 0, page_bytes = 0;
    std::int64_t stored = 0, loaded = 0, evicted = 0;  // pages so far
  };
  Stats stats() const;
  // Aborts where index, order and slots contradict each other: for tests.
  void check_invariants() const { index_.check_invariants(); }

 private:
  void append_places(const SequenceCache& cache, const PageIndex::Page& page);
  void copy(BlocksGo go);

  const PagePool& pool_;
  std::int64_t page_bytes_;
  PageIndex index_;
  HostMemory memory_;
  std::vector<BlockPlace> places_;
  Stats stats_;
};

}  // namespace mneme
