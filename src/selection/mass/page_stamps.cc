#include "src/selection/mass/page_stamps.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/check.h"
#include "src/base/size32.h"

namespace mneme {

void stamp_pages(std::span<PageStamp> pages, std::span<const float> mass, const Stamps& rule, std::int32_t step) {
  MNEME_CHECK(pages.size() == mass.size(), "{} pages, {} masses", pages.size(), mass.size());
  const auto stamp = [&](std::int32_t page) {
    if (pages[page].step != PageStamp::kPinned) pages[page].step = step;
  };
  if (rule.above > 0) {
    for (std::int32_t i = 0; i < std::ssize(pages); ++i)
      if (mass[i] > rule.above) stamp(i);
    return;
  }
  std::vector<std::int32_t> order(pages.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const bool a_nan = std::isnan(mass[a]), b_nan = std::isnan(mass[b]);
    if (a_nan != b_nan) return b_nan;
    return !a_nan && mass[a] != mass[b] ? mass[a] > mass[b] : a > b;
  });
  order.resize((order.size() + 1) / 2);
  for (const std::int32_t page : order)
    if (!std::isnan(mass[page])) stamp(page);
}

std::int32_t oldest_page(std::span<const PageStamp> pages, std::int32_t n) {
  MNEME_CHECK(n >= 1 && n <= size32(pages), "one of {} pages of {}", n, pages.size());
  const auto first = pages.begin();
  return count32(
      std::min_element(first, first + n, [](const PageStamp& a, const PageStamp& b) { return a.step < b.step; }) -
      first);
}

}  // namespace mneme
