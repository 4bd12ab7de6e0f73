// One page of keys in a thread block's shared memory: its mean, k-means over its Gram matrix, and the packing of values,
// as centroids.h, sketch.h and moments.h specify.
#pragma once

#include "src/cuda/common.cuh"
#include "src/kv/kv_codes.cuh"
#include "src/offload/device_cache_cuda.cuh"
#include "src/selection/summary/key_frame.h"
#include "src/selection/summary/sketch.h"
#include "src/selection/summary/summary_cuda.h"

namespace mneme::cuda {

constexpr int kSummaryThreads = 128, kSummaryWarps = kSummaryThreads / kWarp;
constexpr int kTokensOfLane = kDeviceSummaryTokens / kWarp;
constexpr int kClusterRounds = 6;

// Arrays of a page of n keys in dynamic shared memory. Rows of `x` have a stride of D + 1 floats: the lanes of a warp
// read one channel of 32 keys.
struct PageShared {
  int n, d, k;
  float *x, *centre, *gram, *sums, *means;

  __device__ PageShared(float* base, int n_tokens, int head_dim, int clusters)
      : n(n_tokens),
        d(head_dim),
        k(clusters),
        x(base),
        centre(x + n * (d + 1)),
        gram(centre + d),
        sums(gram + n * n),
        means(sums + k * n) {}
  __device__ __forceinline__ float* key(int t) const { return x + t * (d + 1); }
};
inline std::size_t page_shared_bytes(const UnitEntries& e, int head_dim) {
  const std::size_t n = static_cast<std::size_t>(e.tokens), d = static_cast<std::size_t>(head_dim),
                    k = e.kind == EntryKind::kCentroidSet ? static_cast<std::size_t>(e.rank) : 0;
  const std::size_t of_kind = e.kind == EntryKind::kCentroidSet ? n * n + k * (n + d)
                              : e.kind == EntryKind::kSketch    ? n * static_cast<std::size_t>(e.rank)
                                                                : 0;
  return (n * (d + 1) + d + of_kind) * sizeof(float);
}

// Loads the page's keys less their mean, which goes to `centre`.   token: i -> address of the page's i-th token
template <typename T, typename F>
__device__ __forceinline__ void load_page(const PageShared& s, KvCodes codes, F&& token) {
  for (int i = threadIdx.x; i < s.n * s.d; i += kSummaryThreads) {
    const int t = i / s.d, c = i % s.d;
    s.key(t)[c] = widen(KvRow<T>(token(t), s.d, codes)[c]);
  }
  __syncthreads();
  for (int c = threadIdx.x; c < s.d; c += kSummaryThreads) {
    float sum = 0;
    for (int t = 0; t < s.n; ++t) sum += s.key(t)[c];
    const float mean = sum / static_cast<float>(s.n);
    s.centre[c] = mean;
    for (int t = 0; t < s.n; ++t) s.key(t)[c] -= mean;
  }
  __syncthreads();
}

__device__ __forceinline__ bool page_is_finite(const PageShared& s) {
  bool finite = true;
  for (int i = threadIdx.x; i < s.n * s.d; i += kSummaryThreads) finite = finite && isfinite(s.key(i / s.d)[i % s.d]);
  return __syncthreads_and(finite ? 1 : 0) != 0;
}

// A value and the index that has it.
struct Best {
  float value;
  int at;
};
// The larger of two; of equals, the smaller index.
__device__ __forceinline__ Best larger(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
}
__device__ __forceinline__ Best warp_largest(Best b) {
#pragma unroll
  for (int i = kWarp / 2; i > 0; i /= 2)
    b = larger(b, {__shfl_xor_sync(~0u, b.value, i), __shfl_xor_sync(~0u, b.at, i)});
  return b;
}

// Clusters of a page, in static shared memory.
struct Clusters {
  int of[kDeviceSummaryTokens], sizes[kMaxCentroids];
  float self[kMaxCentroids], variance[kMaxCentroids];
};

// Gram matrix of the keys. Returns whether all of it is finite.
__device__ __forceinline__ bool compute_gram(const PageShared& s) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  bool finite = true;
  for (int t = warp; t < s.n; t += kSummaryWarps)
    for (int i = lane; i < s.n; i += kWarp) {
      float sum = 0;
      for (int c = 0; c < s.d; ++c) sum = fmaf(s.key(t)[c], s.key(i)[c], sum);
      s.gram[t * s.n + i] = sum;
      finite = finite && isfinite(sum);
    }
  return __syncthreads_and(finite ? 1 : 0) != 0;
}

