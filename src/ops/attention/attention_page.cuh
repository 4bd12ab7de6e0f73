// One page of keys and values in shared memory, and a warp's work on it: scores of 16 query rows against its 32 tokens,
// and the weighted sum of its values.
//
// A token's [K | V] is kRowBytes. Its 16-byte pieces are swizzled by token, so that eight tokens' pieces are in
// different banks.
#pragma once

#include "src/cuda/read_once.cuh"
#include "src/kv/kv_tables_cuda.cuh"

namespace mneme::cuda {

template <int kDim>
struct PageShape {
  static constexpr int kRowBytes = 4 * kDim, kPieces = kRowBytes / 16, kBytes = kKvPageTokens * kRowBytes;
  static constexpr int kKeySteps = kDim / 16;  // mma steps over a key
  static constexpr int kValueTiles = kDim / 8;
};

constexpr int kTokenTiles = kKvPageTokens / 8;

template <int kDim>
__device__ __forceinline__ std::uint32_t piece_address(std::uint32_t page, int token, int piece) {
  constexpr int kSwizzled = PageShape<kDim>::kPieces / 8 * 8;  // whole eights; head_dim 80 leaves four pieces
  const int swizzled = piece ^ (token & 7);
  return page + token * PageShape<kDim>::kRowBytes +
         ((kSwizzled == PageShape<kDim>::kPieces || piece < kSwizzled ? swizzled : piece) << 4);
}

// Copies tokens [begin, end) of the page to shared memory. The others, and those without a bit in `there`, become
// zeros: their weight of 0 times a NaN would be NaN. `lane` of kLanes copies its share; the caller commits.
enum class PageReads { kOnce, kByManyBlocks };
template <int kDim, int kLanes, PageReads kReads>
__device__ __forceinline__ void fetch_page(std::uint32_t page, const std::byte* from, int begin, int end, int lane,
                                           std::uint32_t there = ~0u) {
  constexpr int kPieces = PageShape<kDim>::kPieces, kAll = kKvPageTokens * kPieces;
#pragma unroll
  for (int j = 0; j < (kAll + kLanes - 1) / kLanes; ++j) {
    const int i = j * kLanes + lane, token = i / kPieces;
    if (kAll % kLanes != 0 && i >= kAll) break;
    const std::uint32_t bytes = token >= begin && token < end && (there >> token & 1) != 0 ? 16 : 0;
    const std::uint32_t to = piece_address<kDim>(page, token, i % kPieces);
    if constexpr (kReads == PageReads::kOnce) {
      copy_async_once(to, from + i * 16, bytes);
    } else {
      asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from + i * 16), "r"(bytes));
    }
  }
}

// Fetches 32 scattered tokens: lane i has the index of token i, in tokens from `base`. Called by a whole warp.
template <int kDim>
__device__ __forceinline__ void fetch_listed(std::uint32_t page, const std::byte* base, std::int32_t entry, int begin,
                                             int end) {
  constexpr int kPieces = PageShape<kDim>::kPieces;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int j = 0; j < kKvPageTokens * kPieces / kWarp; ++j) {
    const int i = j * kWarp + lane, token = i / kPieces;
    const std::byte* from =
        base + static_cast<std::int64_t>(__shfl_sync(~0u, entry, token)) * PageShape<kDim>::kRowBytes;
    const std::uint32_t bytes = token >= begin && token < end ? 16 : 0;
    copy_async_once(piece_address<kDim>(page, token, i % kPieces), from + i % kPieces * 16, bytes);
  }
}

// Rows g and g + 8 of q as A fragments.   low, high: the rows' values; null: zeros
template <typename T, int kDim>
__device__ __forceinline__ void load_queries(std::uint32_t (&q)[PageShape<kDim>::kKeySteps][4],
                                             const __nv_bfloat16* low, const __nv_bfloat16* high) {
  const int t = threadIdx.x % 4;
  const auto pair = [](const __nv_bfloat16* row, int at) -> std::uint32_t {
    if (row == nullptr) return 0;
    const std::uint32_t v = __ldcg(reinterpret_cast<const unsigned int*>(row + at));
    if constexpr (std::is_same_v<T, __nv_bfloat16>) return v;
    const float2 f = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(v));
    return pack<T>(f.x, f.y);
  };
#pragma unroll
  for (int k = 0; k < PageShape<kDim>::kKeySteps; ++k) {
    q[k][0] = pair(low, k * 16 + 2 * t);
    q[k][1] = pair(high, k * 16 + 2 * t);
    q[k][2] = pair(low, k * 16 + 2 * t + 8);
    q[k][3] = pair(high, k * 16 + 2 * t + 8);
  }
}

// s[j] = q . keys of tokens 8 j .. 8 j + 7
template <typename T, int kDim>
__device__ __forceinline__ void score_page(float (&s)[kTokenTiles][4],
                                           const std::uint32_t (&q)[PageShape<kDim>::kKeySteps][4],
                                           std::uint32_t page) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
    s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll
    for (int k = 0; k < PageShape<kDim>::kKeySteps; k += 2) {
      std::uint32_t b[4];
      load_matrices(b, piece_address<kDim>(page, j * 8 + lane % 8, k * 2 + lane / 8));
      mma<T>(s[j], q[k][0], q[k][1], q[k][2], q[k][3], b[0], b[1]);
      if (k + 1 < PageShape<kDim>::kKeySteps)  // the load after the last key would read values
        mma<T>(s[j], q[k + 1][0], q[k + 1][1], q[k + 1][2], q[k + 1][3], b[2], b[3]);
    }
  }
}

