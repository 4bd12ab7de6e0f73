// Cluster sums, updated by tokens that move, and the centroids recomputed from them.
#pragma once

#include "src/selection/cluster/kmeans_keys.cuh"

namespace mneme::cuda::kmeans {

// Adds (sign 1) or subtracts (-1) a warp's tokens to cluster sums: lane i has cluster c of token first + i; below 0:
// none. Integer sums are independent of order, so they never need to be recomputed. Adjacent tokens of one cluster are
// combined: otherwise equal keys would serialise on one address.
template <int kDim, KmeansMetric kMetric>
__device__ __forceinline__ void move_tokens(const KmeansArgs& p, int head, int first, int c, int sign) {
  constexpr int kN = kEach<kDim>, kAtOnce = 8, kDigits = kPlanes<kMetric>;
  const int lane = threadIdx.x % kWarp;
  int sum[kN] = {}, size = 0, to = -1;
  const auto give = [&] {
    if (size == 0) return;
    std::int32_t* sums = p.sums + (static_cast<std::int64_t>(head) * p.padded + to) * kDim + lane;
#pragma unroll
    for (int i = 0; i < kN; ++i) atomicAdd(sums + i * kWarp, sign * sum[i]), sum[i] = 0;
    if (lane == 0) atomicAdd(p.sizes + head * p.padded + to, sign * size);
    size = 0;
  };
  for (unsigned left = __ballot_sync(~0u, c >= 0); left != 0;) {
    int from[kAtOnce];
    Digits<kDim, kDigits> rows[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      from[k] = __ffs(static_cast<int>(left)) - 1;
      left &= left - 1;
      if (from[k] >= 0) rows[k].load(token_digits<kDim, kDigits>(p, head, first + from[k]), token_plane<kDim>(p));
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (from[k] < 0) break;
      const int next = __shfl_sync(~0u, c, from[k]);
      if (next != to) give(), to = next;
#pragma unroll
      for (int i = 0; i < kN; ++i) sum[i] += rows[k].value(i);
      ++size;
    }
  }
  give();
}

// Whether an iteration changed a cluster of the head. After one that did not, the result is final.
__device__ __forceinline__ bool changed(const KmeansArgs& p, int head, int iteration) {
  return p.moved[2 * head + iteration % 2] == iteration;
}

// Recomputes each centroid from its sum, one warp per centroid.
template <int kDim, KmeansMetric kMetric>
__global__ void __launch_bounds__(kThreads) update_kernel(KmeansArgs p, int iteration) {
  constexpr int kN = kEach<kDim>;
  const int head = blockIdx.y, c = blockIdx.x * kWarps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (c >= p.n_clusters || !changed(p, head, iteration)) return;
  const int size = p.sizes[head * p.padded + c];
  if (size == 0) return;
  int sum[kN];
#pragma unroll
  for (int i = 0; i < kN; ++i)
    sum[i] = p.sums[(static_cast<std::int64_t>(head) * p.padded + c) * kDim + i * kWarp + lane];
  double norm2 = 0, length = 0;
  if constexpr (kMetric == KmeansMetric::kCosine) {
    // In the order of the channels, as in the reference.
    for (int from = 0; from < kWarp; ++from)
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const auto s = static_cast<double>(__shfl_sync(~0u, sum[i], from));
        norm2 = __dadd_rn(norm2, __dmul_rn(s, s));
      }
    if (norm2 == 0) return;
    length = __ddiv_rn(32767.0, __dsqrt_rn(norm2));
  }
  int v[kN];
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    const auto s = static_cast<double>(sum[i]);
    v[i] = static_cast<int>(
        rint(kMetric == KmeansMetric::kCosine ? __dmul_rn(s, length) : __ddiv_rn(s, static_cast<double>(size))));
  }
  put_centroid<kDim, kMetric>(p, head, c, v);
}

}  // namespace mneme::cuda::kmeans
