// Groups of keys that are alike: k-means over centred keys, in whole numbers, so that every backend finds the same
// clusters bit for bit.
//
//   runs        the keys (of [K | V] pairs) of n tokens, in order
//   n_clusters  1 to n
//   cluster     [n]  i32 out: the cluster of each token, below n_clusters; a cluster may be left without tokens
//
// 1. y = key - mean of the keys, in f32, tokens with a NaN or an infinity left out. Sums over tokens go by pieces of
//    kKmeansPiece of them: first the tokens of a piece in their order, then the pieces in theirs.
// 2. A key becomes x in whole numbers, short enough for the dot product of two of them to be exact in int32:
//      kCosine    its direction, of 16 bits: z = round(2047 y / max |y|), x = round(32767 z / |z|)
//      kDistance  of 8 bits: x = round(s y), cut off at 127 and -127; s = 127 / m. m is the largest |y| over all tokens
//                 and channels, or 16 times the mean |y| where that is less: a few keys far from all others must not
//                 leave the rest two or three steps. |y| is summed in pieces too, whose channels are added up in their
//                 order before the next piece
//    A key that is not finite becomes zero, and so does, under kCosine, one that equals the mean.
// 3. Centroid c starts as token c n / n_clusters.
// 4. `iterations` times: each token goes to the centroid that is nearest; then, but for the last time, a centroid
//    becomes what its tokens' sum points to. One without tokens, or whose sum is zero under kCosine, stays.
//      kCosine    largest x . c;              c = the sum's direction, of length 32767
//      kDistance  largest x . c - |c|^2 / 2;  c = the sum over their number; the half is rounded towards zero
//
// Requires  1 <= n <= 65,535; iterations >= 1.
// Ties      the smaller cluster.
// Rounding  to nearest even everywhere else.
// Source    LouisKV clusters keys and leaves the metric open; centring and cosine as in ClusterKV and RetroInfer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/kernels/attention.h"

namespace mneme {

inline constexpr std::int32_t kKmeansPiece = 64;

enum class KmeansMetric : std::uint8_t { kCosine, kDistance };

struct KmeansTask {
  std::span<const KvRun> runs;
  AttentionShape shape;
  std::int32_t n_clusters = 1;
  std::int32_t iterations = 1;
  KmeansMetric metric = KmeansMetric::kCosine;
};

// Memory that a caller keeps between calls; it belongs to one thread.
struct KmeansScratch {
  std::vector<std::int16_t> tokens, centroids, packed;
  std::vector<std::int32_t> bias, sums, before, sizes;
};

void kmeans_ref(const KmeansTask& task, std::int32_t* cluster);
void kmeans_cpu(const KmeansTask& task, std::int32_t* cluster, KmeansScratch& scratch);

}  // namespace mneme
