#include "src/ops/norm_rope/rope.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "src/base/thread_pool.h"
#include "tests/ops/gemm/gemm_testing.h"
#include "tests/ops/simd/each_target.h"

namespace mneme {
namespace {

// Inverse frequencies of transformers 4.49 in f32 (modeling_rope_utils, ROPE_INIT_FUNCTIONS).
struct Golden {
  const char* name;
  RopeConfig config;
  std::int64_t head_dim, context;
  double scale;
  std::vector<std::pair<int, double>> inv_freq;
};

std::vector<Golden> goldens() {
  const auto plain = [](double theta) { return RopeConfig{.theta = theta}; };
  const auto linear = [](double factor) { return RopeConfig{.scaling = RopeScaling::kLinear, .factor = factor}; };
  const auto llama3 = [](double factor) {
    return RopeConfig{.theta = 500000.0, .scaling = RopeScaling::kLlama3, .factor = factor, .original_context = 8192};
  };
  const RopeConfig yarn{.theta = 1e6, .scaling = RopeScaling::kYarn, .factor = 4.0, .original_context = 32768};
  const RopeConfig yarn_betas{.scaling = RopeScaling::kYarn,
                              .factor = 16.0,
                              .original_context = 2048,
                              .beta_fast = 16.0,
                              .beta_slow = 2.0,
                              .attention_factor = 1.5};
  const RopeConfig yarn_between{.theta = 150000.0,
                                .scaling = RopeScaling::kYarn,
                                .factor = 32.0,
                                .original_context = 4096,
                                .truncate = false};  // gpt-oss, of transformers 5.23
  const RopeConfig yarn_tiny{.scaling = RopeScaling::kYarn, .factor = 4.0, .original_context = 64};
  const RopeConfig dynamic{.scaling = RopeScaling::kDynamic, .factor = 2.0, .original_context = 4096};
  return {
      {"default",
       plain(10000.0),
       64,
       4096,
       1.0,
       {{0, 1.0},
        {1, 0.7498942017555237},
        {8, 0.10000000149011612},
        {15, 0.01333521492779255},
        {16, 0.009999999776482582},
        {24, 0.0010000000474974513},
        {30, 0.00017782794020604342},
        {31, 0.0001333521504420787}}},
      {"linear",
       linear(4.0),
       64,
       4096,
       1.0,
       {{0, 0.25}, {1, 0.18747355043888092}, {8, 0.02500000037252903}, {31, 3.333803761051968e-05}}},
      {"llama3, factor 32",
       llama3(32.0),
       64,
       131072,
       1.0,
       {{0, 1.0},
        {1, 0.663601279258728},
        {8, 0.03760603070259094},
        {15, 0.0012905480107292533},
        {16, 0.000429556705057621},
        {24, 1.6619674170215148e-06},
        {30, 1.4192720243499934e-07},
        {31, 9.418306490260875e-08}}},
      {"llama3, factor 8",
       llama3(8.0),
       128,
       131072,
       1.0,
       {{0, 1.0},
        {1, 0.8146172165870667},
        {16, 0.03760603070259094},
        {31, 0.0008567514596506953},
        {32, 0.0005248460220173001},
        {48, 6.647869668086059e-06},
        {62, 3.76732259610435e-07},
        {63, 3.068925877869333e-07}}},
      {"yarn",
       yarn,
       128,
       131072,
       1.138629436111989,
       {{0, 1.0},
        {1, 0.8058422207832336},
        {16, 0.03162277862429619},
        {31, 0.000802959781140089},
        {32, 0.0006029411451891065},
        {48, 7.905693564680405e-06},
        {62, 3.8498163235090033e-07},
        {63, 3.102344408034696e-07}}},
      {"yarn, own betas and attention factor",
       yarn_betas,
       64,
       32768,
       1.5,
       {{0, 1.0},
        {1, 0.7498942017555237},
        {8, 0.10000000149011612},
        {15, 0.005521612707525492},
        {16, 0.002968749962747097},
        {24, 6.25000029685907e-05},
        {30, 1.1114246262877714e-05},
        {31, 8.33450940262992e-06}}},
      {"yarn, four pairs",
       yarn_tiny,
       8,
       256,
       1.138629436111989,
       {{0, 1.0}, {1, 0.0625}, {2, 0.0024999999441206455}, {3, 0.0002500000118743628}}},
      {"yarn, not truncated",
       yarn_between,
       64,
       131072,
       1.3465735902799727,
       {{0, 1.0},
        {1, 0.6890442967414856},
        {8, 0.05081327259540558},
        {9, 0.031705696135759354},
        {12, 0.006794959306716919},
        {17, 0.00012931869423482567},
        {18, 3.830881178146228e-05},
        {31, 3.023511396804679e-07}}},
      {"dynamic, four times the original context",
       dynamic,
       64,
       16384,
       1.0,
       {{0, 1.0},
        {1, 0.704269289970398},
        {8, 0.06052156910300255},
        {15, 0.005200936924666166},
        {16, 0.0036628602538257837},
        {24, 0.00022168205759953707},
        {30, 2.7049747586715966e-05},
        {31, 1.9050306946155615e-05}}},
      {"dynamic, within the original context",
       dynamic,
       64,
       1000,
       1.0,
       {{1, 0.7498942017555237}, {16, 0.009999999776482582}, {31, 0.0001333521504420787}}},
  };
}

TEST(RopeTable, FrequenciesAreThoseOfTransformers) {
  for (const Golden& g : goldens()) {
    SCOPED_TRACE(g.name);
    const RopeTable table = RopeTable::make(g.config, g.head_dim, g.context);
    ASSERT_EQ(std::ssize(table.inv_freq), g.head_dim / 2);
    EXPECT_NEAR(table.scale, g.scale, 1e-12);
    for (const auto& [pair, expected] : g.inv_freq)  // the published numbers are f32 after a few operations in f32
      EXPECT_LE(std::abs(table.inv_freq[pair] - expected), 4e-7 * expected) << "pair " << pair;
  }
}

TEST(RopeTable, FrequencyFactorsDivide) {
  RopeConfig config;
  config.freq_factors = {1.0f, 2.0f, 8.0f, 32.0f};
  const RopeTable with = RopeTable::make(config, 8, 100);
  config.freq_factors.clear();
  const RopeTable without = RopeTable::make(config, 8, 100);
  const double factors[] = {1.0, 2.0, 8.0, 32.0};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(with.inv_freq[i] * factors[i], without.inv_freq[i]);
}

struct Case {
  std::int64_t n, heads, head_dim;
  RopePairs pairs;
};

void expect_near(const Tensor& got, const Tensor& expected, std::int64_t n, std::int64_t values, double tol) {
  for (std::int64_t i = 0; i < n * values; ++i) {
    const double e = expected.as<float>()[i], g = got.as<float>()[i];
    ASSERT_LE(std::abs(g - e), tol) << "value " << i;
  }
}

TEST(Rope, FitsTheReferenceOnEveryInstructionSet) {
  ThreadPool pool(3);
  each_target([&] {
    for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours}) {
      for (const auto& shape : {std::tuple{0, 2, 64},
                                {1, 1, 2},
                                {1, 3, 6},
                                {3, 5, 40},
                                {7, 4, 64},
                                {33, 7, 128},
                                {130, 8, 96},
                                {300, 2, 256}}) {
        const int n = std::get<0>(shape), heads = std::get<1>(shape), head_dim = std::get<2>(shape);
        SCOPED_TRACE(fmt::format("n {} heads {} head_dim {}", n, heads, head_dim));
        const std::int64_t values = std::int64_t{heads} * head_dim;
        Tensor expected = random_f32(std::max(n, 1), values, 1), got = random_f32(std::max(n, 1), values, 1);
        std::vector<std::int32_t> positions(n);
        for (std::size_t i = 0; i < positions.size(); ++i)
          positions[i] = static_cast<std::int32_t>(i * i * 11 % 1000003);
        const RopeTable table = RopeTable::make(
            {.pairs = pairs, .scaling = RopeScaling::kYarn, .factor = 4.0, .original_context = 4096}, head_dim, 0);
        const auto view = [&](const Tensor& t) {
          return TensorView(t.view().data(), DType::kF32, {n, heads, head_dim});
        };
        rope_ref(view(expected), positions, table);
        rope_cpu(view(got), positions, table, {.pool = &pool});
        expect_near(got, expected, n, values, 4e-6);
        const Tensor again = random_f32(std::max(n, 1), values, 1);
        const RopeAngles angles(positions, table, {.pool = &pool});
        rope_cpu(view(again), angles, {.pool = &pool});
        ASSERT_EQ(std::memcmp(again.view().data(), got.view().data(), got.bytes()), 0);
      }
    }
  });
}

