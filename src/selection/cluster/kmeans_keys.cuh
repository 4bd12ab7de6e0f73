// k-means input: keys to integers x, whose scale needs the mean of all keys and their distances from it, and digits of
// tokens and centroids. kmeans.h defines them, kmeans_cuda.cu uses the digits.
#pragma once

#include <climits>
#include <type_traits>

#include "src/cuda/common.cuh"
#include "src/selection/cluster/kmeans_cuda.h"

namespace mneme::cuda::kmeans {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kTile = 64;           // centroids in shared memory at a time
constexpr int kPieceThreads = 128;  // threads of a block that sums pieces
constexpr int kRoundTokens = 32;    // tokens of a warp that rounds
constexpr int kMaxPlanes = 2;

struct KmeansArgs {
  const std::uint16_t* keys;
  std::uint8_t *x, *planes;    // [heads][digits][n][D], [heads][digits][padded][D]: digits of tokens and centroids
  std::int32_t* bias;          // [heads][padded]
  float *pieces, *counts;      // [heads][pieces][D], [heads][pieces]: sums of keys, and how many are finite
  float* mean;                 // [heads][D]
  float2* spread;              // [heads][pieces]: sum of |y|, largest |y|
  std::int32_t *sums, *sizes;  // [heads][padded][channel of a lane][lane], [heads][padded]: sums of x, cluster sizes
  std::int32_t* moved;         // [heads][2]: the last even and odd iteration that changed a cluster
  std::uint16_t* cluster;
  int n, dim, n_clusters, padded, n_pieces, iterations;  // dim: without padding; padded: rounded up to kTile
};

// ---- sums over pieces: a few adjacent lanes per piece, 8 channels each

template <int kDim>
constexpr int kPieceLanes = kDim / 8;

// Mean of all keys, by the whole block.
template <int kDim>
__device__ __forceinline__ void load_mean(const KmeansArgs& p, int head, float (&mean)[kDim]) {
  for (int c = threadIdx.x; c < kDim; c += blockDim.x) {
    float sum = 0, n = 0;
#pragma unroll 16
    for (int i = 0; i < p.n_pieces; ++i) {
      sum += p.pieces[(static_cast<std::int64_t>(head) * p.n_pieces + i) * kDim + c];
      n += p.counts[head * p.n_pieces + i];
    }
    mean[c] = __fdiv_rn(sum, fmaxf(n, 1.0f));
  }
  __syncthreads();
}

// By channel, over the tokens of a piece: sums of keys, or of |y| and the maximum.
template <bool kSpread>
struct PieceSum {
  float sum[8] = {}, n = 0, most = 0;
  __device__ __forceinline__ void take(const float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum[i] += kSpread ? fabsf(v[i]) : v[i];
      if constexpr (kSpread) most = fmaxf(most, fabsf(v[i]));
    }
    n += 1;
  }
};

