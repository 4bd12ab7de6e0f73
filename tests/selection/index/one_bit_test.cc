#include "src/selection/index/one_bit.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/ops/simd/each_target.h"
#include "tests/selection/index/key_testing.h"

namespace mneme {
namespace {

constexpr DType kTypes[] = {DType::kBF16, DType::kF16};
constexpr OneBitLevels kLevels[] = {OneBitLevels::kMinMax, OneBitLevels::kMeanAbs};
constexpr std::int32_t kGroupTokens[] = {32, 64, 128, 256};
constexpr double kBf16Ulp = 1.0 / 128;  // relative spacing of bf16

AttentionShape shape_of(std::int32_t group, std::int32_t dim, DType dtype) {
  return {.group = group, .head_dim = dim, .kv_dtype = dtype, .scale = 1.0f};
}

using Bytes = std::vector<std::byte>;

template <class Build>
Bytes build(const Build& fn, std::span<const KvRun> runs, const AttentionShape& shape, std::int32_t g,
            OneBitLevels levels) {
  Bytes out(one_bit_group_bytes(shape.head_dim, g) + 1, std::byte{0xab});
  fn(runs, shape, g, levels, out.data());
  EXPECT_EQ(out.back(), std::byte{0xab});
  out.pop_back();
  return out;
}

float level(const Bytes& group, std::int64_t i) {
  bf16 x;
  std::memcpy(&x, group.data() + 2 * i, sizeof(x));
  return static_cast<float>(x);
}

std::vector<float> dequantise(const Bytes& group, std::int32_t dim, std::int32_t g, std::int32_t t) {
  std::vector<float> k(dim);
  one_bit_dequantise(group.data(), dim, g, t, k.data());
  return k;
}

std::vector<KvRun> uneven(const Keys& keys, std::int32_t n) {
  return {keys.run(0, 1), keys.run(1, 0), keys.run(1, 17), keys.run(18, n - 18)};
}

TEST(OneBit, LayoutByHand) {
  const auto shape = shape_of(1, 8, DType::kBF16);
  Keys keys(64, shape);
  int i = 0;
  keys.fill([&] { return i++ / 8 == 40 ? 3.0f : -1.0f; });  // token 40 is 3, the others -1
  const KvRun run = keys.run(0, 64);
  for (const auto& [levels, z, s] :
       {std::tuple{OneBitLevels::kMinMax, 1.0f, 2.0f}, std::tuple{OneBitLevels::kMeanAbs, -0.9375f, 0.123046875f}}) {
    const Bytes group = build(one_bit_build_ref, {&run, 1}, shape, 64, levels);
    ASSERT_EQ(group.size(), 8u * (4 + 8));
    for (std::int64_t c = 0; c < 8; ++c) {
      EXPECT_EQ(level(group, c), z);
      EXPECT_EQ(level(group, 8 + c), s);  // meanabs: (3.9375 + 63 * 0.0625) / 64, rounded to 8 bits
    }
    for (std::int64_t byte = 0; byte < 64; ++byte)  // two rows of 64 nibbles; 40 is the lower half of byte 20
      EXPECT_EQ(group[32 + byte], byte % 32 == 20 ? std::byte{0xf} : std::byte{0}) << byte;
    EXPECT_THAT(dequantise(group, 8, 64, 40), testing::Each(z + s));
    EXPECT_THAT(dequantise(group, 8, 64, 41), testing::Each(z - s));
  }
}

TEST(OneBit, StepsAreFixedPointOfTheLargest) {
  const float steps[] = {1.9921875f, 0.01f, 0.005859375f, 0.0f, NAN, 1.0078125f, 0.00390625f, 0.01171875f};
  const float whole[] = {255.0f, 1.0f, 1.0f, 0.0f, NAN, 129.0f, 0.0f, 2.0f};  // multiples of 2^-7; ties to even
  std::byte bytes[16];
  for (std::size_t c = 0; c < 8; ++c) {
    const bf16 s(steps[c]);
    std::memcpy(bytes + 2 * c, &s, 2);
  }
  one_bit_round_steps(bytes, 8);
  for (std::size_t c = 0; c < 8; ++c) {
    bf16 s;
    std::memcpy(&s, bytes + 2 * c, 2);
    EXPECT_THAT(static_cast<float>(s) * 128.0f, testing::NanSensitiveFloatEq(whole[c])) << c;
  }
}

// minmax: a dequantised value is its group's maximum or minimum, up to the rounding of z and s.
TEST(OneBit, MinMaxGivesTheEnds) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (const DType dtype : kTypes)
    for (const std::int32_t g : kGroupTokens) {
      const auto shape = shape_of(1, 16, dtype);
      Keys keys(g, shape);
      keys.fill([&] { return normal(rng); });
      const KvRun run = keys.run(0, g);
      const Bytes group = build(one_bit_build_cpu, {&run, 1}, shape, g, OneBitLevels::kMinMax);
      float most_step = 0.0f;
      for (std::int64_t c = 0; c < 16; ++c) most_step = std::max(most_step, level(group, 16 + c));
      for (std::int64_t c = 0; c < 16; ++c) {
        std::vector<float> k;
        for (std::int32_t t = 0; t < g; ++t) k.push_back(keys.get(t, c));
        const auto [least, most] = std::minmax_element(k.begin(), k.end());
        const double slack = kBf16Ulp / 2.0 * (std::fabs(level(group, c)) + level(group, 16 + c) + most_step);
        for (std::int32_t t = 0; t < g; ++t) {
          const float x = dequantise(group, 16, g, t)[c];
          const float end = k[t] >= level(group, c) ? *most : *least;
          ASSERT_LE(std::fabs(x - end), slack) << "c " << c << " t " << t;
        }
      }
    }
}

TEST(OneBit, EqualKeysAreTheirOwnCode) {
  const auto shape = shape_of(1, 24, DType::kBF16);
  Keys keys(32, shape);
  keys.fill([] { return -1.7f; });
  const auto runs = uneven(keys, 32);
  for (const OneBitLevels levels : kLevels)
    each_target([&] {
      const Bytes group = build(one_bit_build_cpu, runs, shape, 32, levels);
      ASSERT_THAT(dequantise(group, 24, 32, 31), testing::Each(keys.get(0, 0)));
    });
}

// Bit for bit: minmax always, meanabs where the sums are exact.
TEST(OneBitBuild, IsTheReferenceBitForBit) {
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  for (const DType dtype : kTypes)
    for (const std::int32_t dim : {8, 24, 64, 80, 128, 256})
      for (const std::int32_t g : kGroupTokens)
        for (const OneBitLevels levels : kLevels) {
          const auto shape = shape_of(1, dim, dtype);
          Keys keys(g, shape);
          const bool means = levels == OneBitLevels::kMeanAbs;
          keys.fill([&] { return means ? static_cast<float>(static_cast<int>(rng() % 17) - 8) : normal(rng); });
          keys.set(3, 2, NAN);
          keys.set(5, 4, -INFINITY);
          keys.set(7, 5, INFINITY);
          const auto runs = uneven(keys, g);
          const Bytes expected = build(one_bit_build_ref, runs, shape, g, levels);
          each_target([&] {
            ASSERT_EQ(build(one_bit_build_cpu, runs, shape, g, levels), expected)
                << "D " << dim << " g " << g << " levels " << static_cast<int>(levels);
          });
        }
}

TEST(OneBitBuild, MeansAreWithinAUlpAndBitsFollowThem) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0.3f, 2.0f);
  for (const std::int32_t g : kGroupTokens) {
    const auto shape = shape_of(1, 64, DType::kF16);
    Keys keys(g, shape);
    keys.fill([&] { return normal(rng); });
    const KvRun run = keys.run(0, g);
    const Bytes expected = build(one_bit_build_ref, {&run, 1}, shape, g, OneBitLevels::kMeanAbs);
    each_target([&] {
      const Bytes group = build(one_bit_build_cpu, {&run, 1}, shape, g, OneBitLevels::kMeanAbs);
      float most_step = 0.0f;
      for (std::int64_t i = 64; i < 128; ++i) most_step = std::max(most_step, level(expected, i));
      for (std::int64_t i = 0; i < 128; ++i) {
        const float size = i < 64 ? std::fabs(level(expected, i)) : most_step;
        ASSERT_LE(std::fabs(level(group, i) - level(expected, i)), kBf16Ulp * size) << i;
      }
      for (std::int64_t c = 0; c < 64; ++c)
        for (std::int32_t t = 0; t < g; ++t) {
          const float z = level(group, c), s = level(group, 64 + c);
          ASSERT_EQ(dequantise(group, 64, g, t)[c], keys.get(t, c) >= z ? z + s : z - s);
        }
    });
  }
}

