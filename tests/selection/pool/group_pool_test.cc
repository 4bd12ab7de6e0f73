#include "src/selection/pool/group_pool.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "tests/ops/simd/each_target.h"
#include "tests/selection/index/key_testing.h"

namespace mneme {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr Pool kPools[] = {Pool::kMaxQk, Pool::kMeanQk, Pool::kMaxS, Pool::kMeanS};

// Scores of a group by head, with padded rows.
struct Scores {
  std::int32_t group;
  std::int64_t n;
  std::vector<float> values;

  Scores(std::int32_t g, std::int64_t units) : group(g), n(units), values(g * (n + 3), 99.0f) {}
  std::int64_t stride() const { return n + 3; }
  float& at(std::int64_t h, std::int64_t u) { return values[h * stride() + u]; }
};

template <class F>
std::vector<float> pooled(const F& fn, Scores s, Pool pool, float alpha) {
  std::vector<float> out(static_cast<std::size_t>(s.n) + 1, 77.0f);
  fn(s.values.data(), s.stride(), s.group, s.n, pool, alpha, out.data());
  EXPECT_EQ(out.back(), 77.0f);
  out.pop_back();
  return out;
}

Scores random_scores(std::int32_t group, std::int64_t n, float spread, std::mt19937& rng) {
  Scores s(group, n);
  std::normal_distribution<float> normal(0.0f, spread);
  for (std::int64_t h = 0; h < group; ++h)
    for (std::int64_t u = 0; u < n; ++u) s.at(h, u) = normal(rng);
  return s;
}

TEST(GroupPoolRef, ByHand) {
  Scores s(2, 3);
  for (const auto& [u, a, b] : {std::tuple{0, 0.0f, std::log(2.0f)}, {1, 0.0f, 0.0f}, {2, std::log(2.0f), 0.0f}}) {
    s.at(0, u) = a;
    s.at(1, u) = b;
  }
  using testing::FloatNear;
  const auto prob = [](double p) { return FloatNear(static_cast<float>(std::log(p)), 1e-6f); };
  EXPECT_THAT(pooled(group_pool_ref, s, Pool::kMaxS, 1.0f), testing::ElementsAre(prob(0.5), prob(0.25), prob(0.5)));
  EXPECT_THAT(pooled(group_pool_ref, s, Pool::kMeanS, 1.0f),
              testing::ElementsAre(prob(0.75), prob(0.5), prob(0.75)));  // sums: the mean's order
  EXPECT_THAT(pooled(group_pool_ref, s, Pool::kMeanQk, 1.0f)[0], FloatNear(std::log(2.0f) / 2, 1e-6f));
  EXPECT_THAT(pooled(group_pool_ref, s, Pool::kMaxQk, 1.0f)[1], 0.0f);
}

TEST(Pool, IsTheReference) {
  std::mt19937 rng(1);
  for (const std::int32_t group : {1, 2, 3, 4, 5, 7, 8, 16})
    for (const std::int64_t n : {1, 2, 15, 16, 17, 850, 4099})
      for (const float spread : {1.0f, 30.0f, 1000.0f})
        for (const Pool pool : kPools) {
          const Scores s = random_scores(group, n, spread, rng);
          const bool log_domain = pool == Pool::kMaxS || pool == Pool::kMeanS;
          const float alpha = 0.125f;
          const auto expected = pooled(group_pool_ref, s, pool, alpha);
          each_target([&] {
            const auto got = pooled(group_pool_cpu, s, pool, alpha);
            for (std::size_t u = 0; u < got.size(); ++u) {
              // Log probabilities: relative to the scores' differences and to the logarithm's argument.
              const double size = log_domain ? 4.0 + std::fabs(expected[u]) : spread;
              ASSERT_LE(std::fabs(got[u] - expected[u]), (pool == Pool::kMaxQk ? 0.0 : 3e-7) * size)
                  << "G " << group << " n " << n << " spread " << spread << " pool " << static_cast<int>(pool) << " u "
                  << u;
            }
          });
        }
}

// Weights 1, 2, 4, 8 and 1; total 16.
TEST(MissingMass, ByHand) {
  std::vector<float> x = {0, 1, 2, 3, 0};
  for (float& v : x) v *= std::log(2.0f);
  const std::vector<std::int32_t> none, all = {0, 1, 2, 3, 4}, best = {2, 3}, last = {3, 4};
  const auto check = [&](const auto& fn) {
    EXPECT_EQ(fn(x, 1.0f, best, best), 0.0f);
    EXPECT_EQ(fn(x, 1.0f, none, best), 0.0f);
    EXPECT_EQ(fn(x, 1.0f, best, all), 0.0f);
    EXPECT_FLOAT_EQ(fn(x, 1.0f, best, last), 0.25f);
    EXPECT_FLOAT_EQ(fn(x, 1.0f, last, best), 0.0625f);
    EXPECT_FLOAT_EQ(fn(x, 1.0f, best, none), 0.75f);
    EXPECT_FLOAT_EQ(fn(x, 1.0f, all, none), 1.0f);
    EXPECT_FLOAT_EQ(fn(x, 2.0f, best, last), 16.0f / 86.0f);
    EXPECT_EQ(fn(std::vector<float>{}, 1.0f, none, none), 0.0f);
    // All equal: the share of the units.
    EXPECT_FLOAT_EQ(fn(std::vector<float>(5, -7.0f), 3.0f, best, last), 0.2f);
  };
  check(missing_mass_ref);
  each_target([&] { check(missing_mass_cpu); });
}

// NaN and -inf have weight 0, +inf all of it; where all weights are 0, anything missing counts as 1.
TEST(MissingMass, WhatIsNoNumber) {
  const std::vector<std::int32_t> first = {0}, second = {1}, none;
  const auto check = [&](const auto& fn) {
    EXPECT_EQ(fn(std::vector{kNan, 1.0f, 1.0f}, 1.0f, first, second), 0.0f);
    EXPECT_FLOAT_EQ(fn(std::vector{kNan, 1.0f, 1.0f}, 1.0f, second, first), 0.5f);
    EXPECT_EQ(fn(std::vector{-kInf, 1.0f}, 1.0f, first, none), 0.0f);
    EXPECT_EQ(fn(std::vector{kInf, 1.0f}, 0.5f, first, none), 1.0f);
    EXPECT_EQ(fn(std::vector{kInf, 1.0f}, 0.5f, second, none), 0.0f);
    EXPECT_FLOAT_EQ(fn(std::vector{kInf, kInf}, 1.0f, first, second), 0.5f);
    for (const float nothing : {kNan, -kInf}) {
      EXPECT_EQ(fn(std::vector{nothing, nothing}, 1.0f, first, second), 1.0f);
      EXPECT_EQ(fn(std::vector{nothing, nothing}, 1.0f, first, first), 0.0f);
    }
  };
  check(missing_mass_ref);
  each_target([&] { check(missing_mass_cpu); });
}

TEST(MissingMass, IsTheReference) {
  std::mt19937 rng(9);
  const auto some = [&](std::int32_t n, std::uint32_t one_in) {
    std::vector<std::int32_t> units;
    for (std::int32_t u = 0; u < n; ++u)
      if (rng() % one_in == 0) units.push_back(u);
    return units;
  };
  for (const std::int32_t n : {1, 2, 15, 16, 17, 850, 4099})
    for (const float spread : {0.0f, 1.0f, 30.0f, 1000.0f, 1e6f})
      for (int round = 0; round < 5; ++round) {
        Scores s = random_scores(1, n, spread, rng);
        std::vector<float> x(s.values.begin(), s.values.begin() + n);
        if (round == 4) x[rng() % x.size()] = kNan;
        const auto wanted = some(n, 3), there = some(n, 2);
        const float want = missing_mass_ref(x, 0.125f, wanted, there);
        // The rounding of a score, for the best ones.
        const float error = 2e-6f * (1.0f + spread);
        each_target(
            [&] { ASSERT_NEAR(missing_mass_cpu(x, 0.125f, wanted, there), want, error) << n << " " << spread; });
      }
}

TEST(Pool, MaxAndMeanAreExactOnIntegers) {
  std::mt19937 rng(2);
  for (const std::int32_t group : {1, 3, 4, 5, 7, 16})
    for (const Pool pool : {Pool::kMaxQk, Pool::kMeanQk}) {
      Scores s(group, 101);
      for (float& x : s.values) x = static_cast<float>(static_cast<int>(rng() % 100) - 50);
      const auto expected = pooled(group_pool_ref, s, pool, 1.0f);
      each_target([&] { ASSERT_EQ(pooled(group_pool_cpu, s, pool, 1.0f), expected) << group; });
    }
}

// The mean of the heads' softmaxes, in f64, orders the units as the pooled scores do, except where it underflows or two
// values are within rounding.
TEST(Pool, OrdersAsTheMeanOfProbabilities) {
  std::mt19937 rng(3);
  for (const float spread : {2.0f, 40.0f}) {
    const std::int64_t n = 512;
    Scores s = random_scores(4, n, spread, rng);
    const double alpha = 0.5;
    std::vector<double> mean(n);
    for (std::int64_t h = 0; h < 4; ++h) {
      double total = 0.0;
      for (std::int64_t u = 0; u < n; ++u) total += std::exp(alpha * s.at(h, u));
      for (std::int64_t u = 0; u < n; ++u) mean[u] += std::exp(alpha * s.at(h, u)) / total / 4.0;
    }
    each_target([&] {
      const auto got = pooled(group_pool_cpu, s, Pool::kMeanS, static_cast<float>(alpha));
      std::vector<std::size_t> order(n);
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return got[a] > got[b]; });
      for (std::size_t i = 1; i < order.size(); ++i)
        ASSERT_GE(mean[order[i - 1]] * (1.0 + 2e-5), mean[order[i]]) << "spread " << spread << " place " << i;
    });
  }
}

