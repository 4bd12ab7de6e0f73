#include "src/methods/prefill_windows.h"

#include <algorithm>

#include "src/base/size32.h"

namespace mneme {

std::int64_t WindowSpan::local_tokens(std::int32_t recent) const {
  const std::int64_t most = keeps ? end : recent;
  const std::int64_t full = std::clamp<std::int64_t>(base + most - 1, begin, end);  // rows from here on attend `most`
  return (begin + full + 1 - 2 * std::int64_t{base}) * (full - begin) / 2 + (end - full) * most;
}

WindowSpan window_at(const Plan& plan, bool dense, std::int32_t begin, std::int32_t end) {
  const std::int32_t rows = plan.window->rows, budget = plan.rules.budget;
  const bool pre_rope = plan.key_basis == KeyBasis::kPreRope;
  WindowSpan w{.begin = begin, .end = end};
  // Rotated keys of the local part are counted from the window's first row: their tiles, and so the bits, depend on the
  // window only.
  if (!dense || pre_rope) {
    w.end = count32(std::min<std::int64_t>(end, (std::int64_t{begin} / rows + 1) * rows));
    if (begin < budget) w.end = std::min(w.end, budget);
  }
  w.everything = dense || w.end <= budget;
  // With a selection, rows attend everything from `base` on, because it becomes selectable once filed; without one,
  // what leaves the window is not attended.
  w.keeps = w.everything || plan.selects();
  w.slides = pre_rope || !w.keeps;
  if (w.everything) return w;
  const Region region = region_at(plan.rules, begin + 1);
  w.sink = region.sink;
  w.base = plan.selects() ? region.recent_from : region.sink;
  return w;
}

}  // namespace mneme
