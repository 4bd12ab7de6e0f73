// What a query head adds to every summarised unit (HeadTerms of unfused_item.cuh), in kTermParts parts; and the gain by
// a unit's spread.
#pragma once

#include <algorithm>

#include "src/kv/kv_codes.cuh"
#include "src/selection/topk/unfused_item.cuh"

namespace mneme::cuda {

// Thread blocks an item: two on every SM, no more than there are entries. A block's start costs as much as four tiles.
inline int summary_blocks(const UnfusedArgs& a, int per_warp) {
  const int items = a.rows.n * a.s.n_kv_heads, warps = (a.s.index.entries.most + per_warp - 1) / per_warp;
  return std::clamp(2 * sm_count() / items, 1, std::max(1, (warps + kScoreWarps - 1) / kScoreWarps));
}

struct Frame {
  const float *mean, *basis, *covariance, *deviation;
};
__device__ inline Frame frame_of(const DeviceCache& s, const Item& item) {
  const UnitEntries& e = s.index.entries;
  const int d = s.head_dim, r = e.kind == EntryKind::kSketch ? e.rank : 0;
  const float* mean = e.frames + item.index * e.frame_floats;
  return {mean, mean + d, mean + d * (1 + r), mean + d * (1 + r + d)};
}

// A part's share of 0 .. n - 1.
struct PartRange {
  int first, stop;
  __device__ PartRange(int part, int n) : first(part * n / kTermParts), stop((part + 1) * n / kTermParts) {}
};

__device__ inline float warp_dot(const float* a, const float* b, int d) {
  float sum = 0;
  for (int c = threadIdx.x % kWarp; c < d; c += kWarp) sum = fmaf(a[c], b[c], sum);
  return warp_sum(sum);
}

// q^T C q over the part's rows of C, for all queries at once.   q [n_scored][D]
__device__ inline void spread_terms(const DeviceCache& s, const Item& item, const float* q, const Frame& f, int part) {
  __shared__ float of_warps[kScoreWarps][kMaxSlotGroup];
  const int d = s.head_dim, tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp;
  const PartRange rows(part, d);
  const int columns = min(d, kScoreThreads), groups = kScoreThreads / columns, own = tid / columns, c = tid % columns;
  float sum[kMaxSlotGroup] = {};
  if (own < groups) {
#pragma unroll 4
    for (int i = rows.first + own; i < rows.stop; i += groups) {
      const float covariance = __ldg(f.covariance + i * d + c);
#pragma unroll
      for (int g = 0; g < kMaxSlotGroup; ++g)
        if (g < item.n_scored) sum[g] = fmaf(covariance, q[g * d + i], sum[g]);
    }
  }
#pragma unroll
  for (int g = 0; g < kMaxSlotGroup; ++g) {
    if (g >= item.n_scored) continue;
    const float spread = warp_sum(own < groups ? sum[g] * q[g * d + c] : 0.0f);
    if (lane == 0) of_warps[warp][g] = spread;
  }
  __syncthreads();
  if (tid >= item.n_scored) return;
  float spread = 0;
#pragma unroll
  for (int w = 0; w < kScoreWarps; ++w) spread += of_warps[w][tid];
  item.terms[tid].spread[part] = spread;
}

// q . mean of the head whose number the part is; nothing of the others.
__device__ inline void base_terms(const DeviceCache& s, const Item& item, const float* q, const Frame& f, int part) {
  static_assert(kTermParts == kMaxSlotGroup);
  const int g = static_cast<int>(threadIdx.x) - (kScoreThreads - kWarp), d = s.head_dim;  // the last warp
  if (g < 0) return;
  const float base = part < item.n_scored ? warp_dot(q + part * d, f.mean, d) : 0.0f;
  if (g < item.n_scored) item.terms[g].base[part] = g == part ? base : 0.0f;
}

__device__ inline void basis_terms(const DeviceCache& s, const Item& item, const float* q, const Frame& f, int part) {
  const int d = s.head_dim, r = s.index.entries.rank, warp = threadIdx.x / kWarp;
  const PartRange rows(part, r);
  for (int at = warp; at < (rows.stop - rows.first) * item.n_scored; at += kScoreWarps) {
    const int i = rows.first + at / item.n_scored, g = at % item.n_scored;
    const float x = warp_dot(q + g * d, f.basis + i * d, d);
    if (threadIdx.x % kWarp == 0) item.terms[g].of_basis[i] = x * f.deviation[i];
  }
}

// Address of a token of the sinks or of the window.
__device__ inline const std::byte* fixed_token(const UnfusedArgs& p, const Item& item, int position, int stored) {
  const DeviceCache& s = p.s;
  if (s.n_slots == 0) return token_at(p.pages, p.layer, item.seq_slot, item.kv_head, position);
  if (position < item.plan.region.sink)
    return s.slots.data + (item.index * s.n_slots + position / s.unit_tokens) * s.unit_bytes() +
           position % s.unit_tokens * s.token_bytes();
  return resident_token(s, item.plan, p.slot_layer, item.seq_slot, item.kv_head, position, stored);
}

// Sinks and window, as one row of tokens: positions [0, sink) and from `window` on.
struct FixedTokens {
  int sink, window, n;
  __device__ FixedTokens(const UnfusedArgs& p, const Item& item)
      : sink(item.plan.region.sink), window(page_region(item.plan, item.length).window * p.s.unit_tokens) {
    // The region of the next step may begin its window at a token that is yet to come.
    n = sink + max(0, item.stored - window);
  }
  __device__ int position(int i) const { return i < sink ? i : window + i - sink; }
};

// Sums of exp(alpha q . k) over the part's tokens of sinks and window. Eight lanes take a token, 16 bytes at a time.
template <typename T>
__device__ void fixed_terms(const UnfusedArgs& p, const Item& item, const float* q, int part) {
  constexpr int kLanes = 8, kEach = 8;  // of a token; values of 16 bytes
  constexpr int kAtOnce = kScoreThreads / kLanes;
  __shared__ float2 of_warps[kScoreWarps][kMaxSlotGroup];
  const int d = p.s.head_dim, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, own = threadIdx.x % kLanes;
  const FixedTokens fixed(p, item);
  const PartRange tokens(part, fixed.n);
  float max[kMaxSlotGroup], sum[kMaxSlotGroup];
#pragma unroll
  for (int g = 0; g < kMaxSlotGroup; ++g) max[g] = -INFINITY, sum[g] = 0;
  for (int first = tokens.first; first < tokens.stop; first += kAtOnce) {
    const int i = first + static_cast<int>(threadIdx.x) / kLanes;
    float dot[kMaxSlotGroup] = {};
    const std::byte* key = i < tokens.stop ? fixed_token(p, item, fixed.position(i), item.stored) : nullptr;
    for (int c = own * kEach; c < d && key != nullptr; c += kLanes * kEach) {
      const uint4 words = KvRow<T>(key, d, p.s.codes).eight(c);
      const auto* values = reinterpret_cast<const ReadAs<T>*>(&words);
#pragma unroll
      for (int g = 0; g < kMaxSlotGroup; ++g) {
        if (g >= item.n_scored) continue;
        const auto* query =
            reinterpret_cast<const float4*>(q + g * d + c);  // values one by one would conflict in banks
        const float4 a = query[0], b = query[1];
        dot[g] = fmaf(a.x, widen(values[0]), dot[g]), dot[g] = fmaf(a.y, widen(values[1]), dot[g]);
        dot[g] = fmaf(a.z, widen(values[2]), dot[g]), dot[g] = fmaf(a.w, widen(values[3]), dot[g]);
        dot[g] = fmaf(b.x, widen(values[4]), dot[g]), dot[g] = fmaf(b.y, widen(values[5]), dot[g]);
        dot[g] = fmaf(b.z, widen(values[6]), dot[g]), dot[g] = fmaf(b.w, widen(values[7]), dot[g]);
      }
    }
#pragma unroll
    for (int g = 0; g < kMaxSlotGroup; ++g) {
      if (g >= item.n_scored) continue;
      const float log = item.plan.scores.alpha * warp_sum<kLanes>(dot[g]);
      if (key != nullptr) add_sum(max[g], sum[g], log, 1.0f);
    }
  }
#pragma unroll
  for (int g = 0; g < kMaxSlotGroup; ++g) {
    if (g >= item.n_scored) continue;
#pragma unroll
    for (int i = kLanes; i < kWarp; i *= 2)
      add_sum(max[g], sum[g], __shfl_xor_sync(~0u, max[g], i), __shfl_xor_sync(~0u, sum[g], i));
    if (lane == 0) of_warps[warp][g] = {max[g], sum[g]};
  }
  __syncthreads();
  if (threadIdx.x >= item.n_scored) return;
  float most = -INFINITY, total = 0;
#pragma unroll
  for (int w = 0; w < kScoreWarps; ++w) add_sum(most, total, of_warps[w][threadIdx.x].x, of_warps[w][threadIdx.x].y);
  item.terms[threadIdx.x].fixed[part] = {most, total};
}

// The same for keys of any type.
__device__ __forceinline__ void fixed_terms_of(const UnfusedArgs& p, const Item& item, const float* q, int part) {
  if (p.s.codes != KvCodes::kNone) {
    fixed_terms<EightBit>(p, item, q, part);
  } else if (p.s.f16) {
    fixed_terms<__half>(p, item, q, part);
  } else {
    fixed_terms<__nv_bfloat16>(p, item, q, part);
  }
}

// The part's terms of a KV head's queries from its frame. Called by a whole block.   q [n_scored][D]
__device__ inline void frame_terms(const DeviceCache& s, const Item& item, const float* q, int part) {
  const Frame f = frame_of(s, item);
  base_terms(s, item, q, f, part);
  if (s.index.entries.kind == EntryKind::kSketch) basis_terms(s, item, q, f, part);
  spread_terms(s, item, q, f, part);
}

// Prefetches to L2, a line a thread; correct whatever may still be written there.
__device__ __forceinline__ void prefetch_lines(const void* from, int bytes) {
  constexpr int kLine = 128;
  for (int i = static_cast<int>(threadIdx.x) * kLine; i < bytes; i += static_cast<int>(blockDim.x) * kLine)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const std::byte*>(from) + i));
}
__device__ inline void prefetch_frame(const DeviceCache& s, const Item& item, int part) {
  const Frame f = frame_of(s, item);
  const int d = s.head_dim;
  const PartRange rows(part, d);
  prefetch_lines(f.covariance + rows.first * d, (rows.stop - rows.first) * d * 4);
  if (part < item.n_scored) prefetch_lines(f.mean, d * 4);
  if (s.index.entries.kind != EntryKind::kSketch) return;
  const PartRange of_basis(part, s.index.entries.rank);
  prefetch_lines(f.basis + of_basis.first * d, (of_basis.stop - of_basis.first) * d * 4);
}
__device__ inline void prefetch_fixed(const UnfusedArgs& p, const Item& item, int part) {
  const FixedTokens fixed(p, item);
  const PartRange tokens(part, fixed.n);
  for (int i = tokens.first + static_cast<int>(threadIdx.x) / 2; i < tokens.stop; i += kScoreThreads / 2)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(fixed_token(p, item, fixed.position(i), item.stored) +
                                                  threadIdx.x % 2 * (p.s.token_bytes() / 4)));
}

