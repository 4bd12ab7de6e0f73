// Which experts a row goes to, by hand.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "src/model/routing.h"

namespace mneme {
namespace {

std::vector<RoutedExpert> routed(const std::vector<float>& logits, std::int64_t n_used, bool normalise) {
  std::vector<RoutedExpert> out(n_used);
  route(logits, n_used, normalise, out);
  return out;
}

// Logits that are logarithms of 1, 2, 3 and 4: the softmax is their tenths.
std::vector<float> tenths(std::initializer_list<int> parts) {
  std::vector<float> out;
  for (const int part : parts) out.push_back(std::log(static_cast<float>(part)));
  return out;
}

TEST(Routing, SharesAreOfAllExpertsOrOfThoseUsed) {
  const auto of_all = routed(tenths({2, 4, 1, 3}), 2, false);
  EXPECT_EQ(of_all[0].expert, 1);
  EXPECT_EQ(of_all[1].expert, 3);
  EXPECT_NEAR(of_all[0].share, 0.4f, 1e-6f);
  EXPECT_NEAR(of_all[1].share, 0.3f, 1e-6f);
  const auto of_used = routed(tenths({2, 4, 1, 3}), 2, true);
  EXPECT_NEAR(of_used[0].share, 4.0f / 7, 1e-6f);
  EXPECT_NEAR(of_used[1].share, 3.0f / 7, 1e-6f);
}

TEST(Routing, TheLowerNumberWinsTies) {
  const auto out = routed({1.0f, 2.0f, 2.0f, 2.0f, 1.0f}, 4, true);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(out[i].expert, (std::array{1, 2, 3, 0})[i]) << i;
}

TEST(Routing, LargeLogitsDoNotOverflow) {
  const auto out = routed({-3e38f, 3e38f, 1e38f}, 3, true);
  EXPECT_EQ(out[0].share, 1.0f);
  EXPECT_EQ(out[1].share, 0.0f);
  EXPECT_EQ(out[2].share, 0.0f);
}

TEST(Routing, NanIsTakenLastAndShows) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto out = routed({nan, 1.0f, nan, 2.0f}, 3, false);
  EXPECT_EQ(out[0].expert, 3);
  EXPECT_EQ(out[1].expert, 1);
  EXPECT_EQ(out[2].expert, 0);
  EXPECT_TRUE(std::isnan(out[0].share)) << "the sum over all experts is none";
}

}  // namespace
}  // namespace mneme
