// Reduces the scan's per-part statistics of a KV head's scores, and pools four tokens' scores of all heads of a group
// (group_pool.h).
#pragma once

#include "src/selection/topk/token_selection_cuda.cuh"
#include "src/selection/topk/topk_cuda.cuh"

namespace mneme::cuda::tokens {

constexpr int kMaxSelectWarps = 16;

__device__ __forceinline__ float max_nan(float a, float b) {
  float v;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}
__device__ __forceinline__ float min_nan(float a, float b) {
  float v;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
  return value_of_key(__reduce_max_sync(~0u, sort_key(v)));
}
__device__ __forceinline__ float warp_min(float v) {
  return value_of_key(__reduce_min_sync(~0u, sort_key(v)));
}

// How tokens are pooled. kSums adds probabilities directly, 2^(score * times - minus), where their logarithms span
// little enough that none becomes 0 or infinite: one exponential per head instead of two.
enum class Kind : std::uint8_t {
  kOne,    // the scores of the only head
  kPlain,  // scores
  kLogs,   // log probabilities
  kSums,
};

struct Totals {
  float4 parts[kMaxSelectWarps];
  float lse[kMaxGroup];                // kLogs; 0 for heads that do not exist
  alignas(16) float minus[kMaxGroup];  // kSums; infinite for heads that do not exist
  float times, base;                   // kSums
  float low, high;                     // range of the pooled values; kSums: 2^(low - base) and 2^(high - base)
  Kind kind;
};

// Statistics of a head's scores of [skip, n) as a warp has them: every `each`-th part and token from its `sub`-th on.
__device__ __forceinline__ HeadStats stats_of_warp(const TokenArgs& p, const TokenRegion& info, int item, int head,
                                                   int n, int sub, int each) {
  const int lane = threadIdx.x % kWarp;
  const bool logs = info.logs(p.group);
  const float4* parts = p.partial + (static_cast<std::int64_t>(item) * p.group + head) * p.max_parts;
  const int n_parts = __ldcg(p.n_parts + item);
  HeadStats x;
  x.clear();
  const auto add = [&](const float4(&v)[4]) {
    const float before = x.max;
#pragma unroll
    for (int k = 0; k < 4; ++k) x.max = fmaxf(x.max, v[k].x), x.min = fminf(x.min, v[k].z);
    if (logs && x.max > -INFINITY) {
      const float base = scaled(info.alpha, x.max);
      x.sum *= __expf(scaled(info.alpha, before) - base);
#pragma unroll
      for (int k = 0; k < 4; ++k) x.sum += v[k].y * __expf(scaled(info.alpha, v[k].x) - base);
    }
  };
  constexpr float4 kNone = {-INFINITY, 0, INFINITY, 0};
  int i = sub * kWarp + lane;
  do {
    float4 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // loaded before their count is known
      v[k] = kNone;
      if (i + k * each * kWarp < p.max_parts) v[k] = __ldcg(parts + i + k * each * kWarp);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (i + k * each * kWarp >= n_parts) v[k] = kNone;
    add(v);
    i += 4 * each * kWarp;
  } while (i < n_parts);
  const float* scores = p.scores + (static_cast<std::int64_t>(item) * p.group + head) * p.width;
  for (int token = max(info.skip, info.n_now) + sub * kWarp + lane; token < n; token += each * kWarp) {
    const float v = __ldcg(scores + token);
    add({v != v ? kNone : float4{v, 1, v, 0}, kNone, kNone, kNone});
  }
  const float own = x.max;
  x.max = warp_max(x.max), x.min = warp_min(x.min);
  if (logs) {
    x.sum = own > -INFINITY ? x.sum * __expf(scaled(info.alpha, own) - scaled(info.alpha, x.max)) : 0.0f;
    x.sum = warp_sum(x.sum);
  }
  return x;
}

// A head's statistics from those of its 1, 2 or 4 warps, `each` lanes a head.
__device__ __forceinline__ HeadStats merged_warps(const TokenRegion& info, const float4* parts, bool there, int each) {
  HeadStats x;
  x.clear();
  if (there) {
    const float4 v = parts[threadIdx.x % kWarp];
    x.max = v.x, x.sum = v.y, x.min = v.z;
  }
  const float own = x.max;
  for (int d = 1; d < each; d *= 2) {
    x.max = fmaxf(x.max, __shfl_xor_sync(~0u, x.max, d));
    x.min = fminf(x.min, __shfl_xor_sync(~0u, x.min, d));
  }
  x.sum = own > -INFINITY ? x.sum * __expf(scaled(info.alpha, own) - scaled(info.alpha, x.max)) : 0.0f;
  for (int d = 1; d < each; d *= 2) x.sum += __shfl_xor_sync(~0u, x.sum, d);
  return x;
}

// Kind, range and constants of the heads' scores, by the first warp, which has 2^log_each lanes a head.
__device__ __forceinline__ void total_of_heads(const TokenArgs& p, const TokenRegion& info, int log_each, Totals& t) {
  const int lane = threadIdx.x % kWarp, each = 1 << log_each, head = lane >> log_each;
  const bool logs = info.logs(p.group), there = head < p.group;
  const HeadStats x = merged_warps(info, t.parts, there, each);
  const bool any = there && x.max > -INFINITY;
  const float most = scaled(info.alpha, x.max), log_sum = __logf(x.sum);
  const float lse = any ? most + log_sum : INFINITY;  // inf: no probability
  float low = INFINITY, high = -INFINITY;
  if (!logs) {
    if (there) low = x.min, high = x.max;
  } else if (any) {
    low = -(scaled(info.alpha, x.min) - lse), high = most - lse;  // the highest of the heads' minima
  }
  low = warp_min(low), high = warp_max(high);
  if (logs) low = -low;
  Kind kind = p.group == 1 ? Kind::kOne : logs ? Kind::kLogs : Kind::kPlain;
  const bool tame = __all_sync(~0u, !any || most < 1e30f);
  if (logs && info.pool == Pool::kMeanS && tame && high - low < 150.0f) kind = Kind::kSums;  // NaN: no
  if (lane < kMaxGroup) t.lse[lane] = 0, t.minus[lane] = INFINITY;
  __syncwarp();
  const bool first = there && (lane & (each - 1)) == 0;
  if (kind == Kind::kSums) {
    low *= kLog2e, high *= kLog2e;
    const float base = fminf(high, low + 100.0f);  // the minimum: at least 2^-100
    if (first) t.minus[head] = any ? fmaf(x.max, info.alpha * kLog2e, log_sum * kLog2e + base) : INFINITY;
    if (lane == 0) t.times = info.alpha * kLog2e, t.base = base;
  } else {
    if (first) t.lse[head] = lse;
    if (info.pool == Pool::kMeanS && logs) high += __logf(static_cast<float>(p.group));
  }
  if (lane == 0) t.kind = kind, t.low = low, t.high = high;
}

// Log-sum-exps and the range of [skip, n), of which TokenArgs::partial covers [skip, n_now). Called by the whole block,
// up to four warps per head.
template <int kWarps>
__device__ __forceinline__ void total(const TokenArgs& p, const TokenRegion& info, int item, int n, Totals& t) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int log_each = min(2, 31 - __clz(max(1, kWarps / p.group))), each = 1 << log_each, sub = warp & (each - 1);
#pragma unroll 1
  for (int h = warp >> log_each; h < p.group; h += kWarps >> log_each) {
    const HeadStats x = stats_of_warp(p, info, item, h, n, sub, each);
    if (lane == 0) t.parts[(h << log_each) + sub] = {x.max, x.sum, x.min, 0};
  }
  __syncthreads();
  if (warp == 0) total_of_heads(p, info, log_each, t);
  __syncthreads();
}