// Prefetches what parts [first, stop) of the terms read, of the frame or (fixed) of sinks and window, for a selection of
// this step.
__device__ __forceinline__ void prefetch_terms(const UnfusedArgs& p, const SlotRow& row, int number, bool fixed,
                                               int first, int stop) {
  if (!row.sparse || p.when != SelectWhen::kNow || row.plan.scores.own_arrays || !has_entries(row.plan.scores.index))
    return;
  Item item;
  item.plan = row.plan, item.seq_slot = row.seq_slot, item.kv_head = number % p.s.n_kv_heads;
  item.length = item.stored = row.length, item.n_scored = p.group;
  item.index = slot_index(p.s, p.slot_layer, row.seq_slot, item.kv_head);
  for (int part = first; part < stop; ++part) {
    if (!fixed) {
      prefetch_frame(p.s, item, part);
    } else if (row.plan.scores.domain == Domain::kAttention) {
      prefetch_fixed(p, item, part);
    }
  }
}

// ---- spread.h

// c of n samples.
__device__ __forceinline__ float spread_limit_of(float n) {
  return n <= 1.0f ? 0.0f : sqrtf(2.0f * logf(n));
}
__device__ __forceinline__ float gain_of(float variance, float c) {
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(variance));
  return variance <= c * c ? 0.5f * variance : c * root - 0.5f * c * c;
}
__device__ __forceinline__ float variance_of(int code) {
  return code == 0 ? 0.0f : exp2f((static_cast<float>(code) - 128.0f) / 6.0f);
}

}  // namespace mneme::cuda
