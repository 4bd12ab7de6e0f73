// k-means over centred keys, in integer arithmetic: every backend finds the same clusters, bit for bit.
//
//   runs        the keys (of [K | V] pairs) of n tokens, in order
//   n_clusters  1 to n
//   cluster     [n]  i32 out: the cluster of each token, below n_clusters; clusters may be empty
//
// 1. y = key - mean of the keys, in f32, tokens with a NaN or an infinity left out. Sums over tokens are made by pieces
//    of kKmeansPiece tokens: first over the tokens of a piece in order, then over the pieces in order.
// 2. A key becomes an integer vector x, small enough that the dot product of two of them is exact in int32:
//      kCosine    direction, 16 bits: z = round(2047 y / max |y|), x = round(32767 z / |z|)
//      kDistance  8 bits: x = round(s y), clamped to +-127; s = 127 / m. m is the largest |y| over all tokens and
//                 channels, or 16 times the mean |y| if that is less: a few outliers must not leave the other keys two
//                 or three steps. |y| is summed by pieces too; the channels of a piece are added in order before the
//                 next piece.
//    A key that is not finite becomes zero; under kCosine so does a key that equals the mean.
// 3. Centroid c is initialised to token c n / n_clusters.
// 4. `iterations` times: assign each token to the best centroid; then, except the last time, recompute each centroid
//    from the sum of its tokens. A centroid without tokens, or (kCosine) with a zero sum, is unchanged.
//      kCosine    largest x . c;              c = direction of the sum, length 32767
//      kDistance  largest x . c - |c|^2 / 2;  c = sum / number of tokens; the half is rounded towards zero
//
// Requires  1 <= n <= 65,535; iterations >= 1.
// Ties      the smaller cluster.
// Rounding  to nearest even everywhere else.
// Source    LouisKV clusters keys and leaves the metric open; centring and cosine as in ClusterKV and RetroInfer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mneme/recipe.h"
#include "src/kv/kv_run.h"

namespace mneme {

inline constexpr std::int32_t kKmeansPiece = 64;

struct KmeansTask {
  std::span<const KvRun> runs;
  AttentionShape shape;
  std::int32_t n_clusters = 1;
  std::int32_t iterations = 1;
  KmeansMetric metric = KmeansMetric::kCosine;
};

// Working memory kept by a caller between calls; belongs to one thread.
struct KmeansScratch {
  std::vector<std::int16_t> tokens, centroids, packed;
  std::vector<std::int32_t> bias, sums, before, sizes;
};

void kmeans_ref(const KmeansTask& task, std::int32_t* cluster);
void kmeans_cpu(const KmeansTask& task, std::int32_t* cluster, KmeansScratch& scratch);

}  // namespace mneme