// Assigns every key to the nearest of k seeds. Called by one warp.
__device__ __forceinline__ void seed_clusters(const PageShared& s, Clusters& c) {
  const int lane = threadIdx.x % kWarp, n = s.n;
  float nearest[kTokensOfLane];
  Best next{-INFINITY, n};
#pragma unroll
  for (int i = 0; i < kTokensOfLane; ++i) {
    const int t = i * kWarp + lane;
    if (t < n) next = larger(next, {s.gram[t * n + t], t});
  }
  next = warp_largest(next);
  for (int j = 0; j < s.k; ++j) {
    const int at = next.at;
    next = {-INFINITY, n};
#pragma unroll
    for (int i = 0; i < kTokensOfLane; ++i) {
      const int t = i * kWarp + lane;
      if (t >= n) continue;
      const float distance = s.gram[t * n + t] + s.gram[at * n + at] - 2.0f * s.gram[t * n + at];
      if (j == 0 || distance < nearest[i]) nearest[i] = distance, c.of[t] = j;
      next = larger(next, {nearest[i], t});
    }
    next = warp_largest(next);
  }
}

// One round: means of the clusters, as sums of rows of the Gram matrix, and the nearest of them for every key.
__device__ __forceinline__ void move_clusters(const PageShared& s, Clusters& c) {
  const int tid = threadIdx.x, n = s.n;
  for (int at = tid; at < s.k * n; at += kSummaryThreads) {
    const int j = at / n, i = at % n;
    float sum = 0;
    for (int t = 0; t < n; ++t)
      if (c.of[t] == j) sum += s.gram[t * n + i];
    s.sums[at] = sum;
  }
  __syncthreads();
  if (tid < s.k) {
    float self = 0;
    int size = 0;
    for (int t = 0; t < n; ++t)
      if (c.of[t] == tid) self += s.sums[tid * n + t], ++size;
    c.self[tid] = self, c.sizes[tid] = size;
  }
  __syncthreads();
  for (int t = tid; t < n; t += kSummaryThreads) {
    float best = INFINITY;
    for (int j = 0; j < s.k; ++j) {
      if (c.sizes[j] == 0) continue;
      const auto size = static_cast<float>(c.sizes[j]);
      const float distance = c.self[j] / (size * size) - 2.0f * s.sums[j * n + t] / size;
      if (distance < best) best = distance, c.of[t] = j;
    }
  }
  __syncthreads();
}

// Sizes, means (to `means`) and variances of the clusters; keys are then less their centroids.
__device__ __forceinline__ void settle_clusters(const PageShared& s, Clusters& c) {
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp;
  if (tid < s.k) {
    int size = 0;
    for (int t = 0; t < s.n; ++t) size += c.of[t] == tid ? 1 : 0;
    c.sizes[tid] = size;
  }
  for (int ch = tid; ch < s.d; ch += kSummaryThreads) {
    for (int j = 0; j < s.k; ++j) s.means[j * s.d + ch] = 0;
    for (int t = 0; t < s.n; ++t) s.means[c.of[t] * s.d + ch] += s.key(t)[ch];
  }
  __syncthreads();
  for (int at = tid; at < s.k * s.d; at += kSummaryThreads)
    if (c.sizes[at / s.d] > 0) s.means[at] /= static_cast<float>(c.sizes[at / s.d]);
  __syncthreads();
  for (int t = warp; t < s.n; t += kSummaryWarps) {
    float sum = 0;
    for (int ch = lane; ch < s.d; ch += kWarp) {
      const float x = s.key(t)[ch] - s.means[c.of[t] * s.d + ch];
      s.key(t)[ch] = x;
      sum = fmaf(x, x, sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) s.gram[t] = sum;  // the Gram matrix is done with
  }
  __syncthreads();
  if (tid < s.k) {
    float variance = 0;
    for (int t = 0; t < s.n; ++t)
      if (c.of[t] == tid) variance += s.gram[t] / static_cast<float>(c.sizes[tid]);
    c.variance[tid] = variance;
  }
  __syncthreads();
}

// k-means of a loaded page. False: some key is not finite, and nothing else is computed.
__device__ __forceinline__ bool cluster_page(const PageShared& s, Clusters& c) {
  if (!compute_gram(s)) return false;
  if (threadIdx.x < kWarp) seed_clusters(s, c);
  __syncthreads();
  for (int round = 0; round < kClusterRounds; ++round) move_clusters(s, c);
  settle_clusters(s, c);
  return true;
}

// ---- packing

// variance_code() of spread.h.
__device__ __forceinline__ std::uint8_t variance_code_of(float variance) {
  if (!(variance > 0.0f)) return 0;
  const float code = roundf(log2f(variance) * 6.0f) + 128.0f;
  return static_cast<std::uint8_t>(fminf(fmaxf(code, 1.0f), 255.0f));
}
// Stores x rounded to f16 at an address of any alignment, and returns what was stored.
__device__ __forceinline__ float put_half(float x, std::byte* at) {
  const __half rounded = __float2half_rn(x);
  const std::uint16_t bits = __half_as_ushort(rounded);
  at[0] = static_cast<std::byte>(bits & 0xff), at[1] = static_cast<std::byte>(bits >> 8);
  return __half2float(rounded);
}
__device__ __forceinline__ float inverse_of(float scale) {
  return scale > 0.0f ? 1.0f / scale : 0.0f;
}
__device__ __forceinline__ unsigned nibble_of(float x, float inverse) {
  return static_cast<unsigned>(fminf(fmaxf(rintf(x * inverse), -7.0f), 7.0f) + 8.0f);
}

}  // namespace mneme::cuda
