// A page of keys and values in 8 bits (kv_quant.h) in shared memory, as it lies in its block, and a warp's work on it;
// the same functions as attention_page.cuh.
//
// Codes become bf16 in registers, exactly; their scales are applied to scores, and to probabilities before they are
// rounded to bf16. A channel of the queries, a token and a channel of the output are where it suits the loads, 8 codes
// at a time: rows of 2 D + 8 bytes are 2 words apart in banks, and each load below is free of conflicts.
#pragma once

#include "src/kv/kv_codes.cuh"
#include "src/ops/attention/attention_page.cuh"

namespace mneme::cuda {

// Codes of a kind, in pairs. `a` and `b`: words of four codes each; `select`: __byte_perm's that takes two of their
// eight, each twice: codes i and j into bytes 0, 1 and 2, 3.
template <KvCodes kCodes>
__device__ __forceinline__ std::uint32_t code_pair(std::uint32_t a, std::uint32_t b, std::uint32_t select) {
  const std::uint32_t y = __byte_perm(a, b, select);
  if constexpr (kCodes == KvCodes::kInt8) {
    // 128 + the lower seven bits, less 128 or, where the sign is set, 256.
    const std::uint32_t low = (y & 0x007f007fu) | 0x43004300u, sign = (y & 0x00800080u) | 0x43004300u;
    const __nv_bfloat162 v =
        __hsub2(reinterpret_cast<const __nv_bfloat162&>(low), reinterpret_cast<const __nv_bfloat162&>(sign));
    return reinterpret_cast<const std::uint32_t&>(v);
  } else {
    // Exponent and mantissa of e4m3 where bf16 has them: 2^-120 of the value, also where e4m3 is subnormal.
    constexpr std::uint32_t kTwoTo120 = 0x7b807b80u;
    const std::uint32_t bits = (y & 0x80008000u) | ((y >> 4) & 0x07f007f0u);
    const __nv_bfloat162 v =
        __hmul2(reinterpret_cast<const __nv_bfloat162&>(bits), reinterpret_cast<const __nv_bfloat162&>(kTwoTo120));
    return reinterpret_cast<const std::uint32_t&>(v);
  }
}
__host__ __device__ constexpr std::uint32_t select_pair(int i, int j) {
  return static_cast<std::uint32_t>(i | i << 4 | j << 8 | j << 12);
}

__device__ __forceinline__ uint2 load_shared_two(std::uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}

template <KvCodes kKind, int kHeadDim>
struct EightBitPage {
  static constexpr int kDim = kHeadDim, kMaxWarps = 4;  // 128K tokens: 113.9 us a layer, with 8 warps 118.8 (H100)
  static constexpr int kRowBytes = 2 * kDim + 8, kBytes = kKvPageTokens * kRowBytes;
  static_assert(kDim % 64 == 0, "8 codes a lane");
  using Queries = std::uint32_t[PageShape<kDim>::kKeySteps][4];

  // A lane's token of column `column` of the mma of tokens `tile`. Loads of keys (columns g) and of values (columns 2 t
  // and 2 t + 1) then differ in banks.
  static __device__ __forceinline__ int token_at(int tile, int column) { return 4 * (column ^ column >> 2) + tile; }
  // Token of s[tile][i], and channel of out[tile][i] (i: 0 or 1).
  static __device__ __forceinline__ int token_of(int tile, int i) {
    return token_at(tile, 2 * static_cast<int>(threadIdx.x % 4) + i);
  }
  static __device__ __forceinline__ int channel_of(int tile, int i) {
    return tile / 8 * 64 + (2 * static_cast<int>(threadIdx.x % 4) + i) * 8 + tile % 8;
  }

