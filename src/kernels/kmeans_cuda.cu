// Assignment is a product of tokens with centroids on tensor cores, which know whole numbers of 8 bits. Under kDistance
// x is one. Under kCosine x is two of them, x = 256 a + r, where r has no sign; each of the four products of digits is
// exact in int32, and so is
//
//   x . c = 2^16 (a . a') + 2^8 (a . r' + r . a') + r . r'
//
// whatever overflows on the way.
//
// A warp has 32 tokens in registers; 64 centroids at a time come through shared memory, the best of each token's is
// kept beside the sums. Under kDistance a product is below 2^22, so that the centroid's number within its tile stands
// in the 4 bits below it, and one maximum keeps both: comparing cost as much as multiplying.
#include <climits>
#include <type_traits>

#include "src/kernels/cuda_common.cuh"
#include "src/kernels/kmeans_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kTile = 64;  // centroids in shared memory at once
constexpr int kAssignThreads = 128, kAssignWarps = kAssignThreads / kWarp;
constexpr int kTokensEach = 32;  // of a warp that assigns
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
  const int head = blockIdx.y, t = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (blockIdx.x == 0 && threadIdx.x == 0) p.most[head] = 0, p.total[head] = 0;
  if (t >= p.n) return;
  const std::int64_t row = static_cast<std::int64_t>(head) * p.n + t;
  float v[kEach<kDim>];
  load_key<T, kDim>(p.keys + row * kDim, v);
  const bool ok = all_finite(v);
  if (threadIdx.x % kWarp == 0) p.finite[row] = ok;
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

constexpr int kMostTokens = 8;  // of a warp

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

