// What k-means takes of keys: whole numbers x, whose scales need the mean of all keys and the largest of them, and the
// digits of a centroid. kmeans.h says how they are made, kmeans_cuda.cu what digits are for.
#pragma once

#include <climits>

#include "src/kernels/cuda_common.cuh"
#include "src/kernels/kmeans_cuda.h"

namespace mneme::cuda::kmeans {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kTile = 64;       // centroids in shared memory at once
constexpr int kMostTokens = 8;  // of a warp that goes over all keys
constexpr int kMeanTokens = 64, kMeanStages = 6;
constexpr int kMostPlanes = 2;

struct Args {
  const std::uint16_t* keys;
  std::int16_t *x, *centroids;  // [heads][n][D], [heads][padded][D]
  std::uint8_t* planes;         // [heads][digits][padded][D]
  std::int32_t* bias;           // [heads][padded]
  float* mean;                  // [heads][D]
  std::uint32_t* most;          // [heads]: the largest |y|, as bits
  unsigned long long* total;    // [heads]: the sum of |y|, 32,767 to the largest
  std::uint8_t* finite;         // [heads][n]
  std::uint16_t* cluster;
  int n, dim, n_clusters, padded;  // padded: to a multiple of kTile
};

template <typename T>
__device__ __forceinline__ float key_value(std::uint16_t bits) {
  return widen(reinterpret_cast<const T&>(bits));
}

// Channels of a lane: kDim / 32 neighbours.
template <int kDim>
constexpr int kEach = kDim / kWarp;

template <typename T, int kDim>
__device__ __forceinline__ void load_key(const std::uint16_t* key, float (&v)[kEach<kDim>]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kEach<kDim>; ++i) v[i] = key_value<T>(key[lane * kEach<kDim> + i]);
}
template <int kN>
__device__ __forceinline__ bool all_finite(const float (&v)[kN]) {
  bool ok = true;
#pragma unroll
  for (int i = 0; i < kN; ++i) ok = ok && isfinite(v[i]);
  return __all_sync(~0u, ok);
}

// ---- keys to whole numbers

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) finite_kernel(Args p) {
  const int head = blockIdx.y, first = (blockIdx.x * kWarps + threadIdx.x / kWarp) * kMostTokens;
  if (blockIdx.x == 0 && threadIdx.x == 0) p.most[head] = 0, p.total[head] = 0;
#pragma unroll
  for (int i = 0; i < kMostTokens; ++i) {
    if (first + i >= p.n) break;
    const std::int64_t row = static_cast<std::int64_t>(head) * p.n + first + i;
    float v[kEach<kDim>];
    load_key<T, kDim>(p.keys + row * kDim, v);
    const bool ok = all_finite(v);
    if (threadIdx.x % kWarp == 0) p.finite[row] = ok;
  }
}

// One block a head, a thread a channel: tokens come through a ring, because one addition waits for the one before it.
template <typename T, int kDim>
__global__ void __launch_bounds__(kDim) mean_kernel(Args p) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  __shared__ std::uint8_t finite[kMostKmeansTokens];
  constexpr int kStageBytes = kMeanTokens * kDim * 2;
  const int head = blockIdx.x, tid = threadIdx.x;
  const auto* from = reinterpret_cast<const std::uint8_t*>(p.keys + static_cast<std::int64_t>(head) * p.n * kDim);
  const int bytes = p.n * kDim * 2, n_stages = (p.n + kMeanTokens - 1) / kMeanTokens;
  const auto fetch = [&](int stage) {
    const int begin = stage * kStageBytes, end = min(bytes, begin + kStageBytes);
    const std::uint32_t to = shared_address(memory + stage % kMeanStages * kStageBytes);
    for (int i = begin + tid * 16; i < end; i += kDim * 16) copy_async(to + i - begin, from + i);
    copy_async_commit();
  };
  for (int s = 0; s < kMeanStages - 1; ++s) fetch(s);
  for (int t = tid; t < p.n; t += kDim) finite[t] = p.finite[static_cast<std::int64_t>(head) * p.n + t];
  __syncthreads();
  float sum = 0, n = 0;
  for (int s = 0; s < n_stages; ++s) {
    copy_async_wait<kMeanStages - 2>();
    const int first = s * kMeanTokens, count = min(kMeanTokens, p.n - first);
    const bool all = __syncthreads_and(tid >= count || finite[first + tid]) != 0;
    fetch(s + kMeanStages - 1);
    const auto* keys = reinterpret_cast<const std::uint16_t*>(memory + s % kMeanStages * kStageBytes);
    if (all && count == kMeanTokens) {
#pragma unroll 32
      for (int i = 0; i < kMeanTokens; ++i) sum += key_value<T>(keys[i * kDim + tid]);
      n += kMeanTokens;
      continue;
    }
    for (int i = 0; i < count; ++i) {
      const float v = key_value<T>(keys[i * kDim + tid]);
      if (finite[first + i]) sum += v, n += 1;
    }
  }
  copy_async_wait<0>();
  p.mean[head * kDim + tid] = __fdiv_rn(sum, fmaxf(n, 1.0f));
}

