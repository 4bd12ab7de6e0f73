// Dot products of a query with stored rows, and moments of rows of queries.
#include <gtest/gtest.h>

#include "src/selection/layer/row_dots.h"
#include "src/selection/layer/row_moments.h"
#include "src/tensor/half.h"
#include "tests/ops/attention/attention_testing.h"

namespace mneme {
namespace {

using namespace testing;

std::vector<std::byte> half_rows(const std::vector<float>& x, DType dtype) {
  std::vector<std::byte> rows(2 * x.size());
  for (std::size_t i = 0; i < x.size(); ++i) set_kv(rows.data(), i, dtype, x[i]);
  return rows;
}

TEST(RowDots, IsTheReference) {
  std::mt19937 rng(1);
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const std::int64_t width : {8, 16, 24, 64, 72, 512, 4096})
      for (const std::int64_t n : {0, 1, 7, 33}) {
        const std::vector<float> q = random_floats(width, rng);
        const auto rows = half_rows(random_floats(n * width, rng), dtype);
        std::vector<float> want(n), got(want.size(), kNaN);
        row_dots_ref(q.data(), width, dtype, rows.data(), n, want.data());
        each_supported_target([&] {
          row_dots_cpu(q.data(), width, dtype, rows.data(), n, got.data());
          // A sum of `width` products of about 1, in f32.
          EXPECT_LE(max_error(got, want), 4e-7 * static_cast<double>(width)) << width << " " << n;
        });
      }
}

TEST(RowDots, EqualRowsScoreEqualAndNanStaysInItsRow) {
  std::mt19937 rng(2);
  const std::vector<float> q = random_floats(40, rng), one = random_floats(40, rng);
  std::vector<float> x;
  for (int i = 0; i < 9; ++i) x.insert(x.end(), one.begin(), one.end());
  x[3 * 40 + 7] = kNaN;
  const auto rows = half_rows(x, DType::kBF16);
  each_supported_target([&] {
    std::vector<float> got(9);
    row_dots_cpu(q.data(), 40, DType::kBF16, rows.data(), 9, got.data());
    for (std::size_t i = 0; i < 9; ++i) {
      if (i == 3)
        EXPECT_TRUE(std::isnan(got[i]));
      else
        EXPECT_EQ(got[i], got[0]);
    }
  });
}

TEST(RowMoments, AreTheReferences) {
  std::mt19937 rng(3);
  for (const std::int64_t n : {1, 2, 3, 31, 256})
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 64}, {3, 50}, {5, 6}, {7, 7}}) {
      const std::int64_t stride = 70;
      std::vector<float> x = random_floats(n * stride, rng);
      for (float& v : x) v += 3;
      const ChannelBlock rows{.x = x.data(), .n = n, .stride = stride, .begin = begin, .end = end};
      const std::vector<float> centre = random_floats(70, rng), w = random_floats(70, rng), r = random_floats(n, rng);
      std::vector<float> mean(70, 9), m2(70, 9), bias(n), sum(70, 9);
      row_moments_ref(rows, mean.data(), m2.data());
      row_bias_ref(rows, centre.data(), w.data(), bias.data());
      row_sum_ref(rows, r.data(), sum.data());
      each_supported_target([&] {
        std::vector<float> mean2(70, 9), m22(70, 9), bias2(bias.size()), sum2(70, 9);
        row_moments_cpu(rows, mean2.data(), m22.data());
        row_bias_cpu(rows, centre.data(), w.data(), bias2.data());
        row_sum_cpu(rows, r.data(), sum2.data());
        EXPECT_LE(max_error(mean2, mean), 2e-6) << n;
        EXPECT_LE(max_error(m22, m2), 1e-6 * (1 + max_abs(m2))) << n;
        EXPECT_LE(max_error(bias2, bias), 1e-5 * (1 + max_abs(bias))) << n;
        EXPECT_LE(max_error(sum2, sum), 2e-6 * (1 + static_cast<double>(n))) << n;
      });
    }
}

}  // namespace
}  // namespace mneme