template <typename T, int kDim, KmeansMetric kMetric>
__global__ void __launch_bounds__(kThreads) round_kernel(Args p) {
  constexpr int kN = kEach<kDim>;
  const int head = blockIdx.y, t = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (t >= p.n) return;
  float y[kN], scale = 0;
  centre<T, kDim>(p, head, t, y);
  if constexpr (kMetric == KmeansMetric::kDistance) {
    const float most = __uint_as_float(p.most[head]);
    if (!(most < 1e-30f)) scale = distance_scale(p, head, most);
  } else {
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

// ---- each token to its centroid

// c += a b; kA, kB: whether these have signs.
template <bool kA, bool kB>
__device__ __forceinline__ void multiply(int (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
#define MNEME_MMA(A, B)                                                                                             \
  asm("mma.sync.aligned.m16n8k32.row.col.s32." A "." B ".s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                                              \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (kA && kB) {
    MNEME_MMA("s8", "s8");
  } else if constexpr (kA) {
    MNEME_MMA("s8", "u8");
  } else if constexpr (kB) {
    MNEME_MMA("u8", "s8");
  } else {
    MNEME_MMA("u8", "u8");
  }
#undef MNEME_MMA
}

// Rows of kDim bytes in shared memory, whose pieces of 16 bytes lie so that eight rows' meet different banks.
template <int kDim>
__device__ __forceinline__ std::uint32_t plane_address(std::uint32_t plane, int row, int piece) {
  const int turned = kDim == 128 ? piece ^ (row & 7) : piece ^ ((row >> 1) & 3);
  return plane + row * kDim + turned * 16;
}

template <int kDim, int kN>
struct TokenDigits {
  static constexpr int kSteps = kDim / 32;
  std::uint32_t of[kN][kSteps][4];

  // Tokens first .. first + 15, zeros beyond n.
  __device__ __forceinline__ void load(const std::int16_t* x, int first, int n) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first + g + i % 2 * 8, channel = 32 * s + i / 2 * 16 + 4 * t;
        uint2 v{0, 0};
        if (row < n) v = *reinterpret_cast<const uint2*>(x + static_cast<std::int64_t>(row) * kDim + channel);
#pragma unroll
        for (int plane = 0; plane < kN; ++plane) {
          std::uint32_t bytes = 0;
#pragma unroll
          for (int b = 0; b < 4; ++b) {
            const auto of_b = static_cast<std::int16_t>((b < 2 ? v.x : v.y) >> (b % 2 * 16));
            bytes |= static_cast<std::uint32_t>(digit<kN>(plane, of_b) & 255) << (8 * b);
          }
          of[plane][s][i] = bytes;
        }
      }
  }
};

// The best of 16 tokens with 8 centroids. b: [plane][k step, half]; at: the first of the lane's two centroids.
template <int kDim>
__device__ __forceinline__ void compare_cosine(const TokenDigits<kDim, 2>& x, const std::uint32_t (&b)[2][kDim / 16],
                                               int2 bias, int at, int (&best)[2], int (&where)[2]) {
  int high[4] = {}, mixed[4] = {}, low[4] = {bias.x, bias.y, bias.x, bias.y};
#pragma unroll
  for (int s = 0; s < kDim / 32; ++s) {
    multiply<true, true>(high, x.of[0][s], b[0][2 * s], b[0][2 * s + 1]);
    multiply<true, false>(mixed, x.of[0][s], b[1][2 * s], b[1][2 * s + 1]);
    multiply<false, true>(mixed, x.of[1][s], b[0][2 * s], b[0][2 * s + 1]);
    multiply<false, false>(low, x.of[1][s], b[1][2 * s], b[1][2 * s + 1]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Unsigned, because what overflows on the way is made good.
    const auto h = static_cast<unsigned>(high[i]), m = static_cast<unsigned>(mixed[i]);
    const int v = static_cast<int>((((h << 8) + m) << 8) + static_cast<unsigned>(low[i]));
    if (v > best[i / 2]) best[i / 2] = v, where[i / 2] = at + i % 2;
  }
}

// The same, of the tile's j-th eight: the best products with 15 - (2 j + column) in the bits below, so that of equal
// ones the first is largest.
template <int kDim>
__device__ __forceinline__ void compare_distance(const TokenDigits<kDim, 1>& x, const std::uint32_t (&b)[1][kDim / 16],
                                                 int2 bias, int j, int (&best)[2]) {
  int sum[4] = {bias.x, bias.y, bias.x, bias.y};
#pragma unroll
  for (int s = 0; s < kDim / 32; ++s) multiply<true, true>(sum, x.of[0][s], b[0][2 * s], b[0][2 * s + 1]);
#pragma unroll
  for (int i = 0; i < 4; ++i) best[i / 2] = max(best[i / 2], sum[i] * 16 + (15 - 2 * j - i % 2));
}

template <int kDim, KmeansMetric kMetric>
__global__ void __launch_bounds__(kAssignThreads, kMetric == KmeansMetric::kDistance ? 4 : 3) assign_kernel(Args p) {
  constexpr int kN = kPlanes<kMetric>;
  constexpr int kPlaneBytes = kTile * kDim, kStage = kN * kPlaneBytes;
  constexpr int kPieces = kDim / 16;
  static_assert(kTile / 8 * 2 == 16);  // centroids of a lane
  extern __shared__ __align__(16) std::uint8_t memory[];
  __shared__ alignas(16) std::int32_t bias[2][kTile];
  const int tid = threadIdx.x, lane = tid % kWarp, g = lane / 4, t = lane % 4, head = blockIdx.y;
  const int first = (blockIdx.x * kAssignWarps + tid / kWarp) * kTokensEach;
  const std::uint8_t* planes = p.planes + static_cast<std::int64_t>(head) * kN * p.padded * kDim;
  const auto fetch = [&](int tile) {
    if (tile * kTile < p.padded) {
      const std::uint32_t to = shared_address(memory + tile % 2 * kStage);
      for (int i = tid; i < kN * kTile * kPieces; i += kAssignThreads) {
        const int plane = i / (kTile * kPieces), row = i / kPieces % kTile, piece = i % kPieces;
        copy_async(plane_address<kDim>(to + plane * kPlaneBytes, row, piece),
                   planes + (static_cast<std::int64_t>(plane) * p.padded + tile * kTile + row) * kDim + piece * 16);
      }
      if (tid < kTile / 4)
        copy_async(shared_address(&bias[tile % 2][tid * 4]), p.bias + head * p.padded + tile * kTile + tid * 4);
    }
    copy_async_commit();
  };
  fetch(0);
  TokenDigits<kDim, kN> x[2];
#pragma unroll
  for (int m = 0; m < 2; ++m) x[m].load(p.x + static_cast<std::int64_t>(head) * p.n * kDim, first + 16 * m, p.n);
  int best[2][2], where[2][2];
#pragma unroll
  for (int m = 0; m < 2; ++m) best[m][0] = best[m][1] = INT_MIN, where[m][0] = where[m][1] = 0xffff;

  for (int tile = 0; tile * kTile < p.padded; ++tile) {
    fetch(tile + 1);
    copy_async_wait<1>();
    __syncthreads();
    const std::uint32_t at = shared_address(memory + tile % 2 * kStage);
    int of_tile[2][2] = {{INT_MIN, INT_MIN}, {INT_MIN, INT_MIN}};
#pragma unroll(kN == 1 ? 4 : 1)
    for (int j = 0; j < kTile / 8; ++j) {
      std::uint32_t b[kN][kDim / 16];
#pragma unroll
      for (int plane = 0; plane < kN; ++plane)
#pragma unroll
        for (int q = 0; q < kDim / 64; ++q) {
          std::uint32_t four[4];
          load_matrices(four, plane_address<kDim>(at + plane * kPlaneBytes, j * 8 + lane % 8, q * 4 + lane / 8));
#pragma unroll
          for (int i = 0; i < 4; ++i) b[plane][q * 4 + i] = four[i];
        }
      const int2 base = *reinterpret_cast<const int2*>(&bias[tile % 2][j * 8 + 2 * t]);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        if constexpr (kN == 1) {
          compare_distance<kDim>(x[m], b, base, j, of_tile[m]);
        } else {
          compare_cosine<kDim>(x[m], b, base, tile * kTile + j * 8 + 2 * t, best[m], where[m]);
        }
      }
    }
    if constexpr (kN == 1) {
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int v = of_tile[m][r] >> 4, nth = 15 - (of_tile[m][r] & 15);
          if (v > best[m][r]) best[m][r] = v, where[m][r] = tile * kTile + nth / 2 * 8 + 2 * t + nth % 2;
        }
    }
    __syncthreads();
  }
  copy_async_wait<0>();
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int v = best[m][r], c = where[m][r];
#pragma unroll
      for (int d = 1; d < 4; d *= 2) {
        const int other = __shfl_xor_sync(~0u, v, d), other_c = __shfl_xor_sync(~0u, c, d);
        if (other > v || (other == v && other_c < c)) v = other, c = other_c;
      }
      const int token = first + 16 * m + 8 * r + g;
      if (t == 0 && token < p.n)
        p.cluster[static_cast<std::int64_t>(head) * p.n + token] = static_cast<std::uint16_t>(c);
    }
}