// Bounds of pages differ by hundreds; an f32 softmax would give most of them 0, and ties would decide.
TEST(Pool, DoesNotUnderflow) {
  Scores s(4, 100);
  for (std::int64_t h = 0; h < 4; ++h)
    for (std::int64_t u = 0; u < 100; ++u) s.at(h, u) = -10.0f * static_cast<float>(u);
  each_target([&] {
    const auto got = pooled(group_pool_cpu, s, Pool::kMeanS, 1.0f);
    for (std::size_t u = 1; u < 100; ++u) ASSERT_LT(got[u], got[u - 1]);
  });
}

// Beyond any exponent, where rounding of the reduced argument would itself be infinite.
TEST(Pool, ScoresFarBelowTheBestCountForNothing) {
  for (const float far : {-1e5f, -1e9f, -1e20f, -3e38f}) {
    Scores s(4, 100);
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t u = 0; u < 100; ++u) s.at(h, u) = u % 3 == 0 ? far : 0.01f * static_cast<float>(u);
    each_target([&] {
      const auto got = pooled(group_pool_cpu, s, Pool::kMeanS, 1.0f);
      const auto expected = pooled(group_pool_ref, s, Pool::kMeanS, 1.0f);
      for (std::size_t u = 0; u < 100; ++u)
        ASSERT_LE(std::fabs(got[u] - expected[u]), 1e-5f * (1.0f + std::fabs(expected[u]))) << u << " far " << far;
    });
  }
}

