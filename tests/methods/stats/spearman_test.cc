#include "src/methods/stats/spearman.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mneme {
namespace {

TEST(Spearman, IsAboutOrderAlone) {
  EXPECT_DOUBLE_EQ(spearman({1, 2, 3, 4}, {10, 11, 100, 1000}), 1);
  EXPECT_DOUBLE_EQ(spearman({1, 2, 3, 4}, {4, 3, 2, 1}), -1);
}

// 1 - 6 (1 + 1 + 4 + 4) / (5 * 24)
TEST(Spearman, ByHand) {
  EXPECT_NEAR(spearman({1, 2, 3, 4, 5}, {2, 1, 5, 4, 3}), 1 - 6.0 * 10 / 120, 1e-12);
}

// Ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3.
TEST(Spearman, EqualValuesShareTheirRanks) {
  EXPECT_NEAR(spearman({5, 7, 7, 9}, {1, 2, 3, 4}), 4.5 / std::sqrt(4.5 * 5), 1e-12);
}

TEST(Spearman, IsNotDefinedWhereNothingDiffers) {
  EXPECT_TRUE(std::isnan(spearman({}, {})));
  EXPECT_TRUE(std::isnan(spearman({1}, {1})));
  EXPECT_TRUE(std::isnan(spearman({2, 2, 2}, {1, 2, 3})));
  EXPECT_TRUE(std::isnan(spearman({1, NAN, 3}, {1, 2, 3})));
}

}  // namespace
}  // namespace mneme
