#include "src/sampler/truncated_distribution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/rng.h"
#include "src/sampler/fast_exp.h"

namespace mneme {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Without greedy's temperature of 0.
SamplingOptions sampling(int top_k, float top_p, float min_p, float temperature = 1) {
  SamplingOptions o;
  o.temperature = temperature;
  o.top_k = top_k;
  o.top_p = top_p;
  o.min_p = min_p;
  return o;
}

std::vector<float> logs(std::vector<double> probabilities) {
  std::vector<float> x;
  for (double p : probabilities) x.push_back(static_cast<float>(std::log(p)));
  return x;
}

float max_of(std::span<const float> x) {
  float m = -kInf;
  for (float v : x) m = v > m ? v : m;
  return m;
}

std::vector<std::int32_t> fast(std::span<const float> x, const SamplingOptions& o) {
  TruncatedDistribution s;
  s.select(x, max_of(x), o);
  return {s.tokens().begin(), s.tokens().end()};
}

std::vector<std::int32_t> ref(std::span<const float> x, const SamplingOptions& o) {
  std::vector<std::int32_t> ids;
  for (const TokenWeight& w : truncated_distribution_ref(x, o)) ids.push_back(w.token);
  return ids;
}

using Ids = std::vector<std::int32_t>;
void expect_both(std::span<const float> x, const SamplingOptions& o, const Ids& expected) {
  EXPECT_EQ(ref(x, o), expected);
  EXPECT_EQ(fast(x, o), expected);
}

TEST(FastExp, IsWithinTwoUnitsInTheLastPlace) {
  for (double x = 0; x > -87; x -= 0.00371) {
    const auto f = static_cast<float>(x);
    const double exact = std::exp(double{f});
    EXPECT_LE(std::abs(static_cast<double>(exp_below_zero(f)) - exact), 2 * 5.97e-8 * exact) << x;
  }
  EXPECT_EQ(exp_below_zero(0.0f), 1.0f);
  EXPECT_EQ(exp_below_zero(-88.0f), 0.0f);
  EXPECT_EQ(exp_below_zero(-kInf), 0.0f);
  EXPECT_EQ(exp_below_zero(kNan), 0.0f);
}

TEST(TruncatedDistribution, ExamplesByHand) {
  const auto x = logs({0.1, 0.5, 0.05, 0.2, 0.15});
  expect_both(x, sampling(0, 1, 0), {0, 1, 2, 3, 4});
  expect_both(x, sampling(2, 1, 0), {1, 3});
  expect_both(x, sampling(9, 1, 0), {0, 1, 2, 3, 4});
  expect_both(x, sampling(0, 0.5f, 0), {1});  // reaches it exactly
  expect_both(x, sampling(0, 0.51f, 0), {1, 3});
  expect_both(x, sampling(0, 0.85f, 0), {1, 3, 4});
  expect_both(x, sampling(0, 0.0f, 0), {1});        // at least one
  expect_both(x, sampling(0, 1, 0.3f), {1, 3, 4});  // 0.15 is 0.3 of 0.5
  expect_both(x, sampling(0, 1, 0.31f), {1, 3});
  expect_both(x, sampling(0, 1, 1), {1});
  // top-p looks at what top-k left: 0.5 of 0.85 is less than 0.6, 0.7 of 0.85 is enough.
  expect_both(x, sampling(3, 0.6f, 0), {1, 3});
  // The temperature is applied first: at 0.5 weights are squared, 0.04 of 0.25.
  expect_both(x, sampling(0, 1, 0.16f, 0.5f), {1, 3});
  expect_both(x, sampling(0, 1, 0.17f, 0.5f), {1});
}

TEST(TruncatedDistribution, TiesGoToTheSmallerId) {
  const std::vector<float> x(10, 2.5f);
  expect_both(x, sampling(3, 1, 0), {0, 1, 2});
  expect_both(x, sampling(0, 0.3f, 0), {0, 1, 2});
  expect_both(x, sampling(0, 0.31f, 0), {0, 1, 2, 3});
  expect_both(x, sampling(5, 0.5f, 0), {0, 1, 2});
  expect_both(x, sampling(0, 1, 1), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST(TruncatedDistribution, NanAndMinusInfinityComeLast) {
  std::vector<float> x(200, kNan);
  x[150] = 1;
  x[151] = -kInf;
  x[152] = 0.5f;
  expect_both(x, sampling(1, 1, 0), {150});
  expect_both(x, sampling(2, 1, 0), {150, 152});
  expect_both(x, sampling(0, 0.9f, 0), {150, 152});
  expect_both(x, sampling(0, 0.99f, 0.01f), {150, 152});
  TruncatedDistribution s;
  s.select(x, 1, sampling(100, 1, 0));
  for (double u : {0.0, 0.3, 0.6, 0.7, 0.999999999}) {
    const std::int32_t id = s.at(u);
    EXPECT_EQ(id, u < 0.62 ? 150 : 152) << u;  // 1 / (1 + e^-0.5) = 0.6225
  }
}

// Few distinct values make ties at every cut; wide ones reach the last bin of the histogram.
TEST(TruncatedDistribution, PartialSelectionEqualsSorting) {
  Rng rng(11);
  for (int trial = 0; trial < 1500; ++trial) {
    const std::size_t n = 1 + rng.below(trial % 10 == 0 ? 3000 : 90);
    const std::uint64_t kind = rng.below(4);
    std::vector<float> x(n);
    for (float& v : x) {
      v = kind == 0 ? static_cast<float>(rng.below(4)) : static_cast<float>(rng.normal() * (kind == 1 ? 1 : 40));
      if (kind == 3 && rng.below(5) == 0) v = rng.below(2) == 0 ? kNan : -kInf;
    }
    x[rng.below(n)] = 1.5f;
    const float t[] = {0.05f, 0.7f, 1, 3}, p[] = {0, 0.1f, 0.5f, 0.9f, 0.999f, 1}, m[] = {0, 0, 0.01f, 0.5f};
    const int k[] = {0, 0, 1, 2, 40, static_cast<int>(n) - 1, static_cast<int>(n), 100000};
    const SamplingOptions o = sampling(k[rng.below(8)], p[rng.below(6)], m[rng.below(4)], t[rng.below(4)]);
    const std::vector<TokenWeight> expected = truncated_distribution_ref(x, o);
    TruncatedDistribution s;
    s.select(x, max_of(x), o);
    ASSERT_EQ(s.tokens().size(), expected.size()) << "k " << o.top_k << " p " << o.top_p << " min " << o.min_p;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(s.tokens()[i], expected[i].token);
      // exp's two units, and one of the difference and of the quotient that it amplifies.
      const double scale = std::abs(std::log(std::max(expected[i].weight, 1e-300)));
      const double tol = 1.3e-7 * (1 + 2 * scale) * expected[i].weight + 2e-38;
      ASSERT_LE(std::abs(static_cast<double>(s.weight(expected[i].token)) - expected[i].weight), tol);
    }
  }
}

TEST(TruncatedDistribution, EachWeightHasItsShareOfTheUnitInterval) {
  const auto x = logs({0.25, 0.5, 0.25});
  TruncatedDistribution s;
  s.select(x, max_of(x), sampling(0, 1, 0));
  EXPECT_EQ(s.at(0), 0);
  EXPECT_EQ(s.at(0.2499), 0);
  EXPECT_EQ(s.at(0.2501), 1);
  EXPECT_EQ(s.at(0.7499), 1);
  EXPECT_EQ(s.at(0.7501), 2);
  EXPECT_EQ(s.at(1 - 0x1p-53), 2);
}

// Intervals contain their beginning and not their end.
TEST(TruncatedDistribution, AnEdgeBelongsToTheTokenBehindIt) {
  const std::vector<float> x(4, 1.0f);
  TruncatedDistribution s;
  s.select(x, 1, sampling(0, 1, 0));
  EXPECT_EQ(s.at(0.25), 1);
  EXPECT_EQ(s.at(0.5), 2);
  EXPECT_EQ(s.at(0.75), 3);
}

}  // namespace
}  // namespace mneme
