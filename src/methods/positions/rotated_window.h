// Ring of the last tokens of one KV head with keys rotated to their own positions, for sequences with pre-RoPE keys.
// Its content is derived from the cache; a copy is a fork.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/kv/sequence_cache.h"
#include "src/ops/norm_rope/rope.h"

namespace mneme {

class RotatedWindow {
 public:
  RotatedWindow() = default;
  explicit RotatedWindow(std::int32_t capacity) : capacity_(capacity) {}  // tokens

  struct Range {
    std::int32_t begin = 0, end = 0;
  };
  // Positions of [from, length) that are missing. Requires  length - from <= capacity.
  Range missing(std::int32_t from, std::int32_t length) const;
  // Rotates the missing tokens of [from, cache.length()).   angles  row i: position missing().begin + i, scale 1
  void extend(const SequenceCache& cache, std::int32_t layer, std::int32_t kv_head, std::int32_t from,
              const AttentionShape& shape, const RopeAngles& angles);
  // Appends positions [from, to) in order, as one or two runs. Requires  they are present.
  void append_runs(std::int32_t from, std::int32_t to, const AttentionShape& shape, std::vector<KvRun>& runs) const;
  void clear() { have_ = {}; }
  std::size_t bytes() const { return pairs_.capacity(); }

 private:
  std::int32_t capacity_ = 0;
  Range have_;
  std::vector<std::byte> pairs_;  // [capacity] of [K | V], position p at index p % capacity; empty before the first use
};

}  // namespace mneme