// ---- each centroid to its tokens' sum

constexpr int kCentroids = 8;  // of a block

// A block has eight centroids, each of its warps a share of the tokens: some clusters have a thousand of them, and one
// warp that adds them up would be the time of all. Sums are whole numbers, whose order is no matter.
template <int kDim, KmeansMetric kMetric>
__global__ void __launch_bounds__(kThreads) update_kernel(Args p) {
  constexpr int kN = kEach<kDim>, kAtOnce = 8;
  static_assert(kCentroids == kWarps);
  // Of channels as lanes have them, [channel of a lane][lane], so that a warp's additions meet different banks.
  __shared__ int sums[kCentroids][kDim], sizes[kCentroids];
  __shared__ std::uint16_t found[kWarps][8 * kWarp];  // of a warp's 256 tokens
  const int head = blockIdx.y, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, first = blockIdx.x * kCentroids;
  for (int i = threadIdx.x; i < kCentroids * kDim; i += kThreads) sums[i / kDim][i % kDim] = 0;
  if (threadIdx.x < kCentroids) sizes[threadIdx.x] = 0;
  __syncthreads();
  const std::uint16_t* cluster = p.cluster + static_cast<std::int64_t>(head) * p.n;
  const std::int16_t* x = p.x + static_cast<std::int64_t>(head) * p.n * kDim + lane * kN;
  for (int base = warp * 8 * kWarp; base < p.n; base += kWarps * 8 * kWarp) {
    int of[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int t = base + i * kWarp + lane;
      of[i] = t < p.n ? cluster[t] - first : -1;
    }
    int n_found = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool mine = of[i] >= 0 && of[i] < kCentroids;
      const unsigned all = __ballot_sync(~0u, mine);
      if (mine) {
        found[warp][n_found + __popc(all & ((1u << lane) - 1))] =
            static_cast<std::uint16_t>((i * kWarp + lane) * kCentroids + of[i]);
        atomicAdd(&sizes[of[i]], 1);
      }
      n_found += __popc(all);
    }
    __syncwarp();
    for (int i = 0; i < n_found; i += kAtOnce) {
      std::int16_t v[kAtOnce][kN];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int t = base + found[warp][min(i + k, n_found - 1)] / kCentroids;
#pragma unroll
        for (int c = 0; c < kN; ++c) v[k][c] = x[static_cast<std::int64_t>(t) * kDim + c];
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (i + k >= n_found) break;
        int* sum = sums[found[warp][i + k] % kCentroids];
#pragma unroll
        for (int c = 0; c < kN; ++c) atomicAdd(sum + c * kWarp + lane, static_cast<int>(v[k][c]));
      }
    }
    __syncwarp();
  }
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

// ---- launches