// Pools four tokens' values (group_pool.h); v has those of the first four heads.
__device__ __forceinline__ float4 pool_four(const TokenArgs& p, const TokenRegion& info, const Totals& t,
                                            const float* scores, float4 (&v)[4]) {
  float out[4] = {}, most[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  const Kind kind = t.kind;
  for (int first = 0;;) {
    if (kind == Kind::kSums) {
      const float4 minus = *reinterpret_cast<const float4*>(t.minus + first);
      const float times = t.times, less[4] = {minus.x, minus.y, minus.z, minus.w};
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        out[0] += exp2_of(fmaf(v[h].x, times, -less[h]));
        out[1] += exp2_of(fmaf(v[h].y, times, -less[h]));
        out[2] += exp2_of(fmaf(v[h].z, times, -less[h]));
        out[3] += exp2_of(fmaf(v[h].w, times, -less[h]));
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float x[4], m = most[i];
#pragma unroll
        for (int h = 0; h < 4; ++h) {
          x[h] = i == 0 ? v[h].x : i == 1 ? v[h].y : i == 2 ? v[h].z : v[h].w;
          if (kind == Kind::kLogs) x[h] = min_nan(info.alpha * x[h], kLargest) - t.lse[first + h];
          m = max_nan(m, x[h]);
        }
        if (kind == Kind::kLogs) {
          const float base = max_nan(m, -kLargest);
          out[i] *= __expf(most[i] - base);
#pragma unroll
          for (int h = 0; h < 4; ++h) out[i] += __expf(x[h] - base);
        } else {
#pragma unroll
          for (int h = 0; h < 4; ++h) out[i] += first + h < p.group ? x[h] : 0.0f;
        }
        most[i] = m;
      }
    }
    first += 4;
    if (first >= p.group) break;
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      v[h] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
      if (first + h < p.group) v[h] = __ldcg(reinterpret_cast<const float4*>(scores + (first + h) * p.width));
    }
  }
  if (kind != Kind::kSums) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (kind == Kind::kLogs) {
        out[i] = info.pool == Pool::kMeanS ? most[i] + __logf(out[i]) : most[i];
      } else {
        out[i] = info.pool == Pool::kMeanQk ? out[i] / static_cast<float>(p.group) : most[i];
      }
    }
  }
  return {out[0], out[1], out[2], out[3]};
}

