#include "src/selection/cluster/kmeans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "tests/ops/simd/each_target.h"
#include "tests/selection/index/key_testing.h"

namespace mneme {
namespace {

using Clusters = std::vector<std::int32_t>;

Clusters ref(const KmeansTask& task, std::int32_t n) {
  Clusters clusters(n, -1);
  kmeans_ref(task, clusters.data());
  return clusters;
}

Clusters cpu(const KmeansTask& task, std::int32_t n) {
  Clusters clusters(n, -1);
  KmeansScratch scratch;
  kmeans_cpu(task, clusters.data(), scratch);
  return clusters;
}

AttentionShape shape_of(std::int32_t dim, DType dtype) {
  return {.group = 1, .head_dim = dim, .kv_dtype = dtype, .scale = 1.0f};
}

// Integer arithmetic: the same clusters, not merely equally good ones.
TEST(Kmeans, IsTheReferencesBitForBit) {
  each_target([] {
    std::mt19937 rng(3);
    for (const auto& [n, k, dim] : {std::array{1, 1, 8},
                                    {2, 2, 8},
                                    {3, 1, 16},
                                    {31, 2, 24},
                                    {32, 32, 64},
                                    {33, 3, 64},
                                    {97, 7, 40},
                                    {256, 16, 128},
                                    {263, 17, 256},
                                    {500, 33, 64},
                                    {701, 65, 72}}) {
      const AttentionShape shape = shape_of(dim, dim % 16 == 0 ? DType::kBF16 : DType::kF16);
      for (const bool integers : {false, true}) {
        Keys keys(n, shape);
        std::normal_distribution<float> normal;
        keys.fill([&] { return integers ? static_cast<float>(static_cast<int>(rng() % 3) - 1) : normal(rng); });
        // Runs of unequal length, as pages and lists give them.
        std::vector<KvRun> runs;
        for (std::int32_t at = 0; at < n;) {
          const std::int32_t length = std::min<std::int32_t>(n - at, 1 + static_cast<std::int32_t>(rng() % 40));
          runs.push_back(keys.run(at, length));
          at += length;
        }
        for (const auto& [iterations, metric] : {std::pair{1, KmeansMetric::kCosine},
                                                 {2, KmeansMetric::kDistance},
                                                 {5, KmeansMetric::kCosine},
                                                 {4, KmeansMetric::kDistance}}) {
          const KmeansTask task{
              .runs = runs, .shape = shape, .n_clusters = k, .iterations = iterations, .metric = metric};
          ASSERT_EQ(cpu(task, n), ref(task, n)) << n << " tokens, " << k << " clusters, D " << dim;
        }
      }
    }
  });
}

TEST(Kmeans, ManyEqualKeysGoToOneCluster) {
  each_target([] {
    const AttentionShape shape = shape_of(16, DType::kBF16);
    Keys keys(200, shape);
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    keys.fill([&] { return normal(rng); });
    for (std::int64_t t = 0; t < 200; t += 2)
      for (std::int64_t c = 0; c < 16; ++c) keys.set(t, c, 3.0f);
    const KvRun run = keys.run(0, 200);
    const KmeansTask task{.runs = {&run, 1}, .shape = shape, .n_clusters = 13, .iterations = 4};
    const Clusters clusters = cpu(task, 200);
    for (std::size_t t = 0; t < 200; t += 2) EXPECT_EQ(clusters[t], clusters[0]);
    EXPECT_EQ(clusters, ref(task, 200));
  });
}

TEST(Kmeans, NanAndInfinityAndConstantKeysSpoilNobodyElse) {
  each_target([] {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const AttentionShape shape = shape_of(8, dtype);
      Keys keys(40, shape);
      std::mt19937 rng(1);
      std::normal_distribution<float> normal;
      keys.fill([&] { return normal(rng); });
      keys.set(0, 3, NAN);
      keys.set(17, 0, INFINITY);
      keys.set(18, 7, -INFINITY);
      const KvRun run = keys.run(0, 40);
      const KmeansTask task{.runs = {&run, 1}, .shape = shape, .n_clusters = 4, .iterations = 6};
      const Clusters clusters = cpu(task, 40);
      EXPECT_EQ(clusters, ref(task, 40));
      KmeansTask by_distance = task;
      by_distance.metric = KmeansMetric::kDistance;
      EXPECT_EQ(cpu(by_distance, 40), ref(by_distance, 40));
      EXPECT_GE(std::set<std::int32_t>(clusters.begin(), clusters.end()).size(), 3u);
      // No token differs from the mean: all are zero and join the first cluster.
      keys.fill([] { return 1.0f; });
      EXPECT_EQ(cpu(task, 40), Clusters(40, 0));
      EXPECT_EQ(ref(task, 40), Clusters(40, 0));
    }
  });
}

// Planted directions are found, whatever the keys' lengths and their common bias.
void expect_planted_found(KmeansMetric metric) {
  constexpr std::int32_t kDim = 64, kPlanted = 20, kTokens = 640;
  const AttentionShape shape = shape_of(kDim, DType::kBF16);
  std::mt19937 rng(11);
  std::vector<std::vector<float>> directions;
  for (std::int32_t i = 0; i < kPlanted; ++i) directions.push_back(normal_vector(kDim, rng));
  Keys keys(kTokens, shape);
  std::uniform_real_distribution<float> length(0.5f, 4.0f);
  std::normal_distribution<float> noise(0.0f, 0.2f);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const float scale = metric == KmeansMetric::kCosine ? length(rng) : 1.0f;
    for (std::int64_t c = 0; c < kDim; ++c)
      keys.set(t, c, 5.0f + scale * (directions[t / 16 % kPlanted][c] + noise(rng)));
  }
  const KvRun run = keys.run(0, kTokens);
  const KmeansTask task{
      .runs = {&run, 1}, .shape = shape, .n_clusters = 2 * kPlanted, .iterations = 10, .metric = metric};
  const Clusters clusters = cpu(task, kTokens);
  // A cluster holds a single direction.
  std::vector<std::set<std::int64_t>> planted(2 * kPlanted);
  for (std::int64_t t = 0; t < kTokens; ++t) planted[clusters[t]].insert(t / 16 % kPlanted);
  for (const auto& of_cluster : planted) EXPECT_LE(of_cluster.size(), 1u);
}

TEST(Kmeans, FindsPlantedDirections) {
  expect_planted_found(KmeansMetric::kCosine);
}
TEST(Kmeans, FindsPlantedPositions) {
  expect_planted_found(KmeansMetric::kDistance);
}

}  // namespace
}  // namespace mneme
