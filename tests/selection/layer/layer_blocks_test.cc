// Building blocks of selection for a whole layer: moments, window weights, shared layer budget, mass.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "src/base/rng.h"
#include "src/kv/page_pool.h"
#include "src/selection/layer/channel_moments.h"
#include "src/selection/layer/entropy_cut.h"
#include "src/selection/layer/representative.h"
#include "src/selection/layer/row_moments.h"
#include "src/selection/layer/window_probe.h"
#include "src/selection/mass/mass_window.h"
#include "src/tensor/half.h"

namespace mneme {
namespace {

TEST(ChannelMoments, BatchesMergeToTheWhole) {
  constexpr std::int64_t kChannels = 5;
  Rng rng(4);
  std::vector<float> rows;
  ChannelMoments moments(kChannels);
  for (const std::int64_t n : {1, 7, 256, 3}) {
    const std::size_t from = rows.size();
    for (std::int64_t i = 0; i < n * kChannels; ++i) rows.push_back(static_cast<float>(100 + rng.normal()));
    std::vector<float> mean(kChannels), m2(kChannels);
    row_moments_ref({.x = rows.data() + from, .n = n, .stride = kChannels, .begin = 0, .end = kChannels}, mean.data(),
                    m2.data());
    moments.add(n, mean, m2);
    EXPECT_EQ(moments.count() == 1, moments.variance(0) == 0);
  }
  const auto count = static_cast<double>(rows.size() / kChannels);
  EXPECT_EQ(static_cast<double>(moments.count()), count);
  for (std::int64_t c = 0; c < kChannels; ++c) {
    double mean = 0, square = 0;
    for (std::size_t i = c; i < rows.size(); i += kChannels) mean += rows[i] / count;
    for (std::size_t i = c; i < rows.size(); i += kChannels) square += std::pow(rows[i] - mean, 2);
    EXPECT_LE(std::abs(moments.mean(c) - mean), 1e-5);
    EXPECT_LE(std::abs(moments.variance(c) - square / (count - 1)), 1e-4);
  }
}

// By hand: two channels, variances 1 and 3, so their mean is 2 and the floor 0.02.
TEST(ChannelMoments, BiasFormHasAFloor) {
  ChannelMoments moments(2);
  moments.add(3, std::vector<float>{1, 2}, std::vector<float>{2, 6});
  std::vector<float> centre(2), weight(2);
  moments.bias_form(centre, weight);
  EXPECT_EQ(centre, (std::vector<float>{1, 2}));
  EXPECT_FLOAT_EQ(weight[0], 1 / 1.02f);
  EXPECT_FLOAT_EQ(weight[1], 1 / 3.02f);
  ChannelMoments still(2);
  still.add(3, std::vector<float>{1, 2}, std::vector<float>{0, 0});
  still.bias_form(centre, weight);
  EXPECT_EQ(weight, (std::vector<float>{0, 0}));
}

TEST(WindowWeights, AreAtLeastZeroAndSumToOne) {
  Rng rng(5);
  for (const WindowProbe probe : {WindowProbe::kActivation, WindowProbe::kMean, WindowProbe::kReversed})
    for (const std::size_t n : {1, 2, 17, 256}) {
      std::vector<float> bias(n), weights(n);
      for (float& b : bias) b = static_cast<float>(rng.uniform()) * 100;
      window_weights(probe, bias, weights);
      for (float w : weights) EXPECT_GE(w, 0);
      EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 1, 1e-5);
    }
}

// The worked example of docs/design/methods.md.
TEST(WindowWeights, ByHand) {
  const std::vector<float> bias = {1, 3, 4};
  std::vector<float> w(3);
  window_weights(WindowProbe::kActivation, bias, w);
  EXPECT_EQ(w, (std::vector<float>{0.125f, 0.375f, 0.5f}));
  window_weights(WindowProbe::kReversed, bias, w);
  EXPECT_FLOAT_EQ(w[0], 12.0f / 19);
  EXPECT_FLOAT_EQ(w[1], 4.0f / 19);
  EXPECT_FLOAT_EQ(w[2], 3.0f / 19);
  window_weights(WindowProbe::kMean, bias, w);
  EXPECT_FLOAT_EQ(w[0], 1.0f / 3);
}

TEST(WindowWeights, RowsThatDoNotDifferWeighAlike) {
  std::vector<float> w(4);
  for (const WindowProbe probe : {WindowProbe::kActivation, WindowProbe::kReversed}) {
    window_weights(probe, std::vector<float>{0, 0, 0, 0}, w);
    EXPECT_EQ(w, (std::vector<float>{0.25f, 0.25f, 0.25f, 0.25f}));
    window_weights(probe, std::vector<float>{1, std::numeric_limits<float>::quiet_NaN(), 2, 3}, w);
    EXPECT_EQ(w, (std::vector<float>{0.25f, 0.25f, 0.25f, 0.25f}));
  }
  window_weights(WindowProbe::kReversed, std::vector<float>{0, 5, 0, 5}, w);
  EXPECT_EQ(w, (std::vector<float>{0.5f, 0, 0.5f, 0}));
}

TEST(ScoreEntropy, EvenScoresHaveTheMost) {
  EXPECT_EQ(score_entropy({}), 0);
  EXPECT_EQ(score_entropy(std::vector<float>{3}), 0);
  EXPECT_NEAR(score_entropy(std::vector<float>(8, 0.3f)), std::log(8.0), 1e-12);
  EXPECT_LT(score_entropy(std::vector<float>{1, 0, 0, 0}), std::log(4.0));
  EXPECT_TRUE(std::isnan(score_entropy(std::vector<float>{0, std::numeric_limits<float>::quiet_NaN()})));
}

std::int32_t sum_of_step(EntropyCut& cut, const std::vector<double>& shares, std::int32_t n) {
  std::int32_t sum = 0;
  for (std::size_t l = 0; l < shares.size(); ++l)
    sum += cut.take(0, static_cast<std::int32_t>(l), shares[l] * std::log(n), n);
  return sum;
}

TEST(EntropyCut, EvenLayersGetTheirShareEach) {
  for (const bool reversed : {false, true}) {
    EntropyCut cut(8, 11, reversed);
    for (int step = 0; step < 3; ++step)
      for (std::int32_t l = 0; l < 8; ++l) EXPECT_EQ(cut.take(0, l, std::log(500.0), 500), 11);
  }
}

TEST(EntropyCut, AllThatIsThereIsGivenOut) {
  Rng rng(6);
  EntropyCut cut(8, 46, false);
  for (int step = 0; step < 150; ++step) {  // longer than the history
    std::vector<double> shares(8);
    for (double& s : shares) s = 0.9 + 0.1 * rng.uniform();
    EXPECT_EQ(sum_of_step(cut, shares, 1000), 8 * 46);
  }
  EXPECT_LT(cut.mean_entropy(0), 1);
}

// Two layers, four units per layer. Without history a later layer counts as even: 1.
TEST(EntropyCut, ByHand) {
  EntropyCut cut(2, 4, false), reverse(2, 4, true);
  const double even = std::log(100.0);
  EXPECT_EQ(cut.take(0, 0, even / 3, 100), 2);      // (1/3) / (1/3 + 1) of 8
  EXPECT_EQ(cut.take(0, 1, even, 100), 6);          // the rest
  EXPECT_EQ(reverse.take(0, 0, even / 3, 100), 6);  // 3 / (3 + 1) of 8
  EXPECT_EQ(reverse.take(0, 1, even, 100), 2);
}

TEST(EntropyCut, BoundsHoldAndNeverExceedTheBudget) {
  Rng rng(7);
  for (const std::int32_t k : {1, 2, 5}) {
    EntropyCut cut(6, k, false);
    for (int step = 0; step < 60; ++step) {
      std::int32_t sum = 0;
      for (std::int32_t l = 0; l < 6; ++l) {
        const double wild = rng.uniform() < 0.2 ? std::numeric_limits<double>::quiet_NaN() : rng.uniform() * 6;
        const std::int32_t n = cut.take(0, l, wild, 400);
        EXPECT_GE(n, EntropyCut::least(k));
        EXPECT_LE(n, EntropyCut::most(k));
        sum += n;
      }
      EXPECT_LE(sum, 6 * k);
    }
    EXPECT_EQ(cut.take(0, 0, 0, 0), 0);
    EXPECT_EQ(cut.take(0, 0, 0, 1), 1);
  }
}

TEST(EntropyCut, ConcurrentStepsDoNotMix) {
  EntropyCut cut(2, 4, false);
  const double even = std::log(100.0);
  EXPECT_EQ(cut.take(3, 0, even / 3, 100), 2);
  EXPECT_EQ(cut.take(5, 0, even, 100), 4);
  EXPECT_EQ(cut.take(5, 1, even, 100), 4);
  EXPECT_EQ(cut.take(3, 1, even, 100), 6);
}

// Three tokens, two KV heads of two channels, two query heads each. Tokens 0 and 2 have the most mass over all heads,
// though token 1 has the most in the first.
TEST(KeyRows, ByHand) {
  PagePool pool({.n_layers = 1, .n_kv_heads = 2, .head_dim = 2, .dtype = DType::kF16}, 8);
  SequenceCache cache(pool);
  cache.extend(3);
  const AttentionShape shape{.group = 2, .head_dim = 2, .kv_dtype = DType::kF16, .scale = 1};
  const float keys[3][2][2] = {{{3, 0}, {0, 4}}, {{9, 9}, {9, 9}}, {{0, 0}, {0, 0}}};
  for (std::int32_t t = 0; t < 3; ++t)
    for (std::int32_t m = 0; m < 2; ++m) store_kv(keys[t][m], keys[t][m], shape, cache.token(0, m, t));
  MassWindow mass(4);
  mass.extend(3);
  const float received[4][3] = {{0, 5, 0}, {3, 0, 3}, {3, 0, 4}, {3, 0, 4}};
  for (std::int32_t h = 0; h < 4; ++h)
    for (std::int32_t t = 0; t < 3; ++t) *mass.row(h, t) = received[h][t];
  std::vector<f16> rows(2 * 4);
  build_key_rows({.cache = &cache, .layer = 0, .begin = 0, .end = 3}, mass, shape, 2,
                 reinterpret_cast<std::byte*>(rows.data()));
  // (3, 0, 0, 4), each key twice, has length 5 sqrt(2). Zero keys stay zero.
  const float expected[8] = {0.6f, 0, 0, 0.8f, 0, 0, 0, 0};
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_LE(std::abs(static_cast<float>(rows[i]) - expected[i] / std::sqrt(2.0f)), 5e-4f) << i;
}

TEST(MassWindow, KeepsWhatStays) {
  MassWindow mass(3);
  mass.extend(10);
  for (std::int32_t h = 0; h < 3; ++h)
    for (std::int32_t t = 0; t < 10; ++t) *mass.row(h, t) = static_cast<float>(100 * h + t);
  mass.forget(4);
  mass.extend(40);
  mass.forget(2);   // already removed
  mass.extend(20);  // already present
  EXPECT_EQ(mass.begin(), 4);
  EXPECT_EQ(mass.end(), 40);
  const MassWindow fork = mass;
  *mass.row(1, 5) = 0;
  for (std::int32_t h = 0; h < 3; ++h)
    for (std::int32_t t = 4; t < 40; ++t)
      EXPECT_EQ(*fork.row(h, t), t < 10 ? static_cast<float>(100 * h + t) : 0.0f) << h << " " << t;
  mass.forget(100);
  EXPECT_EQ(mass.begin(), 40);
}

}  // namespace
}  // namespace mneme