// A warp's state for its 16 rows: running maximum (base 2), sum of weights (this lane's tokens only), output.
template <int kDim>
struct RunningSoftmax {
  float max[2], sum[2];
  float out[PageShape<kDim>::kValueTiles][4];

  __device__ __forceinline__ void clear() {
    max[0] = max[1] = -INFINITY, sum[0] = sum[1] = 0;
#pragma unroll
    for (auto& o : out) o[0] = o[1] = o[2] = o[3] = 0;
  }

  // Turns a page's scores s, in base 2, masked with -inf, into weights. scale: of what was added before.
  __device__ __forceinline__ void weigh(float (&s)[kTokenTiles][4], float (&scale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m = max[r];
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) m = fmaxf(m, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
      const float base = m == -INFINITY ? 0.0f : m;
      scale[r] = exp2f(max[r] - base);
      max[r] = m;
      float total = 0;
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) {
        s[j][2 * r] = exp2f(s[j][2 * r] - base), s[j][2 * r + 1] = exp2f(s[j][2 * r + 1] - base);
        total += s[j][2 * r] + s[j][2 * r + 1];
      }
      sum[r] = sum[r] * scale[r] + total;
    }
  }
  __device__ __forceinline__ void rescale(const float (&scale)[2]) {
#pragma unroll
    for (auto& o : out) o[0] *= scale[0], o[1] *= scale[0], o[2] *= scale[1], o[3] *= scale[1];
  }

  // Adds a page with scores s, in base 2, masked with -inf.
  template <typename T>
  __device__ __forceinline__ void take(float (&s)[kTokenTiles][4], std::uint32_t page) {
    float scale[2];
    weigh(s, scale);
    const int lane = threadIdx.x % kWarp;
    std::uint32_t a[2][4];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      a[k][0] = pack<T>(s[2 * k][0], s[2 * k][1]);
      a[k][1] = pack<T>(s[2 * k][2], s[2 * k][3]);
      a[k][2] = pack<T>(s[2 * k + 1][0], s[2 * k + 1][1]);
      a[k][3] = pack<T>(s[2 * k + 1][2], s[2 * k + 1][3]);
    }
#pragma unroll
    for (int i = 0; i < PageShape<kDim>::kValueTiles; ++i) {
      out[i][0] *= scale[0], out[i][1] *= scale[0], out[i][2] *= scale[1], out[i][3] *= scale[1];
      std::uint32_t b[4];
      load_matrices_transposed(b, piece_address<kDim>(page, lane, kDim / 8 + i));
      mma<T>(out[i], a[0][0], a[0][1], a[0][2], a[0][3], b[0], b[1]);
      mma<T>(out[i], a[1][0], a[1][1], a[1][2], a[1][3], b[2], b[3]);
    }
  }

  // Reduces the sums over all of a row's tokens.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    }
  }
};

// The functions above as decode attention calls them; EightBitPage (attention_page_eight.cuh) has the same for 8 bits.
template <typename T, int kHeadDim>
struct HalfPage {
  static constexpr int kDim = kHeadDim, kBytes = PageShape<kDim>::kBytes, kMaxWarps = 8;
  static constexpr bool kWhole = false;
  using Queries = std::uint32_t[PageShape<kDim>::kKeySteps][4];

  // Token of s[tile][i], and channel of out[tile][i] (i: 0 or 1).
  static __device__ __forceinline__ int token_of(int tile, int i) {
    return tile * 8 + 2 * static_cast<int>(threadIdx.x % 4) + i;
  }
  static __device__ __forceinline__ int channel_of(int tile, int i) { return token_of(tile, i); }
  static __device__ __forceinline__ void fetch(std::uint32_t page, const std::byte* from, int begin, int end,
                                               std::uint32_t there) {
    if (there == ~0u) {
      fetch_page<kDim, kWarp, PageReads::kOnce>(page, from, begin, end, threadIdx.x % kWarp);
    } else {
      fetch_page<kDim, kWarp, PageReads::kOnce>(page, from, begin, end, threadIdx.x % kWarp, there);
    }
  }
  static __device__ __forceinline__ void fetch_listed(std::uint32_t page, const std::byte* base, std::int32_t entry,
                                                      int begin, int end) {
    cuda::fetch_listed<kDim>(page, base, entry, begin, end);
  }
  static __device__ __forceinline__ void load_queries(Queries& q, const __nv_bfloat16* low, const __nv_bfloat16* high) {
    cuda::load_queries<T, kDim>(q, low, high);
  }
  static __device__ __forceinline__ void score(float (&s)[kTokenTiles][4], const Queries& q, std::uint32_t page) {
    score_page<T, kDim>(s, q, page);
  }
  static __device__ __forceinline__ void take(RunningSoftmax<kDim>& rows, float (&s)[kTokenTiles][4],
                                              std::uint32_t page) {
    rows.template take<T>(s, page);
  }
};

}  // namespace mneme::cuda
