#include "src/attention/prefill_windows.h"

#include <algorithm>

namespace mneme {

std::int64_t PrefillWindowRows::near_tokens(std::int32_t recent) const {
  const std::int64_t most = keeps ? end : recent;
  const std::int64_t full = std::clamp<std::int64_t>(base + most - 1, begin, end);  // rows from here on attend `most`
  return (begin + full + 1 - 2 * std::int64_t{base}) * (full - begin) / 2 + (end - full) * most;
}

PrefillWindowRows window_at(const Plan& plan, bool dense, std::int32_t begin, std::int32_t end) {
  const std::int32_t rows = plan.recipe.prefill_window->rows, budget = plan.rules.budget;
  const bool raw = plan.key_basis == KeyBasis::kRaw;
  PrefillWindowRows w{.begin = begin, .end = end};
  // Turned keys near a window are counted from its first row on: their tiles, and so the bits, are the window's.
  if (!dense || raw) {
    w.end = static_cast<std::int32_t>(std::min<std::int64_t>(end, (std::int64_t{begin} / rows + 1) * rows));
    if (begin < budget) w.end = std::min(w.end, budget);
  }
  w.everything = dense || w.end <= budget;
  // Rows attend all from `base` on where they select, because that may be selected once it is filed; where nothing is
  // selected, what leaves the window is left out.
  w.keeps = w.everything || plan.selects();
  w.slides = raw || !w.keeps;
  if (w.everything) return w;
  const Region region = region_at(plan.rules, begin + 1);
  w.sink = region.sink;
  w.base = plan.selects() ? region.recent_from : region.sink;
  return w;
}

}  // namespace mneme
