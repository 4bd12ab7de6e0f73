#include "src/selection/topk/topk.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tests/ops/simd/each_target.h"

namespace mneme {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Ids = std::vector<std::int32_t>;

Ids cpu(const std::vector<float>& scores, std::int32_t k, TopkScratch& scratch) {
  constexpr std::int32_t kGuard = -77;
  Ids ids(static_cast<std::size_t>(k) + 1, kGuard);
  const std::int32_t n = topk_cpu(scores, k, ids.data(), scratch);
  for (std::size_t i = n; i < ids.size(); ++i) EXPECT_EQ(ids[i], kGuard) << "written at " << i;
  ids.resize(n);
  return ids;
}

Ids ref(const std::vector<float>& scores, std::int32_t k) {
  Ids ids(k);
  ids.resize(topk_ref(scores, k, ids.data()));
  return ids;
}

Ids cpu(const std::vector<float>& scores, std::int32_t k) {
  TopkScratch scratch;
  return cpu(scores, k, scratch);
}

TEST(TopkRef, LargerIndexWinsTies) {
  EXPECT_THAT(ref({1, 2, 2, 2, 3}, 3), testing::ElementsAre(2, 3, 4));
  EXPECT_THAT(ref({0, 0, 0}, 1), testing::ElementsAre(2));
  EXPECT_THAT(ref({0.0f, -0.0f, 0.0f, -0.0f}, 2), testing::ElementsAre(2, 3));
}

TEST(TopkRef, NanIsBelowMinusInfinity) {
  EXPECT_THAT(ref({kNan, -kInf, kNan, -kInf}, 2), testing::ElementsAre(1, 3));
  EXPECT_THAT(ref({kNan, -kInf, kNan, -kInf}, 3), testing::ElementsAre(1, 2, 3));
}

TEST(TopkRef, WritesAtMostTheRow) {
  EXPECT_THAT(ref({5, 4}, 7), testing::ElementsAre(0, 1));
  EXPECT_THAT(ref({}, 7), testing::IsEmpty());
  EXPECT_THAT(ref({1}, 0), testing::IsEmpty());
}

// Rows by kind; every kind occurs at every length.
std::vector<float> row(int kind, std::size_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto x = static_cast<float>(i);
    const float g = normal(rng);
    const auto few = static_cast<float>(rng() % 3) - 1.0f;
    switch (kind) {
      case 0:
        v[i] = g;
        break;
      case 1:
        v[i] = few;
        break;  // heavy ties
      case 2:
        v[i] = -2.5f;
        break;  // all equal
      case 3:
        v[i] = x;
        break;  // sorted
      case 4:
        v[i] = -x;
        break;  // reversed
      case 5:
        v[i] = rng() % 2 == 0 ? 0.0f : -0.0f;
        break;
      case 6:
        v[i] = rng() % 2 == 0 ? kNan : few * kInf;
        break;  // NaN from 0 * inf too
      case 7:
        v[i] = rng() % 50 == 0 ? g : kNan;
        break;  // nearly all NaN
      case 8:
        v[i] = kNan;
        break;
      case 9:
        v[i] = std::exp(20.0f * g);
        break;  // many binades
      case 10:
        v[i] = 1e-42f * (few + g);
        break;  // subnormal
      case 11:
        v[i] = i % 53 == 0 ? 100.0f + g : g;
        break;  // periodic
      case 12:
        v[i] = i > n - n / 16 ? 10.0f + g : g;
        break;  // all at the end
      case 13:
        v[i] = rng() % 100 == 0 ? few : -kInf;
        break;
      case 14:
        v[i] = std::round(8.0f * g);
        break;
      default: {  // arbitrary bits
        const auto bits = static_cast<std::uint32_t>(rng());
        std::memcpy(&v[i], &bits, sizeof(float));
      }
    }
  }
  return v;
}
constexpr int kKinds = 16;

TEST(Topk, IsTheReferenceOnShortRows) {
  each_target([] {
    std::mt19937 rng(1);
    TopkScratch scratch;
    for (std::size_t n = 0; n <= 70; ++n)
      for (int kind = 0; kind < kKinds; ++kind) {
        const auto v = row(kind, n, rng);
        for (std::int32_t k = 0; k <= static_cast<std::int32_t>(n) + 1; k += 1 + k / 5)
          ASSERT_EQ(cpu(v, k, scratch), ref(v, k)) << "n " << n << " kind " << kind << " k " << k;
      }
  });
}

TEST(Topk, IsTheReferenceOnLongRows) {
  std::mt19937 rng(2);
  TopkScratch scratch;
  for (const std::size_t n : {64u, 65u, 127u, 850u, 1021u, 2047u, 2048u, 2049u, 4099u, 6145u, 27000u})
    for (int kind = 0; kind < kKinds; ++kind) {
      const auto v = row(kind, n, rng);
      const auto last = static_cast<std::int32_t>(n);
      for (const std::int32_t k : {1, 32, 63, 64, 511, 2048, last / 2, last - 1, last, last + 5}) {
        if (n > 5000 && k > 64 && k < 2048) continue;
        const auto expected = ref(v, k);
        each_target([&] { ASSERT_EQ(cpu(v, k, scratch), expected) << "n " << n << " kind " << kind << " k " << k; });
      }
    }
}

TEST(Topk, TakesAMillion) {
  std::mt19937 rng(3);
  for (const int kind : {0, 1, 7, 12}) {
    const auto v = row(kind, 1'000'003, rng);
    const auto expected = ref(v, 2048);
    each_target([&] { ASSERT_EQ(cpu(v, 2048), expected) << "kind " << kind; });
  }
}

// A misleading sample: the sampled scores are not typical of the row.
TEST(Topk, SurvivesABadSample) {
  each_target([] {
    std::mt19937 rng(4);
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<float> v(4096, 0.0f);
      for (int i = 0; i < 40; ++i) v[rng() % v.size()] = 1.0f;
      for (const std::int32_t k : {1, 30, 45, 4000}) ASSERT_EQ(cpu(v, k), ref(v, k)) << "trial " << trial << " k " << k;
    }
  });
}

// Organ pipes and sawtooths maximise the rounds of a quickselect with fixed sample positions.
TEST(Topk, TakesPatternsThatFoolPivots) {
  each_target([] {
    for (const std::size_t n : {300u, 1999u, 2000u})
      for (const std::size_t period : {2u, 15u, 30u, 31u, 133u}) {
        std::vector<float> v(n);
        for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<float>(i % period) * (i < n / 2 ? 1.0f : -1.0f);
        for (const std::int32_t k : {1, 17, 150, 299})
          ASSERT_EQ(cpu(v, k), ref(v, k)) << n << " " << period << " " << k;
      }
  });
}

TEST(Topk, KeepsItsMemory) {
  TopkScratch scratch;
  std::mt19937 rng(5);
  const auto v = row(0, 27000, rng);
  cpu(v, 2048, scratch);
  const auto* words = scratch.words.data();
  const auto* candidates = scratch.candidates.data();
  for (const std::size_t n : {27000u, 100u, 26999u}) cpu(row(1, n, rng), 50, scratch);
  EXPECT_EQ(scratch.words.data(), words);
  EXPECT_EQ(scratch.candidates.data(), candidates);
}

}  // namespace
}  // namespace mneme