// key - mean, or zero where that is not finite. A whole warp.
template <typename T, int kDim>
__device__ __forceinline__ void centre(const Args& p, int head, int t, float (&y)[kEach<kDim>]) {
  const int lane = threadIdx.x % kWarp;
  load_key<T, kDim>(p.keys + (static_cast<std::int64_t>(head) * p.n + t) * kDim, y);
#pragma unroll
  for (int i = 0; i < kEach<kDim>; ++i) y[i] = __fsub_rn(y[i], p.mean[head * kDim + lane * kEach<kDim> + i]);
  if (all_finite(y)) return;
#pragma unroll
  for (int i = 0; i < kEach<kDim>; ++i) y[i] = 0;
}
template <int kN>
__device__ __forceinline__ float largest_of(const float (&y)[kN]) {
  float most = 0;
#pragma unroll
  for (int i = 0; i < kN; ++i) most = fmaxf(most, fabsf(y[i]));
#pragma unroll
  for (int d = kWarp / 2; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
  return most;
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) most_kernel(Args p) {
  __shared__ float of_warps[kWarps];
  const int head = blockIdx.y, first = (blockIdx.x * kWarps + threadIdx.x / kWarp) * kMostTokens;
  float most = 0;
#pragma unroll 4
  for (int t = first; t < min(p.n, first + kMostTokens); ++t) {
    float y[kEach<kDim>];
    centre<T, kDim>(p, head, t, y);
    most = fmaxf(most, largest_of(y));
  }
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = most;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) most = fmaxf(most, of_warps[w]);
  atomicMax(p.most + head, __float_as_uint(most));
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) total_kernel(Args p) {
  __shared__ unsigned long long of_warps[kWarps];
  const int head = blockIdx.y, first = (blockIdx.x * kWarps + threadIdx.x / kWarp) * kMostTokens;
  const float most = __uint_as_float(p.most[head]);
  if (most < 1e-30f) return;
  const float to_whole = __fdiv_rn(32767.0f, most);
  unsigned sum = 0;  // of 8 tokens, 8 * 256 channels of 32,767 at most
#pragma unroll 4
  for (int t = first; t < min(p.n, first + kMostTokens); ++t) {
    float y[kEach<kDim>];
    centre<T, kDim>(p, head, t, y);
#pragma unroll
    for (int i = 0; i < kEach<kDim>; ++i) sum += __float2int_rn(__fmul_rn(fabsf(y[i]), to_whole));
  }
  sum = __reduce_add_sync(~0u, sum);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  unsigned long long total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += of_warps[w];
  atomicAdd(p.total + head, total);
}

// As kmeans.h has it, of keys that are not all equal.
__device__ __forceinline__ float distance_scale(const Args& p, int head, float largest) {
  const auto total = static_cast<long long>(p.total[head]) * 16, most = 32767LL * p.n * p.dim;
  const float scale = __fdiv_rn(127.0f, largest);
  if (total >= most) return scale;
  return __fmul_rn(scale, static_cast<float>(__ddiv_rn(static_cast<double>(most), static_cast<double>(total))));
}

