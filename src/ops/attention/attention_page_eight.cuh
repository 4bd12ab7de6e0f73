// A page of keys and values in 8 bits (kv_quant.h) in shared memory, laid out as in its block, and a warp's work on it;
// the same functions as attention_page.cuh.
//
// Codes of keys become f16 in registers, of values bf16, exactly; their scales are applied to scores, and to
// probabilities before they are rounded to bf16. A channel of the queries, a token and a channel of the output are where
// it suits the loads, 8 codes at a time: rows of 2 D + 8 bytes are 2 words apart in banks, and each load below is free
// of conflicts.
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
// Codes i and j of a key's word as f16: int8 plus kKeyBias, e4m3 times 2^-8. Neither needs the arithmetic that bf16
// does: 1.5 and 4 instructions a pair, in place of 4 and 5.
constexpr float kKeyBias = 1024 + 128;
template <KvCodes kCodes>
__device__ __forceinline__ std::uint32_t key_pair(std::uint32_t word, int i, int j) {
  if constexpr (kCodes == KvCodes::kInt8) {
    // f16 from 1,024 on has steps of 1: its mantissa is the code plus 128.
    return __byte_perm(word ^ 0x80808080u, 0x64646464u, static_cast<unsigned>(i | 4 << 4 | j << 8 | 4 << 12));
  } else {
    const std::uint32_t y = __byte_perm(word, 0, static_cast<unsigned>(4 | i << 4 | 4 << 8 | j << 12));
    return (y & 0x80008000u) | ((y >> 1) & 0x3f803f80u);
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

__device__ __forceinline__ uint4 load_shared_four(std::uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}

template <KvCodes kKind, int kHeadDim>
struct EightBitPage {
  static constexpr int kDim = kHeadDim, kMaxWarps = 12;
  static constexpr bool kWhole = true;  // fetched by one bulk copy, where there are any: fetch_whole()
  static constexpr int kRowBytes = 2 * kDim + 8, kBytes = kKvPageTokens * kRowBytes;
  static_assert(kDim % 64 == 0, "8 codes a lane");
  // Rows in f16, times a power of two that takes the row's largest to 2^14: as exact as bf16, since what is below 2^-28
  // of the largest adds nothing. A product with codes begins at `first` and is `unit` times the product of the rows.
  // The rows lie in shared memory, so that 168 registers suffice for three warps on each of an SM's partitions.
  struct Queries {
    std::uint32_t rows;  // shared address of the lane's A fragments, 512 bytes a step
    float first[2], unit[2];
  };
  using Words = std::uint32_t[PageShape<kDim>::kKeySteps][4];

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
#if __CUDA_ARCH__ >= 900
  // The whole page by a bulk copy, which one thread issues; what of it is no token of the sequence is masked as above.
  static __device__ __forceinline__ void fetch_whole(std::uint32_t page, const std::byte* from, std::uint32_t barrier) {
    barrier_expect(barrier, kBytes);
    copy_bulk_once(page, from, kBytes, barrier);
  }
#endif
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

  // Rows g and g + 8 of q as A fragments: of every 32 channels, lane t has 8 t .. 8 t + 7, as two mma. Called by all
  // warps, which have no earlier queries in use.
  static __device__ __forceinline__ void load_queries(Queries& q, const __nv_bfloat16* low, const __nv_bfloat16* high) {
    __shared__ uint4 shared[PageShape<kDim>::kKeySteps][kWarp];
    const int t = threadIdx.x % 4;
    const auto eight = [&](const __nv_bfloat16* row, int at) {
      return row == nullptr ? uint4{} : __ldcg(reinterpret_cast<const uint4*>(row + at));
    };
    Words rows;
#pragma unroll
    for (int k = 0; k < kDim / 32; ++k) {
      const uint4 a = eight(low, k * 32 + 8 * t), b = eight(high, k * 32 + 8 * t);
      rows[2 * k][0] = a.x, rows[2 * k][1] = b.x, rows[2 * k][2] = a.y, rows[2 * k][3] = b.y;
      rows[2 * k + 1][0] = a.z, rows[2 * k + 1][1] = b.z, rows[2 * k + 1][2] = a.w, rows[2 * k + 1][3] = b.w;
    }
    to_f16(q, rows);
    if (threadIdx.x < kWarp) {
#pragma unroll
      for (int k = 0; k < PageShape<kDim>::kKeySteps; ++k)
        shared[k][threadIdx.x] = {rows[k][0], rows[k][1], rows[k][2], rows[k][3]};
    }
    q.rows = shared_address(&shared[0][threadIdx.x % kWarp]);
    __syncthreads();
  }

  // Loads of a step before the mma of the one before: asm volatile statements keep their order, and a load between two
  // mma would be waited for there.
  static __device__ __forceinline__ void score(float (&s)[kTokenTiles][4], const Queries& q, std::uint32_t page) {
    constexpr int kSteps = kDim / 32;
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
    const std::uint32_t row = page + token_at(0, g) * kRowBytes + 8 * t;
    uint2 v[2][kTokenTiles];
    uint4 of[2][2];
    const auto load = [&](int k) {
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) v[k % 2][j] = load_shared_two(row + j * kRowBytes + k * 32);
#pragma unroll
      for (int half = 0; half < 2; ++half) of[k % 2][half] = load_shared_four(q.rows + (2 * k + half) * 512);
    };
    load(0);
#pragma unroll
    for (auto& to : s) to[0] = to[1] = q.first[0], to[2] = to[3] = q.first[1];
    float scale[kTokenTiles][2];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if (k + 1 < kSteps) {
        load(k + 1);
      } else {
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
          for (int i = 0; i < 2; ++i) scale[j][i] = scale_at(page + token_of(j, i) * kRowBytes + 2 * kDim);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
          const std::uint32_t word = half == 0 ? v[k % 2][j].x : v[k % 2][j].y;
          const uint4& a = of[k % 2][half];
          mma<__half>(s[j], a.x, a.y, a.z, a.w, key_pair<kKind>(word, 0, 1), key_pair<kKind>(word, 2, 3));
        }
    }
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) s[j][i] *= scale[j][i] * q.unit[0], s[j][2 + i] *= scale[j][i] * q.unit[1];
  }

  // Adds a page with scores s, in base 2, masked with -inf.
  static __device__ __forceinline__ void take(RunningSoftmax<kDim>& rows, float (&s)[kTokenTiles][4],
                                              std::uint32_t page) {
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
        // The scale of a token that no row sees is undefined.
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
  // Rows in bf16 as Queries has them.
  static __device__ __forceinline__ void to_f16(Queries& q, Words& rows) {
    constexpr int kLargest = 14;  // exponent
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto pair = [&](int k, int i) -> std::uint32_t& { return rows[k][2 * i + r]; };
      const auto value = [&](int k, int i) {
        return __bfloat1622float2(reinterpret_cast<__nv_bfloat162&>(pair(k, i)));
      };
      float largest = 0;
#pragma unroll
      for (int k = 0; k < PageShape<kDim>::kKeySteps; ++k)
#pragma unroll
        for (int i = 0; i < 2; ++i) largest = fmaxf(largest, fmaxf(fabsf(value(k, i).x), fabsf(value(k, i).y)));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      const int up = min(kLargest + 127 - (__float_as_int(largest) >> 23), 100);
      const float factor = power_of_two(up);
      float sum = 0;
#pragma unroll
      for (int k = 0; k < PageShape<kDim>::kKeySteps; ++k)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 v = value(k, i);
          const __half2 h = __floats2half2_rn(v.x * factor, v.y * factor);
          sum += __low2float(h) + __high2float(h);
          pair(k, i) = reinterpret_cast<const std::uint32_t&>(h);
        }
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      q.first[r] = kKind == KvCodes::kInt8 ? -kKeyBias * sum : 0.0f;
      q.unit[r] = power_of_two(-up) * (kKind == KvCodes::kInt8 ? 1.0f : 256.0f);
    }
  }
  static __device__ __forceinline__ float scale_at(std::uint32_t at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
    return v;
  }
};

}  // namespace mneme::cuda
