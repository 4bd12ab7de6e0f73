// Shared parts of the scan (token_scan_cuda.cu) and the selection (token_select_cuda.cu) of tokens by their 1-bit keys.
#pragma once

#include "src/cuda/cluster.cuh"
#include "src/offload/device_cache_cuda.cuh"
#include "src/selection/index/one_bit_cuda.cuh"
#include "src/selection/index/one_bit_cuda.h"

namespace mneme::cuda {
struct HeadTerms;  // head_terms.cuh
}

namespace mneme::cuda::tokens {

constexpr int kStage = 128;    // tokens per warp and iteration of the scan
constexpr int kScanWarps = 8;  // warps per block
constexpr int kMaxRows = 64, kMaxGroup = kMaxSlotGroup;

struct TokenArgs {
  DeviceCache s;
  SlotRows rows;
  KvTables pages;  // where `lists`: tables with the model's layer
  int model_layer;
  bool lists, early;  // see SelectTokens
  int layer, group, max_parts;
  std::int64_t width;  // of a row of scores
  float* scores;       // [rows * KV heads][group][width]
  float* pooled;       // [rows * KV heads][width], for this step or the next; with one head its scores
  float4* partial;     // [rows * KV heads][group][max_parts] maximum, sum of exp(alpha * (score - maximum)), minimum
  int* n_parts;        // [rows * KV heads]
  // [rows * KV heads][group]: tokens are scored by their pages' sketches; null: by 1-bit keys.
  HeadTerms* terms;
  bool terms_of_scan;
};

// Candidates of a row: position i is token base + i. Of [skip, n_now) n_select_now are selected for this step (with
// speculative selection by the KV heads that need it), and of [skip, n) n_select for the next; without speculative
// selection both are the same. TokenArgs::partial covers [skip, n_now).
struct TokenRegion {
  int seq_slot, base, skip, n, n_select, n_now, n_select_now;
  bool speculative;
  bool by_mass;     // the gate compares missing mass
  int begin, each;  // the row's first stage; stages per KV head
  Pool pool;
  float alpha;
  // Values are pooled as log probabilities; with one head its scores give the same order.
  __device__ bool logs(int group) const { return group > 1 && (pool == Pool::kMaxS || pool == Pool::kMeanS); }
};
// Both counts are 0: the row selects nothing.
__device__ inline TokenRegion row_info(const TokenArgs& p, int row) {
  TokenRegion info{};
  const SlotRow r = row_at(p.s, p.rows, row);
  if (!r.sparse) return info;
  info.speculative = r.plan.schedule == ScheduleKind::kSpeculative;
  if (!info.speculative && r.plan.schedule != ScheduleKind::kEveryStep) return info;
  const PageRegion now = page_region(r.plan, r.length),
                   all = info.speculative ? page_region(r.plan, r.length + 1) : now;
  info.by_mass = by_mass(r);
  info.seq_slot = r.seq_slot;
  info.base = all.first / kStage * kStage;
  info.skip = all.first - info.base;
  info.n = all.last - info.base, info.n_select = all.n_select;
  info.n_now = now.last - info.base, info.n_select_now = now.n_select;
  info.pool = r.plan.scores.pool, info.alpha = r.plan.scores.alpha;
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

// Statistics of some of a head's scores.
struct HeadStats {
  float max, sum, min;  // sum of exp(alpha * (score - max)), only for logarithms
  __device__ void clear() { max = -INFINITY, sum = 0, min = INFINITY; }
};

// Writes scores of all rows' tokens and their statistics (TokenArgs::partial).
void scan(const TokenArgs& a, const CudaContext& context);
void scan_sketches(const TokenArgs& a, const CudaContext& context);
// Selects the best tokens; where TokenArgs::lists for both steps at once.
void select(const TokenArgs& a, SelectWhen when, const CudaContext& context);

}  // namespace mneme::cuda::tokens
