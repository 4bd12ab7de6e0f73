#include "src/base/strong_id.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <unordered_set>

namespace mneme {
namespace {

using PageTestId = StrongId<struct PageTestTag>;
using RowTestId = StrongId<struct RowTestTag, std::int64_t>;

static_assert(!std::is_convertible_v<int, PageTestId>, "a number is not an id");
static_assert(!std::is_convertible_v<PageTestId, RowTestId>, "one kind of id is not another");
static_assert(!std::is_convertible_v<PageTestId, int>, "an id is not a number");
static_assert(sizeof(PageTestId) == 4 && sizeof(RowTestId) == 8);

TEST(StrongId, DefaultIsNone) {
  EXPECT_FALSE(PageTestId().valid());
  EXPECT_TRUE(PageTestId(0).valid());
  EXPECT_EQ(PageTestId(), PageTestId(-1));
}

TEST(StrongId, ComparesAndHashesByValue) {
  EXPECT_LT(PageTestId(1), PageTestId(2));
  EXPECT_EQ(RowTestId(5), RowTestId(5));
  std::unordered_set<PageTestId> set = {PageTestId(1), PageTestId(1), PageTestId(2)};
  EXPECT_EQ(set.size(), 2u);
}

}  // namespace
}  // namespace mneme
