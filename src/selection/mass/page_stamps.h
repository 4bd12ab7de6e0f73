// Pages of consecutive stored tokens, each with the last step that attended it enough: rank=stamp.
//
// A head's pages lie behind its sinks, complete ones only, oldest first. They are dropped whole, so that pages are
// consecutive ranks at all times; what is stored behind them is not a page yet.
//
// Source  RaaS (Hu et al. 2025), section 3; a page's score here is its share of the step's attention, in place of the
//         bound of its box.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "mneme/recipe.h"

namespace mneme {

struct PageStamp {
  std::int32_t step = 0;  // tokens stored at the step; kPinned: a prompt's, with pin_prompt
  std::int32_t end = 0;   // position of its last token

  static constexpr std::int32_t kPinned = std::numeric_limits<std::int32_t>::max();
  bool operator==(const PageStamp&) const = default;
};

// Stamps pages with `step` where their mass exceeds rule.above; with rule.above = 0 the larger half, of an odd number the
// middle one too. Pinned pages stay pinned.
//   mass  one value a page
// Ties  the newer page is in the upper half.   NaN  exceeds nothing, and is in the lower half.
void stamp_pages(std::span<PageStamp> pages, std::span<const float> mass, const Stamps& rule, std::int32_t step);

// The page to drop of the first n: the oldest stamp, among equal ones the older page. Requires  1 <= n <= pages.size().
std::int32_t oldest_page(std::span<const PageStamp> pages, std::int32_t n);

}  // namespace mneme