// Sums over pieces, of keys, then of keys minus the mean. Keys with a NaN or an infinity are left out.
template <typename T, int kDim, bool kSpread>
__global__ void __launch_bounds__(kPieceThreads) pieces_kernel(KmeansArgs p) {
  constexpr int kLanes = kPieceLanes<kDim>, kAtOnce = 16;
  static_assert(kKmeansPiece % kAtOnce == 0);
  __shared__ float mean_of[kDim];
  const int head = blockIdx.y, lane = threadIdx.x % kWarp, channel = lane % kLanes * 8;
  const int piece = (blockIdx.x * kPieceThreads + threadIdx.x) / kLanes, begin = piece * kKmeansPiece;
  float mean[8] = {};
  if constexpr (kSpread) {
    load_mean(p, head, mean_of);
    if (blockIdx.x == 0)
      for (int c = threadIdx.x; c < kDim; c += kPieceThreads) p.mean[head * kDim + c] = mean_of[c];
#pragma unroll
    for (int i = 0; i < 8; ++i) mean[i] = mean_of[channel + i];
  }
  const auto* keys = p.keys + static_cast<std::int64_t>(head) * p.n * kDim + channel;
  const auto key = [&](int t) {
    return *reinterpret_cast<const uint4*>(keys + static_cast<std::int64_t>(min(t, p.n - 1)) * kDim);
  };
  const unsigned of_piece = (~0u >> (kWarp - kLanes)) << (lane / kLanes * kLanes);  // its lanes
  PieceSum<kSpread> own;
#pragma unroll 1
  for (int first = begin; first < begin + kKmeansPiece; first += kAtOnce) {
    uint4 raw[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) raw[k] = key(first + k);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const auto* channels = reinterpret_cast<const T*>(&raw[k]);
      float v[8], unsound = 0;  // NaN once a channel is not finite
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        v[i] = __fsub_rn(widen(channels[i]), mean[i]);
        unsound = fmaf(v[i], 0.0f, unsound);
      }
      if ((__ballot_sync(~0u, unsound == 0 && first + k < p.n) & of_piece) == of_piece) own.take(v);
    }
  }
  float total = 0;
  if constexpr (kSpread) {
    // In the order of the channels.
#pragma unroll
    for (int from = 0; from < kLanes; ++from)
#pragma unroll
      for (int i = 0; i < 8; ++i) total += __shfl_sync(~0u, own.sum[i], from, kLanes);
    own.most = warp_max<kLanes>(own.most);
  }
  if (piece >= p.n_pieces) return;
  const std::int64_t at = static_cast<std::int64_t>(head) * p.n_pieces + piece;
  if constexpr (kSpread) {
    if (channel == 0) p.spread[at] = {total, own.most};
  } else {
    auto* to = reinterpret_cast<float4*>(p.pieces + at * kDim + channel);
    to[0] = {own.sum[0], own.sum[1], own.sum[2], own.sum[3]};
    to[1] = {own.sum[4], own.sum[5], own.sum[6], own.sum[7]};
    if (channel == 0) p.counts[at] = own.n;
  }
}

// s of kmeans.h. Called by a whole warp.
__device__ __forceinline__ float distance_scale(const KmeansArgs& p, int head) {
  float total = 0, most = 0;
  for (int base = 0; base < p.n_pieces; base += kWarp) {
    const int i = base + static_cast<int>(threadIdx.x) % kWarp;
    const float2 of = i < p.n_pieces ? p.spread[static_cast<std::int64_t>(head) * p.n_pieces + i] : float2{0, 0};
    most = fmaxf(most, of.y);
#pragma unroll
    for (int from = 0; from < kWarp; ++from) total += __shfl_sync(~0u, of.x, from);
  }
  most = warp_max(most);
  if (most < 1e-30f) return 0;
  const float mean = __fdiv_rn(total, static_cast<float>(p.n) * static_cast<float>(p.dim));
  return __fdiv_rn(127.0f, fminf(most, __fmul_rn(16.0f, mean)));
}

// ---- digits: one warp per row, a lane has kDim / 32 adjacent channels

template <KmeansMetric kMetric>
constexpr int kPlanes = kMetric == KmeansMetric::kDistance ? 1 : 2;  // digits: a and r

template <int kDim>
constexpr int kEach = kDim / kWarp;

