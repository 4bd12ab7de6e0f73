#include "src/selection/mass/keep_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "src/base/size32.h"

namespace mneme {
namespace {

using Ranges = std::vector<TokenRange>;

Ranges keep(std::vector<float> scores, std::int32_t sink, std::int32_t recent, std::int32_t n_keep) {
  KeepScratch scratch;
  Ranges kept{{7, 9}};  // previous content does not matter
  keep_largest(scores, sink, recent, n_keep, scratch, kept);
  return kept;
}

TEST(KeepLargest, ByHand) {
  const std::vector<float> s = {0.1f, 0.9f, 0.2f, 0.8f, 0.7f, 0.3f, 0.0f};
  EXPECT_EQ(keep(s, 0, 0, 3), (Ranges{{1, 2}, {3, 5}}));
  EXPECT_EQ(keep(s, 1, 2, 5), (Ranges{{0, 2}, {3, 4}, {5, 7}}));
  EXPECT_EQ(keep(s, 1, 2, 3), (Ranges{{0, 1}, {5, 7}})) << "sinks and recent alone";
  EXPECT_EQ(keep(s, 1, 2, 2), (Ranges{{0, 1}, {5, 7}})) << "they stay even where they are more";
  EXPECT_EQ(keep(s, 5, 5, 6), (Ranges{{0, 7}}));
  EXPECT_EQ(keep(s, 0, 0, 7), (Ranges{{0, 7}}));
  EXPECT_EQ(keep(s, 0, 0, 0), Ranges{});
  EXPECT_EQ(keep({}, 4, 4, 3), Ranges{});
}

TEST(KeepLargest, EqualScoresStayFromTheNewestOnAndNaNGoesFirst) {
  EXPECT_EQ(keep(std::vector<float>(9, 0.5f), 2, 1, 6), (Ranges{{0, 2}, {5, 9}}));
  EXPECT_EQ(keep({NAN, 0.0f, NAN, 0.1f}, 0, 0, 2), (Ranges{{1, 2}, {3, 4}}));
}

TEST(Smooth, ByHand) {
  std::vector<float> scratch, s = {1, 0, 0, 6, 0};
  smooth(s, 3, SmoothBy::kMax, scratch);
  EXPECT_EQ(s, (std::vector<float>{1, 1, 6, 6, 6}));
  s = {3, 0, 0, 6, 0};
  smooth(s, 3, SmoothBy::kMean, scratch);
  EXPECT_EQ(s, (std::vector<float>{1, 1, 2, 2, 2})) << "beyond the ends are zeros";
  s = {3, 1};
  smooth(s, 1, SmoothBy::kMax, scratch);
  EXPECT_EQ(s, (std::vector<float>{3, 1}));
  smooth(s, 9, SmoothBy::kMax, scratch);
  EXPECT_EQ(s, (std::vector<float>{3, 3}));
  std::vector<float> none;
  smooth(none, 5, SmoothBy::kMean, scratch);
}

// The example of docs/design/methods.md: 8 tokens, 2 heads, sinks of 2.
const std::vector<float> kRows = {0.50f, 0.10f, 0.00f, 0.20f, 0.00f, 0.05f, 0.00f, 0.15f,   // head 0
                                  0.60f, 0.10f, 0.00f, 0.00f, 0.12f, 0.00f, 0.09f, 0.09f};  // head 1
HeadAttention rows_of(const std::vector<float>& a, std::int32_t heads) {
  const auto n = size32(a) / heads;
  return {.a = a.data(), .stride = n, .n_heads = heads, .n = n};
}

TEST(NormSuffix, ByHand) {
  // Norms of tokens 2 to 7: head 0 sqrt(0.04 + 0.0025 + 0.0225) = 0.2550, head 1 sqrt(0.0144 + 0.0081 + 0.0081) =
  // 0.1749. From 4: 0.1581 and 0.1749: (0.42985 - 0.33304) / 0.42985 = 0.2252 is missing. From 3: nothing. From 6: 0.15
  // and 0.1273: 0.3549; from 5: 0.1581, 0.1273: 0.3360; from 7: 0.15, 0.09: 0.4417.
  const auto from = [](float loss, bool with_first = false) {
    return norm_suffix(rows_of(kRows, 2), {.loss = loss, .sink = 2, .sink_in_norm = with_first});
  };
  EXPECT_EQ(from(0.0f), 2);
  EXPECT_EQ(from(0.01f), 3);
  EXPECT_EQ(from(0.22f), 3);
  EXPECT_EQ(from(0.23f), 4);
  EXPECT_EQ(from(0.34f), 5);
  EXPECT_EQ(from(0.36f), 6);
  EXPECT_EQ(from(0.45f), 7);
  EXPECT_EQ(from(1.0f), 7);
  EXPECT_EQ(from(2.0f), 7);
  // With the first tokens in the norm nearly all of it is present at the start.
  EXPECT_EQ(from(0.05f, true), 7);
}

// Four equal tokens have norm 2, the last alone 1: half is missing, and "less than loss" leaves no room for equality.
TEST(NormSuffix, AShareEqualToTheLossIsNotEnough) {
  const std::vector<float> ones(4, 1.0f);
  EXPECT_EQ(norm_suffix(rows_of(ones, 1), {.loss = 0.5f, .sink = 0}), 2);
  EXPECT_EQ(norm_suffix(rows_of(ones, 1), {.loss = 0.51f, .sink = 0}), 3);
}

TEST(NormSuffix, NothingToLoseKeepsAll) {
  const std::vector<float> none(10, 0.0f);
  EXPECT_EQ(norm_suffix(rows_of(none, 1), {.loss = 0.5f, .sink = 4}), 4);
  std::vector<float> nan(10, 0.1f);
  nan[6] = NAN;
  EXPECT_EQ(norm_suffix(rows_of(nan, 1), {.loss = 0.5f, .sink = 4}), 4);
  const std::vector<float> few(5, 0.2f);
  EXPECT_EQ(norm_suffix(rows_of(few, 1), {.loss = 0.9f, .sink = 4}), 4);
  EXPECT_EQ(norm_suffix(rows_of(few, 1), {.loss = 0.9f, .sink = 9}), 5);
  EXPECT_EQ(norm_suffix({}, {.loss = 0.9f, .sink = 4}), 0);
}

TEST(NormLargest, ByHand) {
  const auto kept = [](float loss) {
    Ranges ranges;
    norm_largest(rows_of(kRows, 2), {.loss = loss, .sink = 2}, ranges);
    return ranges;
  };
  // By the heads' mean: 7 (0.24), 3 (0.20), 4 (0.12), 6 (0.09), 5 (0.05), 2.
  EXPECT_EQ(kept(0.9f), (Ranges{{0, 2}, {7, 8}}));
  EXPECT_EQ(kept(0.35f), (Ranges{{0, 2}, {3, 4}, {7, 8}})) << "0.25 and 0.09: 0.2090 is missing, 0.4417 before";
  EXPECT_EQ(kept(0.2f), (Ranges{{0, 2}, {3, 5}, {7, 8}}));
  EXPECT_EQ(kept(0.0f), (Ranges{{0, 8}}));
}

TEST(Norm, TheSuffixIsTheFirstThatIsEnough) {
  std::mt19937 rng(1);
  std::uniform_real_distribution<float> draw;
  for (int round = 0; round < 200; ++round) {
    const std::int32_t n = 1 + static_cast<std::int32_t>(rng() % 60), heads = 1 + static_cast<std::int32_t>(rng() % 9);
    std::vector<float> a(n * heads);
    for (float& x : a) x = std::pow(draw(rng), 6.0f);
    const NormRule rule{
        .loss = draw(rng), .sink = static_cast<std::int32_t>(rng() % 6), .sink_in_norm = round % 3 == 0};
    const auto missing = [&](std::int32_t from) {
      double whole = 0, part = 0;
      for (std::int32_t h = 0; h < heads; ++h) {
        double all = 0, some = 0;
        for (std::int32_t t = 0; t < n; ++t) {
          const double x = a[h * n + t];
          const bool first = t < rule.sink;
          if (first && !rule.sink_in_norm) continue;
          all += x * x;
          if (first || t >= from) some += x * x;
        }
        whole += std::sqrt(all);
        part += std::sqrt(some);
      }
      return (whole - part) / whole;
    };
    const std::int32_t from = norm_suffix(rows_of(a, heads), rule);
    if (n <= rule.sink + 1) {
      EXPECT_EQ(from, std::min(n, rule.sink));
      continue;
    }
    ASSERT_GE(from, rule.sink);
    ASSERT_LT(from, n);
    EXPECT_LT(missing(from), static_cast<double>(rule.loss) + 1e-12);
    if (from + 1 == n) continue;
    EXPECT_GE(missing(from + 1), static_cast<double>(rule.loss) - 1e-12) << "one less would do";
  }
}

}  // namespace
}  // namespace mneme