TEST(Rope, NeighboursAreHalvesInAnotherOrder) {
  constexpr std::int64_t kHeadDim = 64;
  ThreadPool pool(1);
  Tensor halves = random_f32(1, kHeadDim, 1), neighbours(DType::kF32, {1, kHeadDim});
  for (std::int64_t i = 0; i < kHeadDim / 2; ++i) {
    neighbours.as<float>()[2 * i] = halves.as<float>()[i];
    neighbours.as<float>()[2 * i + 1] = halves.as<float>()[i + kHeadDim / 2];
  }
  const std::int32_t position = 1234;
  const auto rotate = [&](Tensor& t, RopePairs pairs) {
    rope_cpu(TensorView(t.view().data(), DType::kF32, {1, 1, kHeadDim}), {&position, 1},
             RopeTable::make({.pairs = pairs}, kHeadDim, 0), {.pool = &pool});
  };
  rotate(halves, RopePairs::kHalves);
  rotate(neighbours, RopePairs::kNeighbours);
  for (std::int64_t i = 0; i < kHeadDim / 2; ++i) {
    EXPECT_EQ(neighbours.as<float>()[2 * i], halves.as<float>()[i]);
    EXPECT_EQ(neighbours.as<float>()[2 * i + 1], halves.as<float>()[i + kHeadDim / 2]);
  }
}

