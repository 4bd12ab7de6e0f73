#include "src/selection/index/centroid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/ops/simd/each_target.h"
#include "tests/selection/index/key_testing.h"

namespace mneme {
namespace {

AttentionShape shape_of(std::int32_t group, std::int32_t dim) {
  return {.group = group, .head_dim = dim, .kv_dtype = dim % 16 == 0 ? DType::kBF16 : DType::kF16, .scale = 1.0f};
}

TEST(Centroid, BuildIsTheReferencesBitForBit) {
  each_target([] {
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    for (const std::int32_t dim : {8, 24, 64, 120, 256})
      for (const std::int32_t n : {1, 2, 3, 16, 31, 300}) {
        const AttentionShape shape = shape_of(1, dim);
        Keys keys(n, shape);
        keys.fill([&] { return normal(rng); });
        if (n > 2) keys.set(1, 5, NAN);
        std::vector<KvRun> runs;
        for (std::int32_t t = 0; t < n; t += 7) runs.push_back(keys.run(t, std::min(7, n - t)));
        std::vector<std::byte> got(2 * dim), expected(got);
        centroid_build_cpu(runs, shape, got.data());
        centroid_build_ref(runs, shape, expected.data());
        ASSERT_EQ(got, expected) << "D " << dim << ", " << n << " tokens";
      }
  });
}

// The centroid of one token is its key.
TEST(Centroid, OfOneTokenIsItsKey) {
  const AttentionShape shape = shape_of(1, 64);
  Keys keys(1, shape);
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  keys.fill([&] { return normal(rng); });
  const KvRun run = keys.run(0, 1);
  std::vector<std::byte> centroid(128);
  centroid_build_cpu({&run, 1}, shape, centroid.data());
  EXPECT_EQ(std::memcmp(centroid.data(), run.kv, 128), 0);
}

TEST(Centroid, ScoresAsTheReference) {
  each_target([] {
    std::mt19937 rng(4);
    for (const std::int32_t group : {1, 4, 5, 7, 8, 16})
      for (const std::int32_t dim : {8, 40, 64, 256})
        for (const std::int64_t n : {0, 1, 2, 5, 33, 257}) {
          const AttentionShape shape = shape_of(group, dim);
          // Rows of D elements: the two halves of Keys' rows are two centroids.
          Keys rows(static_cast<std::int32_t>(n / 2 + 1), shape);
          std::normal_distribution<float> normal;
          std::vector<std::byte> centroids(2 * dim * n);
          rows.fill([&] { return normal(rng); });
          for (std::int64_t u = 0; u < n; ++u)
            std::memcpy(centroids.data() + 2 * dim * u, rows.run(u / 2, 1).kv, 2 * dim);
          const std::vector<float> q = normal_vector(group * dim, rng);
          const std::int64_t stride = n + 3;
          std::vector<float> got(group * stride, -7.0f), expected(got);
          centroid_score_cpu(q.data(), shape, centroids.data(), n, got.data(), stride);
          centroid_score_ref(q.data(), shape, centroids.data(), n, expected.data(), stride);
          // Sums of D products of unit size in f32: about sqrt(D) ulp of a value of sqrt(D).
          ASSERT_LE(max_error(got, expected), 4e-7 * dim) << "G " << group << " D " << dim << " n " << n;
          // Equal rows, equal scores.
          for (std::int64_t u = 0; u + 1 < n; u += 2)
            for (std::int64_t g = 0; g < group; ++g) ASSERT_EQ(got[g * stride + u], got[g * stride + u + 1]);
        }
  });
}

}  // namespace
}  // namespace mneme