std::size_t rounded(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}
int padded_of(int n_clusters) {
  return (n_clusters + kTile - 1) / kTile * kTile;
}

// Places the arrays in `at`; returns how many bytes they take.
std::size_t place(Args& a, int heads, std::byte* at) {
  const auto h = static_cast<std::size_t>(heads), n = static_cast<std::size_t>(a.n),
             d = static_cast<std::size_t>(a.dim), c = static_cast<std::size_t>(a.padded);
  std::size_t used = 0;
  const auto take = [&](auto*& to, std::size_t bytes) {
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(at + used);
    used += rounded(bytes);
  };
  take(a.x, h * n * d * 2);
  take(a.centroids, h * c * d * 2);
  take(a.planes, h * kMostPlanes * c * d);
  take(a.bias, h * c * 4);
  take(a.mean, h * d * 4);
  take(a.most, h * 4);
  take(a.total, h * 8);
  take(a.finite, h * n);
  return used;
}

template <typename Kernel>
void allow(Kernel kernel, int bytes) {
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "the shared memory of k-means");
}

template <typename T, int kDim, KmeansMetric kMetric>
void run(const KmeansCuda& k, const Args& a, const CudaContext& context) {
  constexpr int kMeanBytes = kMeanStages * kMeanTokens * kDim * 2;
  constexpr int kAssignBytes = 2 * kPlanes<kMetric> * kTile * kDim;
  static const bool ready = [] {
    allow(mean_kernel<T, kDim>, kMeanBytes);
    allow(assign_kernel<kDim, kMetric>, kAssignBytes);
    return true;
  }();
  static_cast<void>(ready);
  const auto heads = static_cast<unsigned>(k.n_heads);
  const auto grid = [&](int items, int each) { return dim3(static_cast<unsigned>((items + each - 1) / each), heads); };
  launch(context, "kmeans_finite", finite_kernel<T, kDim>, grid(a.n, kWarps), dim3(kThreads), 0, a);
  launch(context, "kmeans_mean", mean_kernel<T, kDim>, dim3(heads), dim3(kDim), kMeanBytes, a);
  if (kMetric == KmeansMetric::kDistance) {
    launch(context, "kmeans_most", most_kernel<T, kDim>, grid(a.n, kWarps * kMostTokens), dim3(kThreads), 0, a);
    launch(context, "kmeans_total", total_kernel<T, kDim>, grid(a.n, kWarps * kMostTokens), dim3(kThreads), 0, a);
  }
  launch(context, "kmeans_round", round_kernel<T, kDim, kMetric>, grid(a.n, kWarps), dim3(kThreads), 0, a);
  launch(context, "kmeans_start", start_kernel<kDim, kMetric>, grid(a.padded, kWarps), dim3(kThreads), 0, a);
  for (int i = 0; i < k.iterations; ++i) {
    launch(context, "kmeans_assign", assign_kernel<kDim, kMetric>, grid(a.n, kAssignWarps * kTokensEach),
           dim3(kAssignThreads), kAssignBytes, a);
    if (i + 1 < k.iterations)
      launch(context, "kmeans_update", update_kernel<kDim, kMetric>, grid(a.n_clusters, kCentroids), dim3(kThreads), 0,
             a);
  }
}

template <typename T>
void run_as(const KmeansCuda& k, const Args& a, const CudaContext& context) {
  const bool distance = k.metric == KmeansMetric::kDistance;
  if (k.head_dim == 128) {
    distance ? run<T, 128, KmeansMetric::kDistance>(k, a, context) : run<T, 128, KmeansMetric::kCosine>(k, a, context);
  } else {
    distance ? run<T, 64, KmeansMetric::kDistance>(k, a, context) : run<T, 64, KmeansMetric::kCosine>(k, a, context);
  }
}

}  // namespace

std::size_t kmeans_scratch_bytes(std::int32_t n_heads, std::int32_t n, std::int32_t head_dim, std::int32_t n_clusters) {
  Args a{};
  a.n = n, a.dim = head_dim, a.padded = padded_of(n_clusters);
  return place(a, n_heads, nullptr);
}

void kmeans_cuda(const KmeansCuda& k, const CudaContext& context) {
  Args a{};
  a.keys = reinterpret_cast<const std::uint16_t*>(k.keys);
  a.cluster = k.cluster;
  a.n = k.n, a.dim = k.head_dim, a.n_clusters = k.n_clusters, a.padded = padded_of(k.n_clusters);
  place(a, k.n_heads, k.scratch);
  k.f16 ? run_as<__half>(k, a, context) : run_as<__nv_bfloat16>(k, a, context);
}

}  // namespace mneme
