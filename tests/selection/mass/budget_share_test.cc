#include "src/selection/mass/budget_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace mneme {
namespace {

using ::testing::ElementsAre;

// PyramidKV's own numbers: 8 layers, 512 tokens of which 32 are recent, a prompt of 4,096.
TEST(PyramidKeep, FallsInEqualSteps) {
  std::vector<std::int32_t> keeps;
  for (std::int32_t l = 0; l < 8; ++l) keeps.push_back(pyramid_keep({.beta = 20}, 512, 32, 4096, {l, 8}));
  EXPECT_THAT(keeps, ElementsAre(968, 838, 708, 578, 448, 318, 188, 58));
  EXPECT_EQ(pyramid_keep({.beta = 20}, 2048, 32, 16384, {0, 32}), 3932 + 32);
  EXPECT_EQ(pyramid_keep({.beta = 20}, 2048, 32, 16384, {31, 32}), 119 + 32);
}

// Up to twice the ranked tokens all layers keep the budget; just above, the first layer keeps the prompt.
TEST(PyramidKeep, OfAShortPromptIsEven) {
  for (std::int32_t l = 0; l < 4; ++l) EXPECT_EQ(pyramid_keep({.beta = 20}, 512, 32, 959, {l, 4}), 512);
  EXPECT_EQ(pyramid_keep({.beta = 20}, 512, 32, 960, {0, 4}), 960);
  EXPECT_EQ(pyramid_keep({.beta = 20}, 512, 32, 5000, {0, 1}), 512);
}

// Scores of two heads such that `c` of the 2 b largest fall to head 0.
std::vector<std::int32_t> keeps(const HeadShare& share, std::int32_t b, std::int32_t c) {
  std::vector<std::vector<float>> rows(2, std::vector<float>(64, 0.0f));
  for (std::int32_t t = 0; t < 2 * b; ++t) rows[t < c ? 0 : 1][t] = static_cast<float>(1 + t);
  const std::vector<std::span<const float>> spans(rows.begin(), rows.end());
  return head_keeps(share, spans, b);
}

// b 10, counts 13 and 7: 0.8 * 13 + 2 = 12.4, 0.8 * 7 + 2 = 7.6. b 4, counts 5 and 3: floors of 0.8 * 5, 0.8 * 3 lose.
TEST(HeadKeeps, FollowWhereTheLargestScoresFall) {
  EXPECT_THAT(keeps({.floor = 0.2f}, 10, 13), ElementsAre(12, 8));
  EXPECT_THAT(keeps({.floor = 0.2f}, 4, 5), ElementsAre(4, 2));
  EXPECT_THAT(keeps({.floor = 1.0f}, 10, 20), ElementsAre(10, 10));
}

// Exact: every head has its floor, and together they keep the budget, whatever the scores.
TEST(HeadKeeps, TheExactFormKeepsTheBudget) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::vector<float>> rows(1 + rng() % 5);
    for (auto& row : rows) {
      row.resize(40);
      for (float& x : row) x = normal(rng) + (&row == rows.data() ? 2.0f : 0.0f);
    }
    const std::vector<std::span<const float>> spans(rows.begin(), rows.end());
    const auto b = static_cast<std::int32_t>(1 + rng() % 20);
    std::int32_t sum = 0;
    for (const std::int32_t n : head_keeps({.floor = 0.5f, .exact = true}, spans, b)) {
      EXPECT_GE(n, b / 2);
      sum += n;
    }
    EXPECT_EQ(sum, b * static_cast<std::int32_t>(rows.size()));
  }
}

}  // namespace
}  // namespace mneme
