#include "src/methods/positions/rotated_window.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/ops/norm_rope/rotate_keys.h"

namespace mneme {

RotatedWindow::Range RotatedWindow::missing(std::int32_t from, std::int32_t length) const {
  MNEME_CHECK(from <= length && length - from <= capacity_, "positions [{}, {}) in a ring of {}", from, length,
              capacity_);
  const bool follows = have_.begin <= from && from <= have_.end && have_.end <= length;
  return {follows ? have_.end : from, length};
}

void RotatedWindow::extend(const SequenceCache& cache, std::int32_t layer, std::int32_t kv_head, std::int32_t from,
                           const AttentionShape& shape, const RopeAngles& angles) {
  const Range todo = missing(from, cache.length());
  if (todo.begin == from) have_ = {from, from};
  pairs_.resize(capacity_ * shape.token_bytes());
  thread_local std::vector<KvRun> runs;
  for (std::int32_t at = todo.begin; at < todo.end;) {
    const std::int32_t slot = at % capacity_, n = std::min(todo.end - at, capacity_ - slot);
    runs.clear();
    cache.append_runs(layer, kv_head, at, at + n, runs);
    rotate_keys_cpu(runs, shape, angles, at - todo.begin, pairs_.data() + slot * shape.token_bytes());
    at += n;
  }
  have_ = {std::max(have_.begin, todo.end - capacity_), todo.end};
}

void RotatedWindow::append_runs(std::int32_t from, std::int32_t to, const AttentionShape& shape,
                                std::vector<KvRun>& runs) const {
  MNEME_CHECK(have_.begin <= from && to <= have_.end, "positions [{}, {}), there are [{}, {})", from, to, have_.begin,
              have_.end);
  while (from < to) {
    const std::int32_t slot = from % capacity_, n = std::min(to - from, capacity_ - slot);
    runs.push_back({pairs_.data() + slot * shape.token_bytes(), n});
    from += n;
  }
}

}  // namespace mneme
