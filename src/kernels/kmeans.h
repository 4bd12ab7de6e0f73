// Groups of keys that point the same way: k-means on the sphere, over centred keys, in whole numbers, so that every
// backend finds the same clusters bit for bit.
//
//   runs        the keys (of [K | V] pairs) of n tokens, in order
//   n_clusters  1 to n
//   cluster     [n]  i32 out: the cluster of each token, below n_clusters; a cluster may be left without tokens
//
// 1. The mean of the keys is subtracted: f32 sums in the order of the tokens, tokens with a NaN or an infinity left
// out.
// 2. A centred key becomes a direction in int16: z = round(2047 y / max |y|), x = round(32767 z / |z|), so that a dot
//    product of two of them is exact in int32. Keys that are not finite, or equal the mean, become zero.
// 3. Centroid c starts at the direction of token c n / n_clusters.
// 4. `iterations` times: each token goes to the centroid with the largest dot product; then, but for the last time, a
//    centroid becomes the direction of the sum of its tokens' directions. One without tokens, or whose sum is zero,
//    stays.
//
// Requires  1 <= n <= 65,535; iterations >= 1.
// Ties      the smaller cluster.
// Rounding  to nearest even everywhere.
// Source    LouisKV clusters keys and leaves the metric open; centring and cosine as in ClusterKV and RetroInfer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/kernels/attention.h"

namespace mneme {

struct KmeansTask {
  std::span<const KvRun> runs;
  AttentionShape shape;
  std::int32_t n_clusters = 1;
  std::int32_t iterations = 1;
};

// Memory that a caller keeps between calls; it belongs to one thread.
struct KmeansScratch {
  std::vector<std::int16_t> directions, centroids, packed;
  std::vector<std::int32_t> sums, before;
};

void kmeans_ref(const KmeansTask& task, std::int32_t* cluster);
void kmeans_cpu(const KmeansTask& task, std::int32_t* cluster, KmeansScratch& scratch);

}  // namespace mneme
