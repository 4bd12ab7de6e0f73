// Tokens chosen by their 1-bit keys: what the scan of a context (token_scan_cuda.cu) and the choice among its scores
// (token_select_cuda.cu) have in common.
#pragma once

#include "src/kernels/cluster.cuh"
#include "src/kernels/kv_slots_cuda.cuh"
#include "src/kernels/one_bit_cuda.cuh"
#include "src/kernels/one_bit_cuda.h"

namespace mneme::cuda::tokens {

constexpr int kStage = 128;    // tokens that a warp of the scan takes at once
constexpr int kScanWarps = 8;  // of a block
constexpr int kMostRows = 64, kMostGroup = kMostSlotGroup;

struct Args {
  KvSlots s;
  SlotRows rows;
  KvTables pages;  // where `lists`: of the model's layer
  int model_layer;
  bool lists, early;  // see ChooseTokens
  int layer, group, max_parts;
  std::int64_t width;  // of a row of scores
  float* scores;       // [rows * KV heads][group][width]
  float* pooled;       // [rows * KV heads][width], for this step or the next; of one head its scores
  float4* partial;     // [rows * KV heads][group][max_parts] maximum, sum of exp(alpha * (score - it)), minimum
  int* n_parts;        // [rows * KV heads]
};

// What a row's tokens are chosen of: position i is token base + i. Of [skip, n_now) n_select_now are chosen for this
// step (of a row that chooses ahead by those KV heads that need it), and of [skip, n) n_select for the next; of a row
// that does not choose ahead both are the same. [skip, n_now) are in Args::partial.
struct RowInfo {
  int place, length, base, skip, n, n_select, n_now, n_select_now;
  bool ahead;
  bool by_mass;     // the gate looks at what is missing
  int begin, each;  // its first stage, and those of a KV head
  GroupPool pool;
  float alpha, turnover;
  // Values are pooled as logarithms of probabilities; of one head the order is that of its scores.
  __device__ bool logs(int group) const {
    return group > 1 && (pool == GroupPool::kMaxProb || pool == GroupPool::kMeanProb);
  }
};
// Both numbers are 0: the row chooses nothing.
__device__ inline RowInfo row_info(const Args& p, int row) {
  RowInfo info{};
  const RowOfSlots r = row_at(p.s, p.rows, row);
  if (!r.sparse) return info;
  info.ahead = r.rules.schedule == SlotSchedule::kAhead;
  if (!info.ahead && r.rules.schedule != SlotSchedule::kEveryStep) return info;
  const PageRegion now = page_region(r.rules, r.length), all = info.ahead ? page_region(r.rules, r.length + 1) : now;
  info.by_mass = by_mass(r);
  info.place = r.place, info.length = r.length;
  info.base = all.first / kStage * kStage;
  info.skip = all.first - info.base;
  info.n = all.last - info.base, info.n_select = all.n_select;
  info.n_now = now.last - info.base, info.n_select_now = now.n_select;
  info.pool = r.rules.pool, info.alpha = r.rules.alpha, info.turnover = r.rules.turnover;
  return info;
}

constexpr float kLargest = 3.4028235e38f;
__device__ __forceinline__ float scaled(float alpha, float v) {
  return fminf(alpha * v, kLargest);
}
__device__ __forceinline__ float exp2_of(float x) {
  float v;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
  return v;
}

// Of some of a head's scores.
struct HeadStats {
  float max, sum, min;  // sum of exp(alpha * (score - max)), for logarithms alone
  __device__ void clear() { max = -INFINITY, sum = 0, min = INFINITY; }
};

// Scores of all rows' tokens, and what they add up to (Args::partial).
void scan(const Args& a, const CudaContext& context);
// The best of them; where Args::lists for both steps at once.
void select(const Args& a, SelectWhen when, const CudaContext& context);

}  // namespace mneme::cuda::tokens
