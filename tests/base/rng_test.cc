#include "src/base/rng.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace mneme {
namespace {

TEST(Rng, TheSameSeedGivesTheSameNumbers) {
  Rng a(7), b(7), c(8);
  int differ = 0;
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t x = a.next();
    EXPECT_EQ(x, b.next());
    differ += x != c.next();
  }
  EXPECT_GE(differ, 99);
}

// Users rely on the stream of a seed: it must not change between versions.
TEST(Rng, TheStreamIsFixed) {
  const std::array<std::uint64_t, 3> seed0 = {Rng(0, 0).next(), Rng(0, 1).next(), Rng(0, 2).next()};
  const auto mix = [](std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  };
  const std::uint64_t golden = 0x9e3779b97f4a7c15ull;
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(seed0[i], mix(mix(golden) + golden * (i + 1)));
  // SplitMix64 with seed 0 starts with this published value: the finaliser of one golden-ratio step.
  EXPECT_EQ(mix(golden), 0xe220a8397b1dcdafull);
}

TEST(Rng, ItemsOfASeedHaveStreamsOfTheirOwn) {
  EXPECT_EQ(Rng::of_item(5, 0).next(), Rng(5).next());
  EXPECT_EQ(Rng::of_item(5, 3).next(), Rng(5, std::uint64_t{3} << 32).next());
  EXPECT_NE(Rng::of_item(5, 1).next(), Rng::of_item(5, 2).next());
}

TEST(Rng, GoesOnFromACounter) {
  Rng a(123);
  for (int i = 0; i < 17; ++i) a.next();
  Rng b(a.seed(), a.counter());
  EXPECT_EQ(a.counter(), 17u);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(a.next(), b.next());
}

TEST(Rng, UniformStaysInRangeAndIsEven) {
  Rng rng(1);
  const int n = 200'000;
  double sum = 0, square = 0;
  std::array<int, 10> bins{};
  for (int i = 0; i < n; ++i) {
    const double u = rng.uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    square += u * u;
    ++bins[static_cast<std::size_t>(u * 10)];
  }
  EXPECT_LE(std::abs(sum / n - 0.5), 0.003);  // 4 sigma of the mean: 0.0026
  EXPECT_LE(std::abs(square / n - 1.0 / 3.0), 0.003);
  for (int b : bins) EXPECT_LE(std::abs(b - n / 10), 600);  // 4.5 sigma
}

TEST(Rng, BelowReachesEveryValueAndNothingElse) {
  for (std::uint64_t n : {1ull, 2ull, 3ull, 10ull, 127ull}) {
    Rng rng(n);
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < 40 * n; ++i) {
      const std::uint64_t x = rng.below(n);
      ASSERT_LT(x, n);
      seen.insert(x);
    }
    EXPECT_EQ(seen.size(), n);
  }
  Rng rng(5);
  const std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();
  for (int i = 0; i < 100; ++i) EXPECT_LT(rng.below(huge), huge);
}

TEST(Rng, NormalHasMeanZeroAndVarianceOne) {
  Rng rng(2);
  const int n = 200'000;
  double sum = 0, square = 0, beyond2 = 0;
  for (int i = 0; i < n; ++i) {
    const double x = rng.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    square += x * x;
    beyond2 += std::abs(x) > 2.0;
  }
  EXPECT_LE(std::abs(sum / n), 0.01);
  EXPECT_LE(std::abs(square / n - 1.0), 0.015);
  EXPECT_LE(std::abs(beyond2 / n - 0.0455), 0.002);
}

TEST(Rng, NeighbouringSeedsAreUnrelated) {
  int bits = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed)
    bits += __builtin_popcountll(Rng(seed).next() ^ Rng(seed + 1).next());
  EXPECT_LE(std::abs(bits - 32'000), 700);  // 1,000 x 64 bits, sigma 126
}

}  // namespace
}  // namespace mneme
