// What the summaries of all pages of one KV head share, fitted to the head's own keys.
//
// A frame is a pure function of the stored keys: fitted when the number of complete pages reaches a power of two, to
// the pages before, and the entries are then built again. So how a prompt was cut into chunks, forked, truncated or
// restored changes no entry, and all refits together cost as much as building twice.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

namespace mneme {

struct KeyFrame {
  std::shared_ptr<const std::vector<float>> values;  // shared by forks; null: not fitted
  std::int32_t pages = 0;                            // complete pages when it was fitted

  const float* data() const { return values == nullptr ? nullptr : values->data(); }
  // The number of pages that the frame of `complete` pages is fitted to.
  static std::int32_t pages_for(std::int32_t complete) {
    return complete < 1 ? 0 : static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(complete)));
  }
};

// Pages that a fit looks at: at most kMaxFittedPages, first + i * step, evenly spread over all but page 0, whose keys are
// attention sinks.
inline constexpr std::int32_t kMaxFittedPages = 128;
struct FittedPages {
  std::int32_t first = 0, step = 1, n = 0;
};
// Requires  n_pages >= 1.
inline FittedPages fitted_pages(std::int32_t n_pages) {
  const std::int32_t first = n_pages > 1 ? 1 : 0, all = n_pages - first,
                     step = (all + kMaxFittedPages - 1) / kMaxFittedPages;
  return {first, step, (all + step - 1) / step};
}

}  // namespace mneme