// Values v are binned by the bits of x = (v - low) * scale + add: for sums of probabilities bins are narrower where the
// sums are small, as bins of their logarithms would be.
struct Bins {
  float low, scale, add, x_low, x_high;
  std::uint32_t shift;
  // Bits of x, in the order of the values; NaN: the lowest.
  __device__ __forceinline__ std::uint32_t key_of(float v) const {
    return __float_as_uint(fminf(fmaxf(fmaf(v - low, scale, add), x_low), x_high));
  }
  __device__ __forceinline__ std::uint32_t least() const { return __float_as_uint(x_low); }
};
__device__ __forceinline__ Bins bins_of(const TokenArgs& p, const Totals& t) {
  Bins b;
  if (t.kind == Kind::kSums) {
    b.low = 0, b.scale = 1, b.add = 0;
    b.x_low = exp2_of(t.low - t.base) * 0.9999f, b.x_high = exp2_of(t.high - t.base) * static_cast<float>(p.group);
    const int span = 32 - __clz(static_cast<int>(__float_as_uint(b.x_high) - __float_as_uint(b.x_low)));
    b.shift = static_cast<std::uint32_t>(max(0, span - topk::kBinBits));
  } else {
    const float range = t.high - t.low;
    b.low = t.low, b.scale = range > 0 && range < INFINITY ? 1.0f / range : 0.0f, b.add = 1;
    b.x_low = 1, b.x_high = 1.99999988f, b.shift = 13;
  }
  return b;
}

}  // namespace mneme::cuda::tokens