// A lane's channels of a row: one digit of each per word.
template <int kDim, int kN>
struct Digits {
  using Word = std::conditional_t<kEach<kDim> == 8, std::uint64_t,
                                  std::conditional_t<kEach<kDim> == 4, std::uint32_t, std::uint16_t>>;
  static_assert(sizeof(Word) == kEach<kDim>);
  Word of[kN];
  // row: the row's first plane.
  __device__ __forceinline__ void load(const std::uint8_t* row, std::int64_t plane_bytes) {
#pragma unroll
    for (int plane = 0; plane < kN; ++plane)
      of[plane] = reinterpret_cast<const Word*>(row + plane * plane_bytes)[threadIdx.x % kWarp];
  }
  __device__ __forceinline__ void store(std::uint8_t* row, std::int64_t plane_bytes) const {
#pragma unroll
    for (int plane = 0; plane < kN; ++plane)
      reinterpret_cast<Word*>(row + plane * plane_bytes)[threadIdx.x % kWarp] = of[plane];
  }
  __device__ __forceinline__ void set(const int (&v)[kEach<kDim>]) {
#pragma unroll
    for (int plane = 0; plane < kN; ++plane) {
      std::uint64_t word = 0;
#pragma unroll
      for (int i = 0; i < kEach<kDim>; ++i)
        word |= static_cast<std::uint64_t>((plane + 1 < kN ? v[i] >> 8 : v[i]) & 255) << (8 * i);
      of[plane] = static_cast<Word>(word);
    }
  }
  __device__ __forceinline__ int value(int i) const {
    const int first = static_cast<std::int8_t>(of[0] >> (8 * i));
    return kN == 1 ? first : first * 256 + static_cast<std::uint8_t>(of[kN - 1] >> (8 * i));
  }
};

// Token t's row in the first plane.
template <int kDim, int kN>
__device__ __forceinline__ std::uint8_t* token_digits(const KmeansArgs& p, int head, int t) {
  return p.x + (static_cast<std::int64_t>(head) * kN * p.n + t) * kDim;
}
template <int kDim>
__device__ __forceinline__ std::int64_t token_plane(const KmeansArgs& p) {
  return static_cast<std::int64_t>(p.n) * kDim;
}

// Bias of padding centroids: below all others, also with a tile index packed under it.
template <KmeansMetric kMetric>
constexpr int kNever = kMetric == KmeansMetric::kDistance ? -(1 << 26) : INT_MIN;

// Writes a centroid in all its forms, by a whole warp. Padding centroids are never the best.
template <int kDim, KmeansMetric kMetric>
__device__ __forceinline__ void put_centroid(const KmeansArgs& p, int head, int c, const int (&v)[kEach<kDim>]) {
  constexpr int kN = kPlanes<kMetric>;
  Digits<kDim, kN> digits;
  digits.set(v);
  digits.store(p.planes + (static_cast<std::int64_t>(head) * kN * p.padded + c) * kDim,
               static_cast<std::int64_t>(p.padded) * kDim);
  int norm2 = 0;
#pragma unroll
  for (int i = 0; i < kEach<kDim>; ++i) norm2 += v[i] * v[i];
  norm2 = __reduce_add_sync(~0u, norm2);
  const int bias = kMetric == KmeansMetric::kDistance ? -(norm2 / 2) : 0;
  if (threadIdx.x % kWarp == 0) p.bias[head * p.padded + c] = c < p.n_clusters ? bias : kNever<kMetric>;
}

// ---- keys to integers

// x of a key minus the mean. Called by a whole warp; scale: under kDistance.
template <int kDim, KmeansMetric kMetric>
__device__ __forceinline__ void round_key(float (&y)[kEach<kDim>], float scale, int (&x)[kEach<kDim>]) {
  constexpr int kN = kEach<kDim>;
  bool ok = true;
#pragma unroll
  for (int i = 0; i < kN; ++i) ok = ok && isfinite(y[i]);
  ok = __all_sync(~0u, ok);
#pragma unroll
  for (int i = 0; i < kN; ++i) y[i] = ok ? y[i] : 0.0f;
  if constexpr (kMetric == KmeansMetric::kCosine) {
    float most = 0;
#pragma unroll
    for (int i = 0; i < kN; ++i) most = fmaxf(most, fabsf(y[i]));
    most = warp_max(most);
    scale = 0;
    if (!(most < 1e-30f)) {
      const float first = __fdiv_rn(2047.0f, most);
      int norm2 = 0;
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        y[i] = rintf(__fmul_rn(y[i], first));
        norm2 += static_cast<int>(y[i]) * static_cast<int>(y[i]);
      }
      norm2 = __reduce_add_sync(~0u, norm2);
      scale = __fdiv_rn(32767.0f, __fsqrt_rn(static_cast<float>(norm2)));
    }
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    float v = __fmul_rn(y[i], scale);
    if (kMetric == KmeansMetric::kDistance) v = fminf(fmaxf(v, -127.0f), 127.0f);
    x[i] = __float2int_rn(v);
  }
}