  // Copies the 16-byte pieces that have tokens [begin, end); the others become zeros. What these pieces have of other
  // tokens is masked: their scores by mask_scores(), their values by take().
  static __device__ __forceinline__ void fetch(std::uint32_t page, const std::byte* from, int begin, int end,
                                               std::uint32_t /*there*/) {
    constexpr int kPieces = kBytes / 16;
    const int lane = threadIdx.x % kWarp, first = max(begin, 0) * kRowBytes / 16,
              stop = (min(end, kKvPageTokens) * kRowBytes + 15) / 16;
#pragma unroll
    for (int j = 0; j < (kPieces + kWarp - 1) / kWarp; ++j) {
      const int i = j * kWarp + lane;
      if (kPieces % kWarp != 0 && i >= kPieces) break;
      const std::uint32_t bytes = i >= first && i < stop ? 16 : 0;
      copy_async_once(page + i * 16, from + i * 16, bytes);
    }
  }
  // 32 scattered tokens: lane i has the index of token i, in tokens from `base`.
  static __device__ __forceinline__ void fetch_listed(std::uint32_t page, const std::byte* base, std::int32_t entry,
                                                      int begin, int end) {
    constexpr int kPieces = kRowBytes / 8;
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int i = j * kWarp + lane, token = i / kPieces;
      const std::byte* from = base + static_cast<std::int64_t>(__shfl_sync(~0u, entry, token)) * kRowBytes;
      const std::uint32_t bytes = token >= begin && token < end ? 8 : 0;
      asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 8, %2;" ::"r"(page + i * 8),
                   "l"(from + i % kPieces * 8), "r"(bytes));
    }
  }

  // Rows g and g + 8 of q as A fragments: of every 32 channels, lane t has 8 t .. 8 t + 7, as two mma.
  static __device__ __forceinline__ void load_queries(Queries& q, const __nv_bfloat16* low, const __nv_bfloat16* high) {
    const int t = threadIdx.x % 4;
    const auto eight = [&](const __nv_bfloat16* row, int at) {
      return row == nullptr ? uint4{} : __ldcg(reinterpret_cast<const uint4*>(row + at));
    };
#pragma unroll
    for (int k = 0; k < kDim / 32; ++k) {
      const uint4 a = eight(low, k * 32 + 8 * t), b = eight(high, k * 32 + 8 * t);
      q[2 * k][0] = a.x, q[2 * k][1] = b.x, q[2 * k][2] = a.y, q[2 * k][3] = b.y;
      q[2 * k + 1][0] = a.z, q[2 * k + 1][1] = b.z, q[2 * k + 1][2] = a.w, q[2 * k + 1][3] = b.w;
    }
  }

  // All loads first: asm volatile statements keep their order, and a load between two mma would be waited for there.
  static __device__ __forceinline__ void score(float (&s)[kTokenTiles][4], const Queries& q, std::uint32_t page) {
    constexpr int kSteps = kDim / 32;
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
    const std::uint32_t row = page + token_at(0, g) * kRowBytes + 8 * t;
    uint2 v[kTokenTiles][kSteps];
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) v[j][k] = load_shared_two(row + j * kRowBytes + k * 32);
    float scale[kTokenTiles][2];
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) scale[j][i] = scale_at(page + token_of(j, i) * kRowBytes + 2 * kDim);
#pragma unroll
    for (auto& of : s) of[0] = of[1] = of[2] = of[3] = 0;
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
          const std::uint32_t word = half == 0 ? v[j][k].x : v[j][k].y;
          const std::uint32_t(&of)[4] = q[2 * k + half];
          mma<__nv_bfloat16>(s[j], of[0], of[1], of[2], of[3], code_pair<kKind>(word, 0, select_pair(0, 1)),
                             code_pair<kKind>(word, 0, select_pair(2, 3)));
        }
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) s[j][i] *= scale[j][i], s[j][2 + i] *= scale[j][i];
  }

  // Adds a page with scores s, in base 2, masked with -inf.
  static __device__ __forceinline__ void take(RunningRows<kDim>& rows, float (&s)[kTokenTiles][4], std::uint32_t page) {
    constexpr int kSteps = kDim / 64 * 2;  // of 64 channels and half of the tokens
    const int g = threadIdx.x % kWarp / 4;
    const std::uint32_t row[2] = {page + token_of(0, 0) * kRowBytes + kDim + 8 * g,
                                  page + token_of(0, 1) * kRowBytes + kDim + 8 * g};
    uint2 v[2][2][2];  // of this step and the next one: tokens of tile 2 k + i, column 2 t + j
    const auto load = [&](int step) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          v[step % 2][i][j] = load_shared_two(row[j] + (step % 2 * 2 + i) * kRowBytes + step / 2 * 64);
    };
    float of[kTokenTiles][2], scale[2];
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Of a token that no row sees the memory has anything.
        const bool seen = s[j][i] != -INFINITY || s[j][2 + i] != -INFINITY;
        of[j][i] = scale_at(page + token_of(j, i) * kRowBytes + 2 * kDim + 4);
        if (!seen) of[j][i] = 0;
      }
    load(0);
    rows.weigh(s, scale);
    std::uint32_t a[2][4];
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          a[k][2 * i + r] =
              pack<__nv_bfloat16>(s[2 * k + i][2 * r] * of[2 * k + i][0], s[2 * k + i][2 * r + 1] * of[2 * k + i][1]);
    // The maximum seldom changes after a few pages.
    if (__any_sync(~0u, scale[0] != 1.0f || scale[1] != 1.0f)) rows.rescale(scale);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step + 1 < kSteps) load(step + 1);
      const int k = step % 2, c = step / 2;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const auto pair = [&](int i) {
          const uint2 &low = v[k][i][0], &high = v[k][i][1];
          return e < 4 ? code_pair<kKind>(low.x, high.x, select_pair(e % 4, e % 4 + 4))
                       : code_pair<kKind>(low.y, high.y, select_pair(e % 4, e % 4 + 4));
        };
        mma<__nv_bfloat16>(rows.out[c * 8 + e], a[k][0], a[k][1], a[k][2], a[k][3], pair(0), pair(1));
      }
    }
  }

 private:
  static __device__ __forceinline__ float scale_at(std::uint32_t at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
    return v;
  }
};

}  // namespace mneme::cuda
