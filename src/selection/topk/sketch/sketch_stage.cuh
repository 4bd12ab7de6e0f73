// A warp's work on a stage of eight pages of 32 by their sketches (sketch.h), which cp.async copies to shared memory while
// the stage before is scored:
//
//   means         tensor cores, the eight pages at once: rows are query heads, columns pages
//   coefficients  tensor cores, a page at a time: rows are tokens, columns the upper and lower bf16 halves of four heads'
//                 weights, so that lane (g, t) has four tokens of head t. A nibble n becomes 16 + n, taken off the products
//
// Which coefficients and tokens an mma takes at once is free as long as both operands agree: a lane reads four
// coefficients of four neighbouring tokens, two bytes each, and a warp's reads have no bank conflict.
#pragma once

#include "src/cuda/read_once.cuh"
#include "src/selection/topk/head_terms.cuh"

namespace mneme::cuda::sketches {

constexpr int kWarps = kScoreWarps;
constexpr int kTokens = kKvPageTokens, kPages = 8, kRing = 2;  // pages of a stage
constexpr int kHeads = 8;                                      // query heads of a KV head, at most
constexpr float kBias = 24;                                    // of 16 + n over n - 8

// A stage with up to 16 bytes before and behind it, in units of 16 bytes.
__host__ __device__ constexpr int stage_bytes(int entry_bytes) {
  return (kPages * entry_bytes + 15) / 16 * 16 + 16;
}

// What a stage's pages add to all of their tokens, and the factor of their coefficients.
struct PageParts {
  float all[kPages][kHeads], step[kPages];
};

__device__ __forceinline__ int word_at(const std::uint8_t* at) {
  return *reinterpret_cast<const std::uint16_t*>(at);
}
__device__ __forceinline__ float half_at(const std::uint8_t* at) {
  return __half2float(__ushort_as_half(*reinterpret_cast<const std::uint16_t*>(at)));
}
// Two signed bytes as bf16: 128 + the lower seven bits, less 128 or, where the sign is set, 256.
__device__ __forceinline__ std::uint32_t signed_pair(int word) {
  const std::uint32_t y = __byte_perm(static_cast<std::uint32_t>(word), 0, 0x4140);
  const std::uint32_t low = (y & 0x007f007fu) | 0x43004300u, sign = (y & 0x00800080u) | 0x43004300u;
  const __nv_bfloat162 v =
      __hsub2(reinterpret_cast<const __nv_bfloat162&>(low), reinterpret_cast<const __nv_bfloat162&>(sign));
  return reinterpret_cast<const std::uint32_t&>(v);
}

// Nibble kAt of two words, as bf16 values 16 + n.
template <int kAt>
__device__ __forceinline__ std::uint32_t nibble_pair(std::uint32_t words) {
  const std::uint32_t at = kAt == 0 ? words << 3 : words >> (kAt > 0 ? 4 * kAt - 3 : 0);
  return (at & 0x00780078u) | 0x41804180u;
}

// The queries of a group of at most eight, as lanes take them; in shared memory, for all warps.
template <int kDim>
struct Queries {
  uint2 of_lanes[kDim / 16][kWarp];  // channels 16 i + 4 t .. + 3 of head g

  // Called by the whole block, which synchronises before it reads them.   q [group][D] bf16
  __device__ __forceinline__ void load(const void* q, int group) {
    for (int i = threadIdx.x; i < kDim / 16 * kWarp; i += blockDim.x) {
      const int head = i % kWarp / 4, channel = i / kWarp * 16 + i % 4 * 4;
      const auto* from = static_cast<const __nv_bfloat16*>(q) + head * kDim + channel;
      (&of_lanes[0][0])[i] = head < group ? __ldcg(reinterpret_cast<const uint2*>(from)) : uint2{0, 0};
    }
  }
};

// What a lane's query heads add to all pages. Groups of at most eight; up to 16 coefficients a step.
template <int kTiles, int kSteps>
struct Heads {
  std::uint32_t weights[kTiles][kSteps][2];  // of column g: half g % 2 of head 4 tile + g / 2
  float base, spread, bias;                  // of head g; bias: kBias times the sum of its weights

  //   terms [group]
  __device__ __forceinline__ void load(const HeadTerms* terms, int group, int rank, float alpha) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    static_assert(kTermParts == 16, "four lanes of a head, four parts each");
    const HeadTerms& own = terms[min(g, group - 1)];
    const auto parts = [&](const float(&of)[kTermParts]) {
      const float4 four = __ldcg(reinterpret_cast<const float4*>(of) + t);
      return warp_sum<4>(four.x + four.y + four.z + four.w);
    };
    base = alpha * parts(own.base), spread = fmaxf(0.0f, alpha * alpha * parts(own.spread));
    load_weights(terms, group, rank);
  }

  __device__ __forceinline__ void load_weights(const HeadTerms* terms, int n_heads, int rank) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    bias = 0;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int head = 4 * tile + g / 2;
      float sum = 0;
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float v[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int c = 16 * step + 8 * half + 4 * i + t;
            const float x = head < n_heads && c < rank ? __ldcg(terms[head].of_basis + c) : 0.0f;
            v[i] = widen(narrow<__nv_bfloat16>(x));
            if (g % 2 == 1) v[i] = widen(narrow<__nv_bfloat16>(x - v[i]));
            sum += v[i];
          }
          weights[tile][step][half] = pack<__nv_bfloat16>(v[0], v[1]);
        }
      sum = warp_sum<4>(sum);
      sum += __shfl_xor_sync(~0u, sum, 4);                      // both halves
      const float of_own = __shfl_sync(~0u, sum, 8 * (g % 4));  // head 4 tile + g % 4
      if (g / 4 == tile) bias = kBias * of_own;
    }
  }
};

