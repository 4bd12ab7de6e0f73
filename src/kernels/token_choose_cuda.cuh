// Tokens chosen by their 1-bit keys: what the scan of a context (token_scan_cuda.cu) and the choice among its scores
// (token_choose_cuda.cu) have in common.
#pragma once

#include "src/kernels/cluster.cuh"
#include "src/kernels/one_bit_cuda.cuh"
#include "src/kernels/one_bit_cuda.h"

namespace mneme::cuda::tokens {

constexpr int kStage = 128;    // tokens that a warp of the scan takes at once
constexpr int kScanWarps = 8;  // of a block
constexpr int kMostRows = 64, kMostGroup = kMostSlotGroup;

struct Args {
  KvSlots s;
  SlotRows rows;
  SelectWhen when;
  bool ahead, early;  // see ChooseTokens
  int layer, group, max_parts;
  std::int64_t width;  // of a row of scores
  float* scores;       // [rows * KV heads][group][width]; pooled: row 0
  float4* partial;     // [rows * KV heads][group][max_parts] maximum, sum of exp(alpha * (score - it)), minimum
  int* n_parts;        // [rows * KV heads]
};

// What a row's tokens are chosen of: position i is token base + i, of which [skip, n) count; [skip, n_summed) are in
// Args::partial.
struct RowInfo {
  int place, length, base, skip, n, n_summed, n_select;
  bool ahead;       // for the next step; a KV head that needs one for this step has [skip, n_summed) to choose from
  int begin, each;  // its first stage, and those of a KV head
  GroupPool pool;
  float alpha, turnover;
  // Values are pooled as logarithms of probabilities; of one head the order is that of its scores.
  __device__ bool logs(int group) const {
    return group > 1 && (pool == GroupPool::kMaxProb || pool == GroupPool::kMeanProb);
  }
};
// n_select is 0: the row chooses nothing. A whole warp asks.
__device__ inline RowInfo row_info(const Args& p, int row) {
  RowInfo info{};
  const RowOfSlots r = row_at(p.s, p.rows, row);
  if (!r.sparse) return info;
  info.ahead = p.ahead && r.rules.schedule == SlotSchedule::kAhead;
  if (!info.ahead && !chooses(r, p.when, any_needs_now(p.s, r, p.layer))) return info;
  const bool next = info.ahead || p.when == SelectWhen::kNext;
  const PageRegion region = page_region(r.rules, r.length + (next ? 1 : 0));
  info.place = r.place, info.length = r.length;
  info.base = region.first / kStage * kStage;
  info.skip = region.first - info.base, info.n = region.last - info.base, info.n_select = region.n_select;
  info.n_summed = info.ahead ? page_region(r.rules, r.length).last - info.base : info.n;
  info.pool = r.rules.pool, info.alpha = r.rules.alpha, info.turnover = r.rules.turnover;
  return info;
}

// (max, sum of exp(. - max)) takes another one in.
__device__ __forceinline__ void add_sum(float& max, float& sum, float other_max, float other_sum) {
  const float m = fmaxf(max, other_max);
  if (m > -INFINITY) sum = sum * __expf(max - m) + other_sum * __expf(other_max - m);
  max = m;
}
__device__ __forceinline__ float scaled(float alpha, float v) {
  return fminf(alpha * v, 3.4028235e38f);
}

// Of some of a head's scores.
struct HeadStats {
  float max, sum, min;  // sum of exp(alpha * (score - max)), for logarithms alone
  __device__ void clear() { max = -INFINITY, sum = 0, min = INFINITY; }
  __device__ void merge(const HeadStats& o, float alpha) {
    float m = scaled(alpha, max);
    add_sum(m, sum, scaled(alpha, o.max), o.sum);
    max = fmaxf(max, o.max), min = fminf(min, o.min);
  }
  // Of the whole warp.
  __device__ void reduce(float alpha, bool logs) {
    const float own = max;
#pragma unroll
    for (int d = kWarp / 2; d > 0; d /= 2) {
      max = fmaxf(max, __shfl_xor_sync(~0u, max, d));
      min = fminf(min, __shfl_xor_sync(~0u, min, d));
    }
    if (!logs) return;
    if (max > -INFINITY) sum *= __expf(scaled(alpha, own) - scaled(alpha, max));
    sum = warp_sum(sum);
  }
};

// Scores of all rows' tokens, and what they add up to (Args::partial).
void scan(const Args& a, const CudaContext& context);

}  // namespace mneme::cuda::tokens
