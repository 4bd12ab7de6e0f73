// Missing mass of a KV head's selection among single tokens against the speculative selection: group_pool.h's
// missing_mass(), on values as pooled for the selection.
#pragma once

#include "src/selection/topk/token_pool_cuda.cuh"

namespace mneme::cuda::tokens {

constexpr int kMaxSelectBlocks = 16;  // per cluster

// Of some of a KV head's tokens: logarithms of weights are at most `top`; sums of weights are exp(top) times these.
struct Weighed {
  float top, all, missing, any;  // any: nonzero if a token is missing
  __device__ void add(const Weighed& o) {
    const float most = fmaxf(top, o.top);
    const auto scale = [&](float t) { return t == -INFINITY ? 0.0f : __expf(t - most); };
    all = all * scale(top) + o.all * scale(o.top), missing = missing * scale(top) + o.missing * scale(o.top);
    top = most, any = fmaxf(any, o.any);
  }
};

// A token's softmax weight from its pooled value.
struct TokenWeight {
  bool sums;  // the value is a sum of probabilities, not a logarithm
  float times;
  __device__ TokenWeight(const TokenRegion& info, Kind kind)
      : sums(kind == Kind::kSums), times(kind == Kind::kLogs ? 1.0f : info.alpha) {}
  __device__ float log_of(float v) const { return v != v ? -INFINITY : sums ? 0.0f : scaled(times, v); }
  __device__ float of(float v, float top) const {
    if (v != v || top == -INFINITY) return 0;
    return sums ? v : __expf(scaled(times, v) - top);
  }
};

// Weights of a block's share [0, own), of which [skip, own) are candidates: `taken` marks the wanted ones,
// `speculative` those present. value_of: four adjacent values. Called by the whole block.
template <int kThreads, typename F>
__device__ Weighed weigh(const TokenWeight& weight, int skip, int own, const std::uint32_t* taken,
                         const std::uint32_t* speculative, Weighed (&of_warps)[kThreads / kWarp], F&& values_of) {
  const int tid = threadIdx.x, lane = tid % kWarp;
  Weighed sum{-INFINITY, 0, 0, 0};
  const auto each = [&](auto&& f) {
#pragma unroll 1
    for (int i = 4 * tid; i < own; i += 4 * kThreads) {
      const float4 four = values_of(i);
      const float of[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (i + j >= skip && i + j < own) f(i + j, of[j]);
    }
  };
  each([&](int, float v) { sum.top = fmaxf(sum.top, weight.log_of(v)); });
  sum.top = warp_max(sum.top);
  each([&](int i, float v) {
    const float w = weight.of(v, sum.top);
    sum.all += w;
    if (((taken[i / 32] & ~speculative[i / 32]) >> i % 32 & 1) != 0) sum.missing += w, sum.any = 1;
  });
  sum.all = warp_sum(sum.all), sum.missing = warp_sum(sum.missing), sum.any = warp_max(sum.any);
  __syncthreads();
  if (lane == 0) of_warps[tid / kWarp] = sum;
  __syncthreads();
  sum = of_warps[0];
#pragma unroll 1
  for (int w = 1; w < kThreads / kWarp; ++w) sum.add(of_warps[w]);
  return sum;
}

__device__ inline float missing_mass(const Weighed* of_blocks, int blocks) {
  Weighed sum = of_blocks[0];
#pragma unroll 1
  for (int b = 1; b < blocks; ++b) sum.add(of_blocks[b]);
  return sum.any == 0 ? 0.0f : sum.all == 0 ? 1.0f : fminf(sum.missing / sum.all, 1.0f);
}

}  // namespace mneme::cuda::tokens