// Mean levels must have a smaller error than minmax, or they would be pointless.
TEST(OneBitBuild, MeansHaveTheSmallerError) {
  std::mt19937 rng(4);
  std::normal_distribution<float> normal;
  const auto shape = shape_of(1, 64, DType::kBF16);
  Keys keys(128, shape);
  keys.fill([&] { return normal(rng); });
  const KvRun run = keys.run(0, 128);
  double error[2] = {};
  for (const OneBitLevels levels : kLevels) {
    const Bytes group = build(one_bit_build_cpu, {&run, 1}, shape, 128, levels);
    for (std::int32_t t = 0; t < 128; ++t)
      for (std::int64_t c = 0; c < 64; ++c) {
        const double e = dequantise(group, 64, 128, t)[c] - keys.get(t, c);
        error[static_cast<int>(levels)] += e * e;
      }
  }
  EXPECT_LE(error[1], 0.2 * error[0]);
}

// Contiguous groups, their queries, and scores with a padded stride.
struct Index {
  AttentionShape shape;
  std::int32_t g;
  std::int64_t n;
  Bytes groups;
  std::vector<float> q;

  Index(const AttentionShape& s, std::int32_t tokens, std::int64_t n_groups, bool integers, OneBitLevels levels,
        std::mt19937& rng)
      : shape(s), g(tokens), n(n_groups) {
    std::normal_distribution<float> normal;
    Keys keys(g, s);
    for (std::int64_t i = 0; i < n; ++i) {
      keys.fill([&] { return integers ? static_cast<float>(static_cast<int>(rng() % 17) - 8) : normal(rng); });
      const KvRun run = keys.run(0, g);
      const Bytes group = build(one_bit_build_ref, {&run, 1}, s, g, levels);
      groups.insert(groups.end(), group.begin(), group.end());
    }
    const std::size_t n_q = s.group * s.head_dim;
    q = integers ? integer_vector(n_q, rng) : normal_vector(n_q, rng);
  }

