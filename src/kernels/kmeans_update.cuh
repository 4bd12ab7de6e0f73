// Each centroid to what the sum of its tokens gives.
#pragma once

#include "src/kernels/kmeans_keys.cuh"

namespace mneme::cuda::kmeans {

constexpr int kCentroids = 8;  // of a block

// A block has eight centroids. It finds their tokens, puts them in the order of the centroids, and its warps share them
// out evenly, because some clusters have a thousand and one warp that adds them up would be the time of all. A warp
// adds in registers while the centroid stays: additions in shared memory, four a token and lane, took twice the rest.
// Sums are whole numbers, whose order is no matter.
template <int kDim, KmeansMetric kMetric>
__global__ void __launch_bounds__(kThreads) update_kernel(Args p) {
  constexpr int kN = kEach<kDim>, kAtOnce = 8;
  constexpr int kPiece = 8;  // tokens' clusters that a thread loads at once
  static_assert(kCentroids == kWarps && kMostKmeansTokens * kCentroids <= 1 << 16);
  // Of channels as lanes have them, [channel of a lane][lane], so that a warp's additions meet different banks.
  __shared__ int sums[kCentroids][kDim], sizes[kCentroids], ends[kCentroids], n_found;
  __shared__ std::uint16_t found[kMostKmeansTokens];   // token * kCentroids + centroid
  __shared__ std::uint16_t sorted[kMostKmeansTokens];  // tokens
  const int head = blockIdx.y, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, first = blockIdx.x * kCentroids;
  for (int i = threadIdx.x; i < kCentroids * kDim; i += kThreads) sums[i / kDim][i % kDim] = 0;
  if (threadIdx.x < kCentroids) sizes[threadIdx.x] = 0;
  if (threadIdx.x == 0) n_found = 0;
  __syncthreads();
  const std::uint16_t* cluster = p.cluster + static_cast<std::int64_t>(head) * p.n;
  const bool whole = p.n % kPiece == 0;  // every head's clusters begin at a multiple of 16 bytes then
#pragma unroll 4
  for (int base = 0; base < p.n; base += kThreads * kPiece) {
    const int t = base + static_cast<int>(threadIdx.x) * kPiece;
    std::uint16_t of[kPiece];
    if (whole) {
      uint4 pieces = {~0u, ~0u, ~0u, ~0u};
      if (t < p.n) pieces = *reinterpret_cast<const uint4*>(cluster + t);
      __builtin_memcpy(of, &pieces, sizeof(pieces));
    } else {
#pragma unroll
      for (int i = 0; i < kPiece; ++i) of[i] = t + i < p.n ? cluster[t + i] : std::uint16_t{0xffff};
    }
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      const unsigned c = static_cast<unsigned>(of[i]) - static_cast<unsigned>(first);
      const bool mine = c < kCentroids;
      const unsigned all = __ballot_sync(~0u, mine);
      if (all == 0) continue;
      int at = 0;
      if (lane == 0) at = atomicAdd(&n_found, __popc(all));
      at = __shfl_sync(~0u, at, 0) + __popc(all & ((1u << lane) - 1));
      if (mine) found[at] = static_cast<std::uint16_t>((t + i) * kCentroids + static_cast<int>(c));
    }
  }
  __syncthreads();
  const int n = n_found;
  // The centroid of found[i]; lanes beyond the last have one of their own.
  const auto centroid = [&](int i) { return i < n ? found[i] % kCentroids : kCentroids; };
  const auto each = [&](auto&& f) {
    for (int base = warp * kWarp; base < n; base += kThreads) {
      const int c = centroid(base + lane);
      const unsigned alike = __match_any_sync(~0u, c);
      f(base + lane, c, alike, __popc(alike & ((1u << lane) - 1)));
    }
  };
  each([&](int, int c, unsigned alike, int before) {
    if (c < kCentroids && before == 0) atomicAdd(&sizes[c], __popc(alike));
  });
  __syncthreads();
  if (threadIdx.x < kCentroids) {
    int begin = 0;
    for (int c = 0; c < static_cast<int>(threadIdx.x); ++c) begin += sizes[c];
    ends[threadIdx.x] = begin;  // moves to the end as tokens come
  }
  __syncthreads();
  each([&](int i, int c, unsigned alike, int before) {
    int at = 0;
    if (c < kCentroids && before == 0) at = atomicAdd(&ends[c], __popc(alike));
    at = __shfl_sync(~0u, at, __ffs(alike) - 1) + before;
    if (c < kCentroids) sorted[at] = found[i] / kCentroids;
  });
  __syncthreads();
  const std::int16_t* x = p.x + static_cast<std::int64_t>(head) * p.n * kDim + lane * kN;
  const int begin = n * warp / kWarps, end = n * (warp + 1) / kWarps;
  int sum_of = 0, own[kN] = {};
  const auto give = [&] {
#pragma unroll
    for (int c = 0; c < kN; ++c) atomicAdd(&sums[sum_of][c * kWarp + lane], own[c]), own[c] = 0;
  };
  for (int i = begin; i < end; i += kAtOnce) {
    std::int16_t v[kAtOnce][kN];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int t = sorted[min(i + k, end - 1)];
#pragma unroll
      for (int c = 0; c < kN; ++c) v[k][c] = x[static_cast<std::int64_t>(t) * kDim + c];
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (i + k >= end) break;
      if (i + k >= ends[sum_of]) {
        give();
        while (i + k >= ends[sum_of]) ++sum_of;
      }
#pragma unroll
      for (int c = 0; c < kN; ++c) own[c] += v[k][c];
    }
  }
  if (begin < end) give();
  __syncthreads();
  const int c = first + warp, size = sizes[warp];
  if (c >= p.n_clusters || size == 0) return;
  const int* sum = sums[warp];
  double norm2 = 0, length = 0;
  if constexpr (kMetric == KmeansMetric::kCosine) {
    // In the order of the channels, as the reference has it.
    for (int i = 0; i < kDim; ++i) {
      const auto s = static_cast<double>(sum[i % kN * kWarp + i / kN]);
      norm2 = __dadd_rn(norm2, __dmul_rn(s, s));
    }
    if (norm2 == 0) return;
    length = __ddiv_rn(32767.0, __dsqrt_rn(norm2));
  }
  int v[kN];
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    const auto s = static_cast<double>(sum[i * kWarp + lane]);
    v[i] = static_cast<int>(
        rint(kMetric == KmeansMetric::kCosine ? __dmul_rn(s, length) : __ddiv_rn(s, static_cast<double>(size))));
  }
  put_centroid<kDim, kMetric>(p, head, c, v);
}

}  // namespace mneme::cuda::kmeans