// x of a key. A whole warp.
template <typename T, int kDim, KmeansMetric kMetric>
__device__ __forceinline__ void round_key(const Args& p, int head, int t, float scale) {
  constexpr int kN = kEach<kDim>;
  float y[kN];
  centre<T, kDim>(p, head, t, y);
  if constexpr (kMetric == KmeansMetric::kCosine) {
    const float most = largest_of(y);
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
  std::int16_t* x = p.x + (static_cast<std::int64_t>(head) * p.n + t) * kDim + threadIdx.x % kWarp * kN;
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    float v = __fmul_rn(y[i], scale);
    if (kMetric == KmeansMetric::kDistance) v = fminf(fmaxf(v, -127.0f), 127.0f);
    x[i] = static_cast<std::int16_t>(__float2int_rn(v));
  }
}

template <typename T, int kDim, KmeansMetric kMetric>
__global__ void __launch_bounds__(kThreads) round_kernel(Args p) {
  const int head = blockIdx.y, first = (blockIdx.x * kWarps + threadIdx.x / kWarp) * kMostTokens;
  float scale = 0;
  if constexpr (kMetric == KmeansMetric::kDistance) {
    const float most = __uint_as_float(p.most[head]);
    if (!(most < 1e-30f)) scale = distance_scale(p, head, most);
  }
#pragma unroll 4
  for (int t = first; t < min(p.n, first + kMostTokens); ++t) round_key<T, kDim, kMetric>(p, head, t, scale);
}

// ---- digits

template <KmeansMetric kMetric>
constexpr int kPlanes = kMetric == KmeansMetric::kDistance ? 1 : 2;  // digits: a and r

template <int kN>
__device__ __forceinline__ int digit(int plane, int x) {
  return kN == 1 ? x : plane == 0 ? x >> 8 : x & 255;
}

// Of centroids that only fill the last tile: below all others, and so is it with a tile's number under it.
template <KmeansMetric kMetric>
constexpr int kNever = kMetric == KmeansMetric::kDistance ? -(1 << 26) : INT_MIN;

// A centroid in all its forms, a whole warp. Those that only fill the last tile are never the best.
template <int kDim, KmeansMetric kMetric>
__device__ __forceinline__ void put_centroid(const Args& p, int head, int c, const int (&v)[kEach<kDim>]) {
  constexpr int kN = kEach<kDim>;
  const int lane = threadIdx.x % kWarp;
  const std::int64_t at = (static_cast<std::int64_t>(head) * p.padded + c) * kDim + lane * kN;
  int norm2 = 0;
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    p.centroids[at + i] = static_cast<std::int16_t>(v[i]);
    norm2 += v[i] * v[i];
#pragma unroll
    for (int plane = 0; plane < kPlanes<kMetric>; ++plane)
      p.planes[((static_cast<std::int64_t>(head) * kPlanes<kMetric> + plane) * p.padded + c) * kDim + lane * kN + i] =
          static_cast<std::uint8_t>(digit<kPlanes<kMetric>>(plane, v[i]));
  }
  norm2 = __reduce_add_sync(~0u, norm2);
  const int bias = kMetric == KmeansMetric::kDistance ? -(norm2 / 2) : 0;
  if (lane == 0) p.bias[head * p.padded + c] = c < p.n_clusters ? bias : kNever<kMetric>;
}

template <int kDim, KmeansMetric kMetric>
__global__ void __launch_bounds__(kThreads) start_kernel(Args p) {
  constexpr int kN = kEach<kDim>;
  const int head = blockIdx.y, c = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (c >= p.padded) return;
  int v[kN];
  const auto t = static_cast<std::int64_t>(c) * p.n / p.n_clusters;
#pragma unroll
  for (int i = 0; i < kN; ++i)
    v[i] =
        c < p.n_clusters ? p.x[(static_cast<std::int64_t>(head) * p.n + t) * kDim + threadIdx.x % kWarp * kN + i] : 0;
  put_centroid<kDim, kMetric>(p, head, c, v);
}

}  // namespace mneme::cuda::kmeans
