#include "src/selection/topk/rank.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <random>

namespace mneme {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Ids = std::vector<std::int32_t>;
using Sizes = std::vector<std::int32_t>;

Ids ref(const std::vector<float>& scores, const Sizes& sizes, std::int64_t n_tokens) {
  Ids ids{-7};
  rank_ref(
      scores, [&](std::int32_t i) { return sizes[i]; }, n_tokens, ids);
  return ids;
}

Ids cpu(const std::vector<float>& scores, const Sizes& sizes, std::int64_t n_tokens) {
  Ids ids{-7};
  RankScratch scratch;
  rank_cpu(
      scores, [&](std::int32_t i) { return sizes[i]; }, n_tokens, ids, scratch);
  return ids;
}

TEST(RankRef, TakesTheBestUntilTheyAreEnough) {
  const std::vector<float> scores{1, 5, 3, 4};
  const Sizes sizes{10, 4, 7, 1};
  EXPECT_THAT(ref(scores, sizes, 0), testing::IsEmpty());
  EXPECT_THAT(ref(scores, sizes, 4), testing::ElementsAre(1));
  EXPECT_THAT(ref(scores, sizes, 5), testing::ElementsAre(1, 3));
  EXPECT_THAT(ref(scores, sizes, 6), testing::ElementsAre(1, 3, 2));
  EXPECT_THAT(ref(scores, sizes, 22), testing::ElementsAre(1, 3, 2, 0));
  EXPECT_THAT(ref(scores, sizes, 1000), testing::ElementsAre(1, 3, 2, 0));
  EXPECT_THAT(ref({}, {}, 3), testing::IsEmpty());
}

TEST(RankRef, LargerIndexFirstAmongEqualsNanLast) {
  const Sizes ones(6, 1);
  EXPECT_THAT(ref({2, kNan, 2, -kInf, kNan, 2}, ones, 6), testing::ElementsAre(5, 2, 0, 3, 4, 1));
  EXPECT_THAT(ref({0.0f, -0.0f, 0.0f}, ones, 2), testing::ElementsAre(2, 1));
}

TEST(RankCpu, IsTheReferences) {
  std::mt19937 rng(5);
  for (const std::size_t n : {0u, 1u, 2u, 15u, 16u, 17u, 31u, 100u, 997u, 4096u, 9001u})
    for (int kind = 0; kind < 5; ++kind) {
      std::vector<float> scores(n);
      Sizes sizes(n);
      for (float& x : scores) {
        x = std::normal_distribution<float>()(rng);
        if (kind == 1) x = std::round(x);
        if (kind == 2) x = 0.5f;
        if (kind == 3 && rng() % 5 == 0) x = kNan;
        if (kind == 4) x = rng() % 2 == 0 ? 0.0f : -0.0f;
      }
      // Small, large, and one that is larger than all others together.
      for (std::int32_t& s : sizes) s = 1 + static_cast<std::int32_t>(rng() % (rng() % 2 == 0 ? 3 : 60));
      if (n > 3 && kind == 0) sizes[n / 2] = 1 << 20;
      for (const std::int64_t tokens : {0, 1, 7, 63, 64, 480, 2000, 100000})
        ASSERT_EQ(cpu(scores, sizes, tokens), ref(scores, sizes, tokens)) << n << " kind " << kind << ", " << tokens;
    }
}

}  // namespace
}  // namespace mneme
