#include "src/selection/region/region.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "src/base/rng.h"

namespace mneme {
namespace {

// How often each token is attended when the first n_select candidates are selected, and which tokens are candidates.
struct Coverage {
  std::vector<int> attended;
  std::vector<bool> candidate;
};

Coverage cover(const RegionRules& rules, const Region& r, std::int32_t n) {
  Coverage c{std::vector<int>(n), std::vector<bool>(n)};
  const auto take = [&](std::int32_t begin, std::int32_t end) {
    for (std::int32_t t = begin; t < end; ++t) ++c.attended[t];
  };
  if (r.everything) {
    take(0, n);
    return c;
  }
  take(0, r.sink);
  take(r.first_unit * rules.unit_tokens, (r.first_unit + r.n_select) * rules.unit_tokens);
  take(r.recent_from, n);
  for (std::int32_t t = r.first_unit * rules.unit_tokens; t < r.last_unit * rules.unit_tokens; ++t)
    c.candidate[t] = true;
  return c;
}

void expect_lawful(const RegionRules& rules, std::int32_t n) {
  const Region r = region_at(rules, n);
  const Coverage c = cover(rules, r, n);
  const auto label = ::testing::Message() << "B " << rules.budget << " S " << rules.sink << " W " << rules.recent
                                          << " p " << rules.unit_tokens << " e " << rules.entry_tokens << " N " << n;
  std::int64_t total = 0;
  for (int times : c.attended) {
    ASSERT_LE(times, 1) << label;
    total += times;
  }
  EXPECT_EQ(c.attended.back(), 1) << "the current token; " << label;
  if (n <= rules.budget) {
    EXPECT_TRUE(r.everything) << label;
    EXPECT_EQ(total, n) << label;
    return;
  }
  EXPECT_LE(total, rules.budget) << label;
  for (std::int32_t t = 0; t < std::min(rules.sink, n); ++t) EXPECT_EQ(c.attended[t], 1) << label;
  // Every token is a sink, a candidate or in the window: none is permanently unreachable.
  for (std::int32_t t = 0; t < n; ++t)
    EXPECT_TRUE(t < r.sink || c.candidate[t] || t >= r.recent_from) << "token " << t << "; " << label;
  // Candidates have their index entries: their group is complete and does not hold the current token.
  EXPECT_LE(r.last_unit * rules.unit_tokens, (n - 1) / rules.entry_tokens * rules.entry_tokens) << label;
  if (rules.unit_tokens == 1) {
    EXPECT_EQ(total, rules.budget) << label;
  } else if (r.last_unit - r.first_unit > r.n_select) {
    EXPECT_GT(total, rules.budget - 2 * std::max(rules.unit_tokens, rules.entry_tokens)) << label;
  }
  if (rules.recent >= std::max(rules.unit_tokens, rules.entry_tokens)) {
    EXPECT_LE(n - r.recent_from, rules.recent) << label;
    EXPECT_GT(n - r.recent_from, rules.recent - std::max(rules.unit_tokens, rules.entry_tokens)) << label;
  }
}

TEST(Region, HoldsItsLawsForRandomRules) {
  Rng rng(11);
  const int sizes[] = {1, 2, 8, 16, 32, 64};
  int checked = 0;
  for (int i = 0; i < 40000; ++i) {
    RegionRules rules;
    rules.unit_tokens = sizes[rng.below(6)];
    rules.entry_tokens = rng.below(2) != 0 ? rules.unit_tokens : sizes[rng.below(6)];
    rules.sink =
        static_cast<std::int32_t>(rng.below(4)) * rules.unit_tokens * static_cast<std::int32_t>(1 + rng.below(3));
    rules.recent = static_cast<std::int32_t>(rng.below(6)) * rules.unit_tokens;
    rules.budget = 1 + static_cast<std::int32_t>(rng.below(700));
    if (check_region(rules) != nullptr) continue;
    ++checked;
    const std::int32_t n = 1 + static_cast<std::int32_t>(rng.below(1500));
    expect_lawful(rules, n);
    expect_lawful(rules, rules.budget + 1);
    if (HasFailure()) return;
  }
  EXPECT_GT(checked, 5000);
}

// A page that leaves the window is a candidate in the same step and in the next.
TEST(Region, NothingFallsBetweenWindowAndCandidates) {
  const RegionRules rules{.budget = 256, .sink = 32, .recent = 64, .unit_tokens = 32, .entry_tokens = 32};
  for (std::int32_t n = 257; n < 1000; ++n) {
    const Region r = region_at(rules, n);
    EXPECT_EQ(r.recent_from, r.last_unit * 32) << n;
    EXPECT_EQ(r.n_select, 5) << n;
  }
}

// FreeKV's published setting: 2048 in total, 512 sinks, 512 recent, pages of 32: 32 pages are selected.
TEST(Region, FreeKvExample) {
  const RegionRules rules{.budget = 2048, .sink = 512, .recent = 512, .unit_tokens = 32, .entry_tokens = 32};
  const Region r = region_at(rules, 32768);
  EXPECT_EQ(r.n_select, 32);
  EXPECT_EQ(r.first_unit, 16);
  EXPECT_EQ(r.recent_from, 32768 - 512);
  EXPECT_EQ(r.last_unit, (32768 - 512) / 32);
  EXPECT_EQ(region_at(rules, 32769).recent_from, 32768 - 512 + 32);
}

// Quest: the open page is always attended and counts as one of the budget's pages.
TEST(Region, QuestExample) {
  const RegionRules rules{.budget = 128, .unit_tokens = 16, .entry_tokens = 16};
  EXPECT_EQ(region_at(rules, 1001).n_select, 7);
  EXPECT_EQ(region_at(rules, 1001).recent_from, 992);
  // A page that the current token just completed is still in the window.
  EXPECT_EQ(region_at(rules, 1008).recent_from, 992);
  EXPECT_EQ(region_at(rules, 1009).recent_from, 1008);
}

TEST(Region, RulesThatMakeNoSenseAreNamed) {
  EXPECT_NE(check_region({.budget = 0}), nullptr);
  EXPECT_NE(check_region({.budget = 100, .sink = -1}), nullptr);
  EXPECT_NE(check_region({.budget = 512, .sink = 33, .recent = 64, .unit_tokens = 32, .entry_tokens = 32}), nullptr);
  EXPECT_NE(check_region({.budget = 512, .sink = 32, .recent = 65, .unit_tokens = 32, .entry_tokens = 32}), nullptr);
  EXPECT_NE(check_region({.budget = 512, .sink = 256, .recent = 256, .unit_tokens = 32, .entry_tokens = 32}), nullptr);
  EXPECT_NE(check_region({.budget = 512, .unit_tokens = 24, .entry_tokens = 32}), nullptr);
  EXPECT_EQ(check_region({.budget = 512, .sink = 256, .recent = 224, .unit_tokens = 32, .entry_tokens = 32}), nullptr);
}

}  // namespace
}  // namespace mneme
