#include <gtest/gtest.h>

#include <vector>

#include "src/base/ratio.h"
#include "src/base/size32.h"
#include "src/base/underlying.h"

namespace mneme {
namespace {

TEST(Count32, TakesEveryValueThatFits) {
  EXPECT_EQ(count32(std::int64_t{-1}), -1);
  EXPECT_EQ(count32(std::size_t{0x7fffffff}), 0x7fffffff);
  EXPECT_EQ(size32(std::vector<int>(3)), 3);
}

TEST(Count32DeathTest, AbortsWhereANumberDoesNotFit) {
  EXPECT_DEATH(count32(std::int64_t{1} << 31), "2147483648 does not fit 32 bits");
  EXPECT_DEATH(count32(~std::uint64_t{0}), "18446744073709551615 does not fit 32 bits");
  EXPECT_DEATH(count32(-(std::int64_t{1} << 31) - 1), "-2147483649 does not fit 32 bits");
}

TEST(Ratio, IsZeroOfNothing) {
  EXPECT_EQ(ratio(3, 0), 0.0);
  EXPECT_EQ(percent(3, 0), 0.0);
  EXPECT_EQ(ratio(1, 4), 0.25);
  EXPECT_EQ(percent(1, 4), 25.0);
}

TEST(Ratio, PartsAreRoundedDown) {
  EXPECT_EQ(part_of(std::size_t{10}, 0.39), 3u);
  EXPECT_EQ(part_of(std::int64_t{10}, 1.0), 10);
  EXPECT_EQ(part_of(10, 0.0), 0);
}

TEST(Underlying, IsTheNumberInTheTypeOfTheEnumeration) {
  enum class Small : std::uint8_t { kZero, kLast = 255 };
  static_assert(std::is_same_v<decltype(underlying(Small::kLast)), std::uint8_t>);
  EXPECT_EQ(underlying(Small::kZero), 0);
  EXPECT_EQ(underlying(Small::kLast), 255);
}

}  // namespace
}  // namespace mneme