  template <class Score>
  std::vector<float> scores(const Score& fn) const {
    const std::int64_t stride = n * g + 5;
    std::vector<float> s(shape.group * stride, 12345.0f);
    fn(q.data(), shape, groups.data(), n, g, s.data(), stride);
    return s;
  }
};

TEST(OneBitScore, IsExactOnIntegers) {
  std::mt19937 rng(5);
  for (const std::int32_t dim : {8, 24, 64, 128, 256})
    for (const std::int32_t group : {1, 2, 3, 4, 5, 7, 8, 16})
      for (const std::int32_t g : kGroupTokens) {
        const Index index(shape_of(group, dim, DType::kBF16), g, g == 32 ? 3 : 1, true, OneBitLevels::kMinMax, rng);
        const auto expected = index.scores(one_bit_score_ref);
        each_target([&] {
          ASSERT_EQ(index.scores(one_bit_score_cpu), expected) << "D " << dim << " G " << group << " g " << g;
        });
      }
}

TEST(OneBitScore, IsTheDotProductWithTheDequantisedKey) {
  std::mt19937 rng(6);
  for (const OneBitLevels levels : kLevels)
    for (const std::int32_t dim : {64, 80, 128})
      for (const std::int32_t g : kGroupTokens) {
        const Index index(shape_of(5, dim, DType::kF16), g, 2, false, levels, rng);
        const std::int64_t stride = 2 * g + 5;
        each_target([&] {
          const auto s = index.scores(one_bit_score_cpu);
          for (std::int32_t t = 0; t < 2 * g; ++t) {
            std::vector<float> k(dim);
            one_bit_dequantise(index.groups.data() + (t / g) * one_bit_group_bytes(dim, g), dim, g, t % g, k.data());
            for (std::int64_t h = 0; h < 5; ++h) {
              double dot = 0.0, size = 0.0;
              for (std::int64_t c = 0; c < dim; ++c) {
                const double x = index.q[h * dim + c] * double{k[c]};
                dot += x;
                size += std::fabs(x);
              }
              // The specification requires 1e-3. Queries in 15 bits and a sign: the standard deviation is 1e-5.
              ASSERT_LE(std::fabs(static_cast<double>(s[h * stride + t]) - dot), 6e-5 * size)
                  << "D " << dim << " g " << g << " t " << t;
            }
          }
        });
      }
}

