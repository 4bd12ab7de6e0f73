#include "src/selection/topk/keep_groups.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace mneme {
namespace {

using Units = std::vector<std::int32_t>;

Units kept(const std::vector<float>& scores, const UnitGroups& groups, float share, std::int32_t n_units) {
  Units units;
  TopkScratch scratch;
  keep_groups_cpu(scores, groups, share, n_units, units, scratch);
  return units;
}

TEST(KeepGroups, ByHand) {
  // Units 3 to 9 by two: of groups 1 (3), 2 (4, 5), 3 (6, 7), 4 (8, 9).
  EXPECT_EQ(kept({1, 5, 5, 0}, {3, 10, 2}, 0.25f, 0), (Units{4, 5, 6, 7}));  // 2 groups beyond what is selected
  EXPECT_EQ(kept({9, 5, 5, 0}, {3, 10, 2}, 0.75f, 1), (Units{3, 4, 5, 6, 7}));
  EXPECT_EQ(kept({1, 3, 2, 3}, {0, 4, 1}, 0.25f, 0), (Units{3}));
  EXPECT_EQ(kept({1, 3, 2, 3}, {0, 4, 1}, 0.25f, 3), (Units{1, 2, 3}));
  EXPECT_EQ(kept({NAN, -INFINITY, NAN}, {0, 3, 1}, 0.5f, 0), (Units{1, 2}));
  EXPECT_EQ(kept({}, {5, 5, 1}, 0.5f, 0), Units{});
}

TEST(KeepGroups, IsTheReference) {
  std::mt19937 rng(7);
  for (int i = 0; i < 12000; ++i) {
    const std::int32_t each = i % 3 == 0 ? 1 : i % 3 == 1 ? 16 : 3, first = static_cast<std::int32_t>(rng() % 40);
    const std::int32_t edges[] = {0, 1, 15, 16, 17, 31, 33},
                       n = i < 2000 ? edges[rng() % 7] : static_cast<std::int32_t>(rng() % 300);
    const UnitGroups groups{first, first + n, each};
    std::vector<float> scores(static_cast<std::size_t>(n == 0 ? 0 : groups.size()));
    for (float& x : scores) {
      x = static_cast<float>(rng() % 5);
      if (rng() % 50 == 0) x = rng() % 2 == 0 ? NAN : -INFINITY;
    }
    const float share = static_cast<float>(rng() % 5) * 0.25f;
    const auto n_units = static_cast<std::int32_t>(rng() % 40);
    Units want;
    keep_groups_ref(scores, groups, share, n_units, want);
    const Units got = kept(scores, groups, share, n_units);
    ASSERT_EQ(got, want) << n << " units from " << first << " by " << each << ", share " << share << ", " << n_units;
    ASSERT_GE(static_cast<std::int32_t>(got.size()), std::min(n, n_units));
  }
}

}  // namespace
}  // namespace mneme
