#include "src/selection/index/box.h"

#include <gmock/gmock.h>

#include "tests/ops/simd/each_target.h"
#include "tests/selection/index/key_testing.h"

namespace mneme {
namespace {

constexpr DType kTypes[] = {DType::kBF16, DType::kF16};
constexpr std::int32_t kDims[] = {8, 16, 24, 64, 80, 96, 128, 256};

AttentionShape shape_of(std::int32_t group, std::int32_t dim, DType dtype) {
  return {.group = group, .head_dim = dim, .kv_dtype = dtype, .scale = 1.0f};
}

using Box = std::vector<std::uint16_t>;

template <class Build>
Box build(const Build& fn, std::span<const KvRun> runs, const AttentionShape& shape, BoxKind kind) {
  Box box(2 * static_cast<std::size_t>(shape.head_dim) + 1, 0xabcd);
  fn(runs, shape, kind, reinterpret_cast<std::byte*>(box.data()));
  EXPECT_EQ(box.back(), 0xabcd);
  return box;
}

// Splits n tokens from `first` on into runs of 1 to 5.
std::vector<KvRun> split(const Keys& keys, std::int64_t first, std::int32_t n, std::mt19937& rng) {
  std::vector<KvRun> runs;
  while (n > 0) {
    const std::int32_t take = std::min<std::int32_t>(n, 1 + static_cast<std::int32_t>(rng() % 5));
    runs.push_back(keys.run(first, take));
    first += take;
    n -= take;
  }
  return runs;
}

TEST(BoxBuildRef, ByHand) {
  const auto shape = shape_of(1, 8, DType::kBF16);
  Keys keys(4, shape);
  keys.fill([] { return 2.0f; });
  for (const auto& [t, x] : {std::pair{0, -3.0f}, {1, 5.0f}, {2, 1.0f}, {3, 1.0f}}) keys.set(t, 1, x);
  keys.set(1, 2, NAN);
  const KvRun run = keys.run(0, 4);
  const Box edges = build(box_build_ref, {&run, 1}, shape, BoxKind::kMinMax);
  EXPECT_EQ(edges[0], bf16(2.0f).bits);
  EXPECT_EQ(edges[1], bf16(5.0f).bits);
  EXPECT_EQ(edges[8 + 1], bf16(-3.0f).bits);
  EXPECT_EQ(edges[2], 0x7fc0);
  EXPECT_EQ(edges[8 + 2], 0x7fc0);
  const Box mean = build(box_build_ref, {&run, 1}, shape, BoxKind::kCuboidMean);
  EXPECT_EQ(mean[1], bf16(3.0f).bits);  // centre 1, distances 4, 4, 0, 0
  EXPECT_EQ(mean[8 + 1], bf16(-1.0f).bits);
  EXPECT_EQ(mean[2], 0x7fc0);
}

TEST(BoxBuild, IsTheReferenceBitForBit) {
  std::mt19937 rng(1);
  for (const DType dtype : kTypes)
    for (const std::int32_t dim : kDims)
      for (const std::int32_t n : {1, 2, 16, 31, 33}) {
        const auto shape = shape_of(1, dim, dtype);
        Keys keys(n, shape);
        const int kind_of_keys = static_cast<int>(rng() % 3);
        for (std::int32_t t = 0; t < n; ++t)
          for (std::int32_t c = 0; c < dim; ++c) {
            const auto any = static_cast<std::uint16_t>(rng());  // includes NaN and infinity
            if (kind_of_keys == 0)
              keys.set_bits(t, c, any);
            else if (kind_of_keys == 1)
              keys.set_bits(t, c, any & 0x8000);  // zeros of both signs
            else
              keys.set(t, c, (static_cast<std::int16_t>(any)) / 4096.0f);
          }
        const auto runs = split(keys, 0, n, rng);
        for (const BoxKind kind : {BoxKind::kMinMax, BoxKind::kCuboidMean}) {
          const Box expected = build(box_build_ref, runs, shape, kind);
          each_target([&] {
            ASSERT_EQ(build(box_build_cpu, runs, shape, kind), expected)
                << "D " << dim << " n " << n << " keys " << kind_of_keys << " box " << static_cast<int>(kind);
          });
        }
      }
}

// Boxes of random keys, and their tokens.
struct Case {
  AttentionShape shape;
  Keys keys;
  std::vector<float> q;
  std::int64_t n;
  std::int32_t unit;
  std::vector<std::byte> boxes;

