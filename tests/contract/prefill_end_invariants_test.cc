// Invariants of each method that drops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/size32.h"
#include "tests/contract/dropping_sequence.h"

namespace mneme {
namespace {

using namespace dropping;

constexpr MethodShape kShape{.n_layers = kLayers, .n_heads = 4, .n_kv_heads = 2, .head_dim = kHeadDim};

class Invariants : public ::testing::Test {
 protected:
  Sequence sequence(const char* name, const char* overrides, std::int32_t budget, std::uint64_t seed = 1) {
    return Sequence(kShape, compile(recipe_of({name, overrides}, budget), kShape), context_, seed);
  }
  ThreadPool pool_{1};
  CpuContext context_{.pool = &pool_};
};

TEST_F(Invariants, ReFreeKvKeepsAllAtZeroSinksAndTheLastTokenAtOneAndLessWithMoreLoss) {
  for (const char* loss : {"loss=0,dense=none", "loss=1,dense=none", "loss=2,dense=none"}) {
    Sequence s = sequence("refreekv", loss, 96);
    s.prefill(200);
    for (std::int32_t l = 0; l < kLayers; ++l)
      for (std::int32_t m = 0; m < 2; ++m)
        EXPECT_EQ(s.cache().stored(l, m),
                  loss[5] == '0' ? (std::vector<TokenRange>{{0, 200}}) : (std::vector<TokenRange>{{0, 4}, {199, 200}}));
  }
  std::vector<std::int32_t> before(kLayers, 200);
  for (const char* loss :
       {"loss=0.001,dense=none", "loss=0.01,dense=none", "loss=0.1,dense=none", "loss=0.5,dense=none"}) {
    Sequence s = sequence("refreekv", loss, 96);
    s.prefill(200);
    for (std::int32_t l = 0; l < kLayers; ++l) {
      EXPECT_EQ(s.cache().stored(l, 0), s.cache().stored(l, 1)) << "one cut a layer";
      EXPECT_LE(s.cache().n_stored(l, 0), before[l]) << loss;
      before[l] = s.cache().n_stored(l, 0);
    }
  }
  EXPECT_LT(before[0], 150);
}

TEST_F(Invariants, H2oMassIsTheRowsLessWhatWasDropped) {
  Sequence s = sequence("h2o", "recent=20", 64);
  s.prefill(100, 30);
  const auto sum = [&](std::int32_t l, std::int32_t m) {
    const auto& mass = s.method().layer(l).mass[m];
    EXPECT_EQ(size32(mass), s.cache().n_stored(l, m));
    return std::accumulate(mass.begin(), mass.end(), 0.0);
  };
  for (std::int32_t l = 0; l < kLayers; ++l)
    for (std::int32_t m = 0; m < 2; ++m) EXPECT_NEAR(sum(l, m), 100 * 2, 1e-3) << "one a row and query head";
  s.pass(30, false, 0);
  std::vector<double> dropped;  // mass of the tokens that the end will drop
  for (std::int32_t l = 0; l < kLayers; ++l)
    for (std::int32_t m = 0; m < 2; ++m) {
      const auto& pending = s.method().layer(l).pending;
      const auto& mass = pending.mass[m];
      double gone = std::accumulate(mass.begin(), mass.end(), 0.0);
      EXPECT_NEAR(gone, 130 * 2, 1e-3);
      for (const TokenRange& r : pending.kept[m])
        gone -= std::accumulate(mass.begin() + r.begin, mass.begin() + r.end, 0.0);
      EXPECT_GT(gone, 1.0);
      dropped.push_back(gone);
    }
  s.commit();
  for (std::int32_t l = 0; l < kLayers; ++l)
    for (std::int32_t m = 0; m < 2; ++m) EXPECT_NEAR(sum(l, m), 130 * 2 - dropped[2 * l + m], 1e-3);
}

TEST_F(Invariants, H2oWithAllOfTheBudgetRecentIsASlidingWindow) {
  Sequence s = sequence("h2o", "recent=50", 50);
  s.prefill(120);
  for (int i = 0; i < 30; ++i) {
    const std::int32_t n = s.cache().length();
    for (std::int32_t l = 0; l < kLayers; ++l)
      EXPECT_EQ(s.cache().stored(l, 1), (std::vector<TokenRange>{{n - 49, n}}));
    s.decode();
  }
}

TEST_F(Invariants, TovaIsOneSetALayerAndNeverMoreThanTheBudget) {
  Sequence s = sequence("tova", "", 40);
  s.prefill(100);
  for (int i = 0; i < 50; ++i) {
    for (std::int32_t l = 0; l < kLayers; ++l) {
      EXPECT_EQ(s.cache().stored(l, 0), s.cache().stored(l, 1));
      EXPECT_EQ(s.cache().n_stored(l, 0), 39) << "and the next step's own";
    }
    s.decode();
  }
}

// Window and kernel of one: the tokens of the last row's largest mean probability, and the last one.
TEST_F(Invariants, SnapKvAtItsSmallestIsTheLastRowsTop) {
  Sequence s = sequence("snapkv", "recent=1,rows=1,smooth=none", 30);
  s.prefill(150);
  for (std::int32_t l = 0; l < kLayers; ++l)
    for (std::int32_t m = 0; m < 2; ++m) {
      std::vector<double> mean(150, 0.0);
      for (std::int32_t h = 2 * m; h < 2 * m + 2; ++h) {
        std::vector<double> p;
        for (std::int32_t t = 0; t < 150; ++t) {
          double score = 0;
          for (std::int32_t c = 0; c < kHeadDim; ++c) {
            const auto bits = reinterpret_cast<const bf16*>(s.whole().token(l, m, t))[c];
            score += s.queries(l)[s.width() * 149 + (h * kHeadDim + c)] * double{static_cast<float>(bits)};
          }
          p.push_back(std::exp(score / std::sqrt(kHeadDim)));
        }
        const double sum = std::accumulate(p.begin(), p.end(), 0.0);
        for (std::size_t t = 0; t < 150; ++t) mean[t] += p[t] / sum;
      }
      std::vector<std::int32_t> order(149);
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [&](int a, int b) { return mean[a] > mean[b]; });
      std::vector<std::int32_t> expected(order.begin(), order.begin() + 29);
      expected.push_back(149);
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(positions_of(s.cache(), l, m), expected) << "layer " << l << " head " << m;
    }
}

}  // namespace
}  // namespace mneme
