#include "src/selection/mass/budget_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "src/selection/mass/page_stamps.h"

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

// CAKE: P of 3 and 1 share 10 as 8 and 2; a cap of 6 leaves two over.
TEST(PreferenceKeeps, FollowThePreferencesUpToTheCaps) {
  const auto keeps = [](std::vector<double> p, std::vector<std::int32_t> cap, std::int64_t total) {
    return preference_keeps(p, cap, total);
  };
  EXPECT_THAT(keeps({3, 1}, {100, 100}, 10), ElementsAre(8, 2));
  EXPECT_THAT(keeps({3, 1}, {6, 100}, 10), ElementsAre(6, 4));
  EXPECT_THAT(keeps({1, 1, 1}, {100, 100, 100}, 5), ElementsAre(2, 2, 1)) << "the lowest layers have the remainder";
  EXPECT_THAT(keeps({8, 1, 1}, {1, 100, 100}, 10), ElementsAre(1, 5, 4)) << "seven in turn to the others";
  EXPECT_THAT(keeps({1, 0, 0}, {4, 3, 100}, 20), ElementsAre(4, 3, 13));
  EXPECT_THAT(keeps({1, 1}, {3, 2}, 100), ElementsAre(3, 2)) << "no more than there are";
  EXPECT_THAT(keeps({0, 0}, {9, 9}, 6), ElementsAre(3, 3));
  EXPECT_THAT(keeps({NAN, 1}, {9, 9}, 6), ElementsAre(3, 3));
  EXPECT_THAT(keeps({}, {}, 0), ElementsAre());
}

std::vector<std::int32_t> steps_of(const std::vector<float>& mass, float above) {
  std::vector<PageStamp> pages(mass.size(), PageStamp{.step = 5});
  stamp_pages(pages, mass, {.above = above}, 6);
  std::vector<std::int32_t> steps;
  for (const PageStamp& p : pages) steps.push_back(p.step);
  return steps;
}

TEST(PageStamps, AStepStampsWhatItAttends) {
  EXPECT_THAT(steps_of({0, 0.3f, 0.7f}, 1e-4f), ElementsAre(5, 6, 6));
  EXPECT_THAT(steps_of({1e-4f, NAN}, 1e-4f), ElementsAre(5, 5)) << "more than, and never by a NaN";
  EXPECT_THAT(steps_of({0.1f, 0.4f, 0.2f, 0.3f}, 0), ElementsAre(5, 6, 5, 6));
  EXPECT_THAT(steps_of({0.1f, 0.4f, 0.2f}, 0), ElementsAre(5, 6, 6)) << "the middle one too";
  EXPECT_THAT(steps_of({0.25f, 0.25f, 0.25f, 0.25f}, 0), ElementsAre(5, 5, 6, 6)) << "of equal ones the newer";
  EXPECT_THAT(steps_of({NAN, 0.5f, NAN}, 0), ElementsAre(5, 6, 5));
  EXPECT_THAT(steps_of({}, 0), ElementsAre());
}

TEST(PageStamps, TheOldestStampGoesFirst) {
  std::vector<PageStamp> pages = {{.step = PageStamp::kPinned}, {.step = 7}, {.step = 6}, {.step = 6}, {.step = 2}};
  EXPECT_EQ(oldest_page(pages, 5), 4);
  EXPECT_EQ(oldest_page(pages, 4), 2) << "of equal ones the older, and none in the window";
  EXPECT_EQ(oldest_page(pages, 1), 0) << "a prompt's, where there is no other";
  stamp_pages(pages, std::vector<float>(5, 1.0f), {}, 9);
  EXPECT_EQ(pages[0].step, PageStamp::kPinned);
  EXPECT_EQ(pages[4].step, 9);
}

}  // namespace
}  // namespace mneme