// The parts of a stage's pages, times `unit`. Columns of the mma are pages, so that lane (g, t) has pages 2 t and 2 t + 1 of
// head g.
template <int kDim, int kTiles, int kSteps>
__device__ __forceinline__ void page_parts(const Queries<kDim>& q, const Heads<kTiles, kSteps>& heads,
                                           const std::uint8_t* stage, int entry_bytes, int rank, float alpha,
                                           float unit, PageParts& parts) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const float limit = spread_limit_of(static_cast<float>(kTokens));
  const std::uint8_t* mean = stage + g * entry_bytes + 4 * t;
  float even[4] = {}, odd[4] = {};  // two chains of sums
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i)
    mma<__nv_bfloat16>(i % 2 == 0 ? even : odd, q.of_lanes[i][lane].x, 0, q.of_lanes[i][lane].y, 0,
                       signed_pair(word_at(mean + 16 * i)), signed_pair(word_at(mean + 16 * i + 2)));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int page = 2 * t + i;
    const std::uint8_t* scales = stage + page * entry_bytes + kDim + rank * (kTokens / 2);
    const float step = alpha * half_at(scales + 2), variance = variance_of(scales[4]);
    const float all = fmaf(alpha * half_at(scales), even[i] + odd[i], heads.base) +
                      gain_of(heads.spread * variance, limit) - step * heads.bias;
    parts.all[page][g] = unit * all;
    if (g == 0) parts.step[page] = unit * step;
  }
  __syncwarp();
}

// Values of the lane's tokens of a page, 4 g to 4 g + 3, for each tile's head t.
template <int kDim, int kTiles, int kSteps>
__device__ __forceinline__ void page_tokens(const Heads<kTiles, kSteps>& heads, const std::uint8_t* stage,
                                            int entry_bytes, int rank, const PageParts& parts, int page,
                                            float (&x)[kTiles][4]) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const std::uint8_t* nibbles = stage + page * entry_bytes + kDim + 2 * g;  // of coefficient 0
  float dots[kTiles][2][4] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step > 0 && 16 * step >= rank) break;
    const auto at = [&](int i) {
      return static_cast<std::uint32_t>(word_at(nibbles + min(16 * step + 4 * i + t, rank - 1) * (kTokens / 2)));
    };
    const std::uint32_t low = at(0) | at(1) << 16, high = at(2) | at(3) << 16;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const std::uint32_t(&w)[2] = heads.weights[tile][step];
      mma<__nv_bfloat16>(dots[tile][0], nibble_pair<0>(low), nibble_pair<1>(low), nibble_pair<0>(high),
                         nibble_pair<1>(high), w[0], w[1]);
      mma<__nv_bfloat16>(dots[tile][1], nibble_pair<2>(low), nibble_pair<3>(low), nibble_pair<2>(high),
                         nibble_pair<3>(high), w[0], w[1]);
    }
  }
  const float step = parts.step[page];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const float all = parts.all[page][4 * tile + t];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      x[tile][i] = fmaf(step, dots[tile][i / 2][2 * (i % 2)] + dots[tile][i / 2][2 * (i % 2) + 1], all);
  }
}

// Consecutive pages, of which the warp takes stages, and its ring.
struct Pages {
  const std::byte *entries, *ring;
  int bytes, n;  // of an entry; pages

  // rings: of all warps
  __device__ __forceinline__ Pages(const std::byte* from, int entry_bytes, int n_pages, const std::byte* rings)
      : entries(from),
        ring(rings + static_cast<int>(threadIdx.x) / kWarp * kRing * stage_bytes(entry_bytes)),
        bytes(entry_bytes),
        n(n_pages) {}
  // Copies the stage at page `at` to the ring. Every call is one group of copies.
  __device__ __forceinline__ void fetch(int at, int slot) const {
    if (at < n) {
      const std::byte* from = entries + static_cast<std::int64_t>(at) * bytes;
      const std::uint32_t to = shared_address(ring + slot * stage_bytes(bytes));
      const int skew = static_cast<int>(reinterpret_cast<std::uintptr_t>(from) % 16),
                all = min(kPages, n - at) * bytes + skew;
      for (int i = static_cast<int>(threadIdx.x) % kWarp * 16; i < all; i += kWarp * 16)
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(
                         to + static_cast<std::uint32_t>(i)),
                     "l"(from - skew + i), "r"(min(16, all - i)), "l"(read_once())
                     : "memory");
    }
    copy_async_commit();
  }
  // Prefetches the stage to L2; correct whatever may still be written there.
  __device__ __forceinline__ void prefetch(int at) const {
#if __CUDA_ARCH__ >= 900
    if (at >= n || threadIdx.x % kWarp != 0) return;
    const std::byte* from = entries + static_cast<std::int64_t>(at) * bytes;
    const int skew = static_cast<int>(reinterpret_cast<std::uintptr_t>(from) % 16);
    asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(from - skew),
                 "r"(static_cast<std::uint32_t>((min(kPages, n - at) * bytes + skew) / 16 * 16)), "l"(read_once()));
#endif
  }
  // The stages at pages first, first + step, ...
  __device__ __forceinline__ void fetch_first(int first, int step) const {
#pragma unroll
    for (int i = 0; i < kRing; ++i) fetch(first + i * step, i);
  }
  __device__ __forceinline__ const std::uint8_t* stage(int at, int slot) const {
    const std::byte* from = entries + static_cast<std::int64_t>(at) * bytes;
    return reinterpret_cast<const std::uint8_t*>(ring + slot * stage_bytes(bytes)) +
           reinterpret_cast<std::uintptr_t>(from) % 16;
  }
};

}  // namespace mneme::cuda::sketches
