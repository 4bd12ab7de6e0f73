// Where pages go that the engine takes from sequences which do not run, and from which preempted answers get them back.
#pragma once

#include <cstdint>
#include <span>

#include "src/engine/schedule/scheduler.h"
#include "src/kv/sequence_cache.h"

namespace mneme {

class LowerTier {
 public:
  virtual ~LowerTier() = default;

  // A kept sequence is about to lose its last page, which is full.
  virtual void kept_loses(RequestId id, const SequenceCache& cache) = 0;

  // Stores the pages of a preempted request from first_page on, the last of which may be open: `tokens` are those that
  // it has computed. They stay until forget(). False: no room; nothing of this request is to be had any more.
  virtual bool park(RequestId id, std::span<const std::int32_t> tokens, const SequenceCache& cache,
                    std::int32_t first_page) = 0;
  // Copies the pages from first_page on to the cache, which was extended by them. False: they cannot be had.
  virtual bool bring_back(RequestId id, SequenceCache& cache, std::int32_t first_page) = 0;
  virtual void forget(RequestId id) = 0;
};

}  // namespace mneme