TEST(Pool, EqualUnitsPoolEqualEverywhere) {
  std::mt19937 rng(4);
  for (const std::int32_t group : {1, 4, 5, 8})
    for (const std::int64_t n : {2, 15, 16, 17, 33, 75})
      for (const Pool pool : kPools) {
        Scores s = random_scores(group, n, 5.0f, rng);
        std::vector<std::int64_t> twins;
        for (std::int64_t u = 0; u < n; u += 1 + static_cast<std::int64_t>(rng() % 3)) twins.push_back(u);
        twins.push_back(n - 1);
        for (std::int64_t h = 0; h < group; ++h)
          for (const std::int64_t u : twins) s.at(h, u) = s.at(h, 0);
        each_target([&] {
          const auto got = pooled(group_pool_cpu, s, pool, 0.3f);
          for (const std::int64_t u : twins) ASSERT_EQ(got[u], got[0]) << "n " << n << " u " << u;
        });
      }
}

TEST(Pool, NanIsLeftOut) {
  std::mt19937 rng(5);
  for (const std::int32_t group : {1, 4, 5})
    for (const Pool pool : kPools) {
      Scores s = random_scores(group, 40, 2.0f, rng);
      Scores rest(group, 37);
      const std::vector<std::int64_t> broken{3, 17, 39};
      for (std::int64_t h = 0; h < group; ++h)
        for (std::int64_t u = 0, to = 0; u < 40; ++u)
          if (std::find(broken.begin(), broken.end(), u) == broken.end()) rest.at(h, to++) = s.at(h, u);
      s.at(0, 3) = s.at(group - 1, 17) = s.at(group / 2, 39) = kNan;
      each_target([&] {
        const auto got = pooled(group_pool_cpu, s, pool, 1.0f);
        const auto reference = pooled(group_pool_ref, s, pool, 1.0f);
        const auto without = pooled(group_pool_cpu, rest, pool, 1.0f);
        for (std::size_t u = 0, from = 0; u < 40; ++u) {
          const bool is_broken = u == 3 || u == 17 || u == 39;
          ASSERT_EQ(std::isnan(got[u]), is_broken) << u;
          ASSERT_EQ(std::isnan(reference[u]), is_broken) << u;
          if (is_broken) continue;
          ASSERT_LE(std::fabs(got[u] - without[from++]), 5e-6) << u;
        }
      });
    }
}

