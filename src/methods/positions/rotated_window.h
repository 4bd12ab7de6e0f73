// The last tokens of one KV head with their keys turned to where they stand, for sequences that keep keys before RoPE:
// a ring that follows the sequence. What it holds is derived from the cache; a copy is a fork.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/cache/sequence_cache.h"
#include "src/kernels/rope.h"

namespace mneme {

class TurnedWindow {
 public:
  TurnedWindow() = default;
  explicit TurnedWindow(std::int32_t capacity) : capacity_(capacity) {}  // tokens

  struct Range {
    std::int32_t begin = 0, end = 0;
  };
  // What of positions [from, length) is not there yet. Requires  length - from <= capacity.
  Range missing(std::int32_t from, std::int32_t length) const;
  // Turns the missing tokens of [from, cache.length()).   angles  row i: position missing().begin + i, scale 1
  void extend(const SequenceCache& cache, std::int32_t layer, std::int32_t kv_head, std::int32_t from,
              const AttentionShape& shape, const RopeAngles& angles);
  // Positions [from, to) in order, in one run or two. Requires  they are there.
  void append_runs(std::int32_t from, std::int32_t to, const AttentionShape& shape, std::vector<KvRun>& runs) const;
  void clear() { have_ = {}; }
  std::size_t bytes() const { return pairs_.capacity(); }

 private:
  std::int32_t capacity_ = 0;
  Range have_;
  std::vector<std::byte> pairs_;  // [capacity] of [K | V], position p in slot p % capacity; empty before the first use
};

}  // namespace mneme