  Case(const AttentionShape& s, std::int64_t units, std::int32_t unit_tokens, bool integers, std::mt19937& rng)
      : shape(s), keys(static_cast<std::int32_t>(units) * unit_tokens, s), n(units), unit(unit_tokens) {
    const std::size_t n_q = s.group * s.head_dim;
    q = integers ? integer_vector(n_q, rng) : normal_vector(n_q, rng);
    std::normal_distribution<float> normal;
    keys.fill([&] { return integers ? static_cast<float>(static_cast<int>(rng() % 17) - 8) : normal(rng); });
    boxes.resize(n * s.token_bytes());
    for (std::int64_t u = 0; u < n; ++u) {
      const KvRun run = keys.run(u * unit, unit);
      box_build_ref({&run, 1}, s, BoxKind::kMinMax, boxes.data() + u * s.token_bytes());
    }
  }
};

constexpr float kUnwritten = 12345.0f;

template <class Score>
std::vector<float> box_scores(const Score& fn, const Case& c) {
  const std::int64_t stride = c.n + 3;
  std::vector<float> s(c.shape.group * stride, kUnwritten);
  fn(c.q.data(), c.shape, c.boxes.data(), c.n, s.data(), stride);
  return s;
}

template <class Score>
std::vector<float> key_scores(const Score& fn, const Case& c, std::span<const KvRun> runs) {
  const std::int64_t stride = c.n * c.unit + 1;
  std::vector<float> s(c.shape.group * stride, kUnwritten);
  fn(c.q.data(), c.shape, runs, s.data(), stride);
  return s;
}

// The same sums in a plain f32 loop: their rounding error.
void plain_box_score(const float* q, const AttentionShape& shape, const std::byte* boxes, std::int64_t n, float* scores,
                     std::int64_t stride) {
  const std::int64_t dim = shape.head_dim;
  const auto value = [&](std::int64_t i) {
    std::uint16_t bits;
    std::memcpy(&bits, boxes + 2 * i, 2);
    return shape.kv_dtype == DType::kBF16 ? static_cast<float>(std::bit_cast<bf16>(bits))
                                          : static_cast<float>(std::bit_cast<f16>(bits));
  };
  for (std::int32_t g = 0; g < shape.group; ++g)
    for (std::int64_t u = 0; u < n; ++u) {
      float sum = 0.0f;
      for (std::int64_t c = 0; c < dim; ++c)
        sum += std::max(q[g * dim + c] * value(2 * dim * u + c), q[g * dim + c] * value(2 * dim * u + dim + c));
      scores[g * stride + u] = sum;
    }
}

TEST(BoxScore, IsExactOnIntegers) {
  std::mt19937 rng(2);
  for (const DType dtype : kTypes)
    for (const std::int32_t dim : kDims)
      for (const std::int32_t group : {1, 2, 3, 4, 5, 7, 8, 16})
        for (const std::int64_t n : {0, 1, 3, 4, 9}) {
          const Case c(shape_of(group, dim, dtype), n, 3, true, rng);
          const auto expected = box_scores(box_score_ref, c);
          each_target([&] {
            ASSERT_EQ(box_scores(box_score_cpu, c), expected) << "D " << dim << " G " << group << " n " << n;
          });
        }
}

TEST(BoxScore, IsAsNearAsPlainCode) {
  std::mt19937 rng(3);
  for (const DType dtype : kTypes)
    for (const std::int32_t dim : {64, 80, 128}) {
      const Case c(shape_of(4, dim, dtype), 203, 5, false, rng);
      const auto expected = box_scores(box_score_ref, c);
      const double tolerance = 2.0 * max_error(box_scores(plain_box_score, c), expected);
      each_target([&] { ASSERT_LE(max_error(box_scores(box_score_cpu, c), expected), tolerance) << "D " << dim; });
    }
}

TEST(BoxScore, EqualBoxesScoreEqualEverywhere) {
  std::mt19937 rng(4);
  for (const std::int32_t dim : {24, 64, 128})
    for (const std::int32_t group : {1, 4, 5, 7})
      for (const std::int64_t n : {1, 2, 3, 5, 8, 11}) {
        Case c(shape_of(group, dim, DType::kBF16), n, 2, false, rng);
        const std::size_t bytes = c.shape.token_bytes();
        for (std::int64_t u = 1; u < n; ++u) std::memcpy(c.boxes.data() + u * bytes, c.boxes.data(), bytes);
        each_target([&] {
          const auto s = box_scores(box_score_cpu, c);
          for (std::int32_t g = 0; g < group; ++g)
            for (std::int64_t u = 1; u < n; ++u) ASSERT_EQ(s[g * (n + 3) + u], s[g * (n + 3)]) << u;
        });
      }
}

TEST(BoxScore, NanStaysInItsUnit) {
  std::mt19937 rng(5);
  Case c(shape_of(4, 64, DType::kBF16), 9, 2, false, rng);
  const std::uint16_t nan = 0x7fc0;
  std::memcpy(c.boxes.data() + 5 * c.shape.token_bytes() + 2 * 17, &nan, 2);
  each_target([&] {
    const auto s = box_scores(box_score_cpu, c);
    for (std::int64_t g = 0; g < 4; ++g)
      for (std::int64_t u = 0; u < 9; ++u) ASSERT_EQ(std::isnan(s[g * 12 + u]), u == 5) << g << " " << u;
  });
  c.q[64 + 3] = NAN;
  each_target([&] {
    const auto s = box_scores(box_score_cpu, c);
    for (std::int64_t g = 0; g < 4; ++g) ASSERT_EQ(std::isnan(s[g * 12]), g == 1);
  });
}

// The bound holds: no token of a unit scores above its box. Exact on integers; on reals up to the reference's rounding.
TEST(BoxScore, BoundsItsTokens) {
  std::mt19937 rng(6);
  for (const DType dtype : kTypes)
    for (const bool integers : {true, false})
      for (const std::int32_t unit : {1, 2, 32}) {
        const Case c(shape_of(5, 64, dtype), 13, unit, integers, rng);
        const KvRun all = c.keys.run(0, static_cast<std::int32_t>(c.n) * unit);
        each_target([&] {
          const auto bounds = box_scores(box_score_cpu, c);
          const auto exact = key_scores(key_score_cpu, c, {&all, 1});
          const float slack = integers ? 0.0f : 4e-5f;
          for (std::int64_t g = 0; g < 5; ++g)
            for (std::int64_t t = 0; t < c.n * unit; ++t) {
              const float bound = bounds[g * (c.n + 3) + t / unit];
              const float score = exact[g * (c.n * unit + 1) + t];
              ASSERT_GE(bound + slack, score) << g << " " << t;
              // A box of one token is the token.
              ASSERT_LE(unit == 1 ? std::fabs(bound - score) : 0.0f, slack) << g << " " << t;
            }
        });
      }
}

TEST(KeyScore, IsExactOnIntegersOverAnyRuns) {
  std::mt19937 rng(7);
  for (const DType dtype : kTypes)
    for (const std::int32_t dim : kDims)
      for (const std::int32_t group : {1, 4, 5, 16})
        for (const std::int32_t n : {0, 1, 2, 7, 33}) {
          const Case c(shape_of(group, dim, dtype), n, 1, true, rng);
          const auto runs = split(c.keys, 0, n, rng);
          const auto expected = key_scores(key_score_ref, c, runs);
          each_target([&] {
            ASSERT_EQ(key_scores(key_score_cpu, c, runs), expected) << "D " << dim << " G " << group << " n " << n;
          });
        }
}

TEST(KeyScore, DoesNotDependOnTheRuns) {
  std::mt19937 rng(8);
  for (const std::int32_t dim : {8, 80, 128}) {
    const Case c(shape_of(5, dim, DType::kF16), 101, 1, false, rng);
    const KvRun all = c.keys.run(0, 101);
    std::vector<KvRun> singles;
    for (std::int64_t t = 0; t < 101; ++t) {
      singles.push_back(c.keys.run(t, 1));
      if (t % 7 == 0) singles.push_back(c.keys.run(t, 0));
    }
    const auto expected = key_scores(key_score_ref, c, {&all, 1});
    each_target([&] {
      const auto whole = key_scores(key_score_cpu, c, {&all, 1});
      ASSERT_TRUE(same_bits(key_scores(key_score_cpu, c, singles), whole)) << "D " << dim;
      ASSERT_LE(max_error(whole, expected), 4e-6 * std::sqrt(static_cast<double>(dim)));
    });
  }
}

// Every 16-bit pattern, with a query that keeps each unchanged.
TEST(KeyScore, ReadsEveryHalf) {
  for (const DType dtype : kTypes) {
    const auto shape = shape_of(1, 8, dtype);
    Keys keys(65536, shape);
    for (std::int32_t t = 0; t < 65536; ++t)
      for (std::int32_t c = 0; c < 8; ++c) keys.set_bits(t, c, c == 3 ? static_cast<std::uint16_t>(t) : 0);
    const std::vector<float> q{0, 0, 0, 1, 0, 0, 0, 0};
    const KvRun all = keys.run(0, 65536);
    each_target([&] {
      std::vector<float> s(65536);
      key_score_cpu(q.data(), shape, {&all, 1}, s.data(), 65536);
      for (std::int32_t t = 0; t < 65536; ++t) {
        const float x = keys.get(t, 3);
        ASSERT_TRUE(s[t] == x || (std::isnan(x) && std::isnan(s[t]))) << t;
      }
    });
  }
}

}  // namespace
}  // namespace mneme