TEST(Pool, InfinitiesHaveTheirMeaning) {
  for (const Pool pool : {Pool::kMaxS, Pool::kMeanS}) {
    Scores s(2, 20);
    for (std::int64_t u = 0; u < 20; ++u) {
      s.at(0, u) = -kInf;  // a head without finite scores
      s.at(1, u) = static_cast<float>(u);
    }
    s.at(1, 4) = -kInf;
    each_target([&] {
      const auto got = pooled(group_pool_cpu, s, pool, 1.0f);
      const auto expected = pooled(group_pool_ref, s, pool, 1.0f);
      ASSERT_EQ(got[4], -kInf);
      ASSERT_LE(max_error(got, expected), 1e-5);
    });
    s.at(1, 7) = kInf;
    each_target([&] {
      const auto got = pooled(group_pool_cpu, s, pool, 2.0f);
      ASSERT_LE(std::fabs(got[7]), 1e-5);
      ASSERT_EQ(got[4], -kInf);
      ASSERT_LE(got[8], -1e38f);
    });
  }
  Scores nothing(3, 5);
  std::fill(nothing.values.begin(), nothing.values.end(), -kInf);
  each_target([&] { ASSERT_THAT(pooled(group_pool_cpu, nothing, Pool::kMeanS, 1.0f), testing::Each(-kInf)); });
  std::fill(nothing.values.begin(), nothing.values.end(), kNan);
  each_target([&] {
    for (const float x : pooled(group_pool_cpu, nothing, Pool::kMeanS, 1.0f)) ASSERT_TRUE(std::isnan(x));
  });
}