// Queries whose values differ a lot, and queries that barely fit 15 bits.
TEST(OneBitScore, IsWithinItsBound) {
  std::mt19937 rng(10);
  for (const std::int32_t dim : {8, 64, 72, 256})
    for (const float outlier : {1e-30f, 0.9961f, 0.9999f, 1.0f, 300.0f, 1e30f}) {
      Index index(shape_of(7, dim, DType::kBF16), 32, 3, false, OneBitLevels::kMinMax, rng);
      for (std::int64_t h = 0; h < 7; ++h) index.q[h * dim + h] = outlier;
      const std::size_t bytes = one_bit_group_bytes(dim, 32);
      const auto expected = index.scores(one_bit_score_ref);
      each_target([&] {
        const auto s = index.scores(one_bit_score_cpu);
        for (std::int64_t i = 0; i < 7 * 101; ++i) {
          if (i % 101 >= 96) continue;
          double q = 0.0, step = 0.0, size = 0.0;
          for (std::int64_t c = 0; c < dim; ++c) {
            const double x = std::fabs(double{index.q[i / 101 * dim + c]});
            std::uint16_t bits[2];
            std::memcpy(bits, index.groups.data() + (i % 101 / 32) * bytes + 2 * c, 2);
            std::memcpy(bits + 1, index.groups.data() + (i % 101 / 32) * bytes + 2 * (dim + c), 2);
            const double s_c = static_cast<float>(std::bit_cast<bf16>(bits[1]));
            size += x * (std::fabs(static_cast<float>(std::bit_cast<bf16>(bits[0]))) + s_c);
            q = std::max(q, x);
            step = std::max(step, s_c);
          }
          const std::size_t at = i;
          ASSERT_LE(std::fabs(static_cast<double>(s[at]) - static_cast<double>(expected[at])),
                    dim * 0x1.0p-13 * q * step + 2e-6 * size)
              << "D " << dim << " outlier " << outlier;
        }
      });
    }
}

TEST(OneBitScore, EqualTokensScoreEqualEverywhere) {
  std::mt19937 rng(7);
  for (const std::int32_t g : kGroupTokens)
    for (const std::int32_t group : {1, 4, 5, 6}) {
      Index index(shape_of(group, 72, DType::kBF16), g, 2, false, OneBitLevels::kMinMax, rng);
      const std::size_t bytes = one_bit_group_bytes(72, g);
      const std::size_t row = static_cast<std::size_t>(g) / 2;
      for (std::size_t c = 0; c < 72 / 4; ++c)  // all tokens have the same bits
        std::fill_n(index.groups.begin() + static_cast<std::ptrdiff_t>(4 * 72 + c * row), row,
                    std::byte(rng() % 16 * 17));
      std::copy_n(index.groups.begin(), bytes, index.groups.begin() + static_cast<std::ptrdiff_t>(bytes));
      each_target([&] {
        const auto s = index.scores(one_bit_score_cpu);
        for (std::int64_t h = 0; h < group; ++h)
          for (std::int64_t t = 1; t < 2 * g; ++t) ASSERT_EQ(s[h * (2 * g + 5) + t], s[h * (2 * g + 5)]) << t;
      });
    }
}

TEST(OneBitScore, NanStaysInItsGroup) {
  std::mt19937 rng(8);
  Index index(shape_of(4, 64, DType::kBF16), 32, 3, false, OneBitLevels::kMinMax, rng);
  const std::uint16_t nan = 0x7fc0;
  std::memcpy(index.groups.data() + one_bit_group_bytes(64, 32) + 2 * 9, &nan, 2);
  each_target([&] {
    const auto s = index.scores(one_bit_score_cpu);
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t t = 0; t < 96; ++t) ASSERT_EQ(std::isnan(s[h * 101 + t]), t / 32 == 1) << t;
  });
}

TEST(OneBitScore, TakesNoGroups) {
  std::mt19937 rng(9);
  const Index index(shape_of(4, 64, DType::kBF16), 32, 0, false, OneBitLevels::kMinMax, rng);
  each_target([&] { ASSERT_THAT(index.scores(one_bit_score_cpu), testing::Each(12345.0f)); });
}

}  // namespace
}  // namespace mneme