// Initial centroids from tokens first .. last - 1. Called by a whole warp, after its own stores of these tokens.
template <int kDim, KmeansMetric kMetric>
__device__ __forceinline__ void start_centroids(const KmeansArgs& p, int head, int first, int last) {
  constexpr int kN = kPlanes<kMetric>;
  for (int c = (first * p.n_clusters + p.n - 1) / p.n; c < p.n_clusters; ++c) {
    const int t = c * p.n / p.n_clusters;
    if (t >= last) break;
    Digits<kDim, kN> digits;
    digits.load(token_digits<kDim, kN>(p, head, t), token_plane<kDim>(p));
    int v[kEach<kDim>];
#pragma unroll
    for (int i = 0; i < kEach<kDim>; ++i) v[i] = digits.value(i);
    put_centroid<kDim, kMetric>(p, head, c, v);
  }
}

// Every x, the initial centroids, and empty clusters.
template <typename T, int kDim, KmeansMetric kMetric>
__global__ void __launch_bounds__(kThreads) round_kernel(KmeansArgs p) {
  constexpr int kN = kEach<kDim>, kAtOnce = 8;
  static_assert(kMaxKmeansTokens <= 1 << 15);  // a token's index times the number of clusters
  using Words = std::conditional_t<kN == 8, uint4, std::conditional_t<kN == 4, uint2, std::uint32_t>>;
  static_assert(sizeof(Words) == kN * sizeof(std::uint16_t));
  __shared__ float mean_of[kDim];
  const int head = blockIdx.y, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first = (blockIdx.x * kWarps + warp) * kRoundTokens, last = min(p.n, first + kRoundTokens);
  float scale = 0, mean[kN];
  if constexpr (kMetric == KmeansMetric::kDistance) {
    scale = distance_scale(p, head);
#pragma unroll
    for (int i = 0; i < kN; ++i) mean[i] = p.mean[head * kDim + lane * kN + i];
  } else {
    load_mean(p, head, mean_of);
#pragma unroll
    for (int i = 0; i < kN; ++i) mean[i] = mean_of[lane * kN + i];
  }
  const auto* keys = p.keys + static_cast<std::int64_t>(head) * p.n * kDim;
  for (int base = first; base < last; base += kAtOnce) {
    Words rows[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      rows[k] = reinterpret_cast<const Words*>(keys + static_cast<std::int64_t>(min(base + k, last - 1)) * kDim)[lane];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (base + k >= last) break;
      const auto* key = reinterpret_cast<const T*>(&rows[k]);
      float y[kN];
#pragma unroll
      for (int i = 0; i < kN; ++i) y[i] = __fsub_rn(widen(key[i]), mean[i]);
      int x[kN];
      round_key<kDim, kMetric>(y, scale, x);
      Digits<kDim, kPlanes<kMetric>> digits;
      digits.set(x);
      digits.store(token_digits<kDim, kPlanes<kMetric>>(p, head, base + k), token_plane<kDim>(p));
    }
  }
  start_centroids<kDim, kMetric>(p, head, first, last);

  if (blockIdx.x == 0) {
    const int none[kN] = {};
    for (int c = p.n_clusters + warp; c < p.padded; c += kWarps) put_centroid<kDim, kMetric>(p, head, c, none);
    if (threadIdx.x < 2) p.moved[2 * head + threadIdx.x] = -1;
  }
  const int from = blockIdx.x * kThreads + threadIdx.x, step = gridDim.x * kThreads;
  for (int c = from; c < p.padded; c += step) p.sizes[head * p.padded + c] = 0;
  auto* sums = reinterpret_cast<int4*>(p.sums + static_cast<std::int64_t>(head) * p.padded * kDim);
  for (int i = from; i < p.padded * (kDim / 4); i += step) sums[i] = {0, 0, 0, 0};
}

}  // namespace mneme::cuda::kmeans