TEST(Pool, MayWriteOverItsFirstRow) {
  std::mt19937 rng(6);
  for (const Pool pool : kPools) {
    const Scores s = random_scores(5, 77, 3.0f, rng);
    each_target([&] {
      const auto expected = pooled(group_pool_cpu, s, pool, 0.5f);
      for (const auto& fn : {group_pool_cpu, group_pool_ref}) {
        Scores own = s;
        fn(own.values.data(), own.stride(), 5, 77, pool, 0.5f, own.values.data());
        own.values.resize(77);
        ASSERT_LE(max_error(own.values, expected), 5e-6);
      }
    });
  }
}

TEST(Pool, NoUnitsNothingHappens) {
  for (const auto& fn : {group_pool_cpu, group_pool_ref}) {
    for (const Pool pool : {Pool::kMaxQk, Pool::kMeanQk, Pool::kMaxS, Pool::kMeanS}) {
      fn(nullptr, 0, 4, 0, pool, 1.0f, nullptr);
      std::vector<float> scores(8, 7.0f), pooled(2, 7.0f);
      fn(scores.data(), 2, 4, 0, pool, 1.0f, pooled.data());
      EXPECT_EQ(scores, std::vector<float>(8, 7.0f));
      EXPECT_EQ(pooled, std::vector<float>(2, 7.0f));
    }
  }
}

// Sums over many units keep their precision: n equal scores have probability 1 / n.
TEST(Pool, ManyUnits) {
  const std::int64_t n = 1'000'003;
  const Scores s(1, n);
  each_target([&] {
    const auto got = pooled(group_pool_cpu, s, Pool::kMeanS, 1.0f);
    ASSERT_LE(std::fabs(got[5] + std::log(static_cast<double>(n))), 2e-6);
    ASSERT_EQ(got.front(), got.back());
  });
}

TEST(PoolQueries, MaxAndMean) {
  const std::vector<float> q{1, 5, -2, kNan, 3, -5, -8, 2, 5, 0, -2, 1};
  std::vector<float> out(4);
  pool_queries(q.data(), 3, 4, Pool::kMaxQ, out.data());
  EXPECT_THAT(out, testing::ElementsAre(5, 5, -2, testing::IsNan()));
  pool_queries(q.data(), 3, 4, Pool::kMeanQ, out.data());
  EXPECT_THAT(out, testing::ElementsAre(3, 0, -4, testing::IsNan()));
}

TEST(Cosine, IsTheCosine) {
  std::mt19937 rng(7);
  for (const std::size_t n : {1u, 8u, 15u, 24u, 64u, 128u, 1000u}) {
    const auto a = normal_vector(n, rng), b = normal_vector(n, rng);
    double ab = 0, aa = 0, bb = 0;
    for (std::size_t i = 0; i < n; ++i) {
      ab += a[i] * double{b[i]};
      aa += a[i] * double{a[i]};
      bb += b[i] * double{b[i]};
    }
    each_target([&] {
      const std::int64_t length = n;
      ASSERT_LE(std::fabs(static_cast<double>(cosine(a.data(), b.data(), length)) - ab / std::sqrt(aa * bb)), 1e-6)
          << n;
      ASSERT_LE(std::fabs(cosine(a.data(), a.data(), length) - 1.0f), 1e-6f);
    });
  }
}

TEST(Cosine, ZeroAndNan) {
  const std::vector<float> zero(20), nan(20, kNan);
  std::vector<float> some(20, 2.0f);
  each_target([&] {
    ASSERT_EQ(cosine(zero.data(), some.data(), 20), 0.0f);
    ASSERT_EQ(cosine(zero.data(), zero.data(), 20), 0.0f);
    ASSERT_EQ(cosine(zero.data(), zero.data(), 0), 0.0f);
    ASSERT_TRUE(std::isnan(cosine(nan.data(), some.data(), 20)));
  });
}

}  // namespace
}  // namespace mneme
