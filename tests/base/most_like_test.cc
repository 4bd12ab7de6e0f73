#include "src/base/most_like.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace mneme {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"full", "quest", "h2o", "freekv", "--kv-method"};

TEST(MostLike, FindsWhatWasMeant) {
  EXPECT_EQ(most_like("questt", kNames), "quest");
  EXPECT_EQ(most_like("qeust", kNames), "quest");  // neighbours exchanged
  EXPECT_EQ(most_like("h20", kNames), "h2o");
  EXPECT_EQ(most_like("--kvmethod", kNames), "--kv-method");
}

TEST(MostLike, CaseAndUnderscoresDoNotCount) {
  EXPECT_EQ(most_like("QUEST", kNames), "quest");
  EXPECT_EQ(most_like("FreeKV", kNames), "freekv");
  EXPECT_EQ(most_like("--KV_METHOD", kNames), "--kv-method");
}

TEST(MostLike, NothingIsLikeAnotherWord) {
  EXPECT_EQ(most_like("", kNames), "");
  EXPECT_EQ(most_like("window", kNames), "");
  EXPECT_EQ(most_like(std::string(10'000, 'q'), kNames), "");
  EXPECT_EQ(most_like("quest", {}), "");
}

}  // namespace
}  // namespace mneme
