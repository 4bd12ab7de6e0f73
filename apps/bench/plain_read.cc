#include "apps/bench/plain_read.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "apps/bench/plain_read.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Four sums, so that the loop waits for memory and not for additions.
std::uint64_t Sum(const std::uint64_t* words, std::size_t n) {
  const hn::ScalableTag<std::uint64_t> d;
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (std::size_t i = 0; i < n; i += 4 * lanes) {
    a = hn::Add(a, hn::LoadU(d, words + i));
    b = hn::Add(b, hn::LoadU(d, words + i + lanes));
    c = hn::Add(c, hn::LoadU(d, words + i + 2 * lanes));
    e = hn::Add(e, hn::LoadU(d, words + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {
HWY_EXPORT(Sum);
}  // namespace

std::uint64_t sum_words(const std::uint64_t* words, std::size_t n) {
  return HWY_DYNAMIC_DISPATCH(Sum)(words, n);
}

}  // namespace mneme
#endif