TEST(Rope, DotProductsDependOnDistanceAloneEvenAtAMillion) {
  constexpr std::int64_t kHeadDim = 128;
  ThreadPool pool(1);
  const RopeTable table = RopeTable::make({.theta = 1e6}, kHeadDim, 0);
  const auto product_at = [&](std::int32_t query, std::int32_t key) {
    Tensor q = random_f32(1, kHeadDim, 1), k = random_f32(1, kHeadDim, 2);
    rope_cpu(TensorView(q.view().data(), DType::kF32, {1, 1, kHeadDim}), {&query, 1}, table, {.pool = &pool});
    rope_cpu(TensorView(k.view().data(), DType::kF32, {1, 1, kHeadDim}), {&key, 1}, table, {.pool = &pool});
    return std::inner_product(q.as<float>(), q.as<float>() + kHeadDim, k.as<float>(), 0.0);
  };
  const double near = product_at(100, 93);
  EXPECT_LE(std::abs(product_at(1048575, 1048568) - near), 1e-4);
  EXPECT_GE(std::abs(product_at(100, 50) - near), 1e-2) << "the test can fail";
}

TEST(Rope, RowsMayBeStridedAndNothingBetweenThemIsTouched) {
  ThreadPool pool(2);
  constexpr std::int64_t kRows = 9, kHeads = 2, kHeadDim = 16, kStride = 40;
  Tensor got = random_f32(kRows, kStride, 1), expected = random_f32(kRows, kStride, 1);
  std::vector<std::int32_t> positions(kRows);
  std::iota(positions.begin(), positions.end(), 5);
  const auto view = [&](const Tensor& t) {
    return TensorView(t.view().data(), DType::kF32, {kRows, kHeads, kHeadDim}).with_stride(kStride * 4);
  };
  const RopeTable table = RopeTable::make({}, kHeadDim, 0);
  rope_ref(view(expected), positions, table);
  rope_cpu(view(got), positions, table, {.pool = &pool});
  expect_near(got, expected, kRows, kStride, 2e-6);
  for (std::int64_t i = 0; i < kRows; ++i)
    for (std::int64_t j = kHeads * kHeadDim; j < kStride; ++j)
      ASSERT_EQ(got.as<float>()[i * kStride + j], expected.as<float>()[i * kStride + j]);
}

TEST(Rope, NanStaysInItsPair) {
  ThreadPool pool(1);
  Tensor x = random_f32(1, 32, 1);
  x.as<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  const std::int32_t position = 7;
  rope_cpu(TensorView(x.view().data(), DType::kF32, {1, 1, 32}), {&position, 1}, RopeTable::make({}, 32, 0),
           {.pool = &pool});
  for (int j = 0; j < 32; ++j) EXPECT_EQ(std::isnan(x.as<float>()[j]), j == 3 || j == 19);
}

}  // namespace
}  // namespace mneme
