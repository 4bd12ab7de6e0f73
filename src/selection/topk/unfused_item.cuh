// What the kernels of the unfused selection share: their arguments, the candidates of a KV head, its queries.
#pragma once

#include "src/selection/pool/group_pool.h"
#include "src/selection/summary/sketch.h"
#include "src/selection/topk/select_skeleton.cuh"
#include "src/selection/topk/unfused_select_cuda.h"

namespace mneme::cuda {

constexpr int kScoreThreads = 256, kScoreWarps = kScoreThreads / kWarp;

constexpr int kTermParts = 16;

// What a query head adds to every unit, in parts by as many thread blocks.
struct HeadTerms {
  float base[kTermParts];    // q . mean of the head's frame
  float spread[kTermParts];  // q^T C q
  // Largest alpha q . k over sinks and window (Domain::kAttention), and the sum of exp(. - largest).
  float2 fixed[kTermParts];
  float of_basis[kMaxSketchRank];  // of a sketch: (U q)_i times direction i's deviation

  __device__ float sum(const float (&parts)[kTermParts]) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kTermParts; ++i) sum += parts[i];
    return sum;
  }
  // Logarithm of the weight of sinks and window.
  __device__ float fixed_log() const {
    float2 part[kTermParts];
    float max = -INFINITY, total = 0;
#pragma unroll
    for (int i = 0; i < kTermParts; ++i) part[i] = __ldcg(fixed + i), max = fmaxf(max, part[i].x);
    if (max == -INFINITY) return max;
#pragma unroll
    for (int i = 0; i < kTermParts; ++i) total += part[i].y * __expf(part[i].x - max);
    return max + logf(total);
  }
};

struct UnfusedArgs {
  DeviceCache s;
  SlotRows rows;
  KvTables pages;
  SelectWhen when;
  int layer, slot_layer, group;
  std::int64_t width;   // of a row of scores
  float* scores;        // [rows * KV heads][group][width]
  std::int32_t* units;  // [rows * KV heads][max_listed]: selected units
  HeadTerms* terms;     // [rows * KV heads][group]; null: no index and no pool needs them
  bool layers_pooled;   // rows with SelectScope::kLayer: each KV head has one row of scores, the layer's
};

// Candidates of a (row, KV head), in units of `each` ids: pages, or tokens.
struct Item : Candidates {
  SelectionPlan plan;
  int seq_slot, kv_head, length, stored;  // tokens at the step selected for, and stored by now
  std::int64_t index;
  bool ranked;   // selected units are listed from the best
  bool goes_on;  // the previous step's selection is there
  int n_scored;  // rows of scores: query heads, or 1 where the queries are pooled
  float* scores;
  HeadTerms* terms;
};

// The row of a (row, KV head). It is there before a step's first kernel, so that kernels load it while the one before
// them still runs: two loads, one after the other.
__device__ __forceinline__ SlotRow row_of(const UnfusedArgs& p, int number) {
  return row_at(p.s, p.rows, number / p.s.n_kv_heads);
}

// Whether the row's KV head selects. `records`: the calling block records what a kept selection does.
__device__ inline bool item_at(const UnfusedArgs& p, const SlotRow& r, int number, bool records, Item& item) {
  item.kv_head = number % p.s.n_kv_heads;
  if (r.seq_slot < 0 || r.plan.scores.own_arrays) return false;
  if (p.when == SelectWhen::kNow && by_mass(r)) {  // the common case, in few instructions
    if (!r.sparse) return false;
  } else if (p.when == SelectWhen::kNow) {
    if (!selects_now(p.s, r, p.slot_layer, item.kv_head, records)) return false;
  } else if (!selects(r, p.when, r.sparse && any_needs_now(p.s, r, p.slot_layer))) {
    return false;
  }
  item.plan = r.plan, item.seq_slot = r.seq_slot, item.goes_on = !r.reset;
  item.stored = r.length;
  item.length = r.length + (p.when == SelectWhen::kNext ? 1 : 0);
  static_cast<Candidates&>(item) = candidates_of(r.plan, item.length);
  item.index = slot_index(p.s, p.slot_layer, r.seq_slot, item.kv_head);
  // A kept selection of tokens is ranked: as the window grows, later steps attend fewer of them.
  item.ranked = item.each == 1 && r.plan.schedule == ScheduleKind::kBoundary && r.plan.units.tokens == 1;
  if (item.ranked) item.n_select = min(item.n, r.plan.region.n_select);
  item.n_scored = pools_queries(r.plan.scores.pool) ? 1 : p.group;
  if (p.layers_pooled && r.plan.scope == SelectScope::kLayer) item.n_scored = 1, item.plan.scores.pool = Pool::kMaxQk;
  item.scores = p.scores + static_cast<std::int64_t>(number) * p.group * p.width;
  item.terms = p.terms + static_cast<std::int64_t>(number) * p.group;
  return item.n_select > 0;
}

// Tokens of a unit: `each` tokens, or a page.
__device__ __forceinline__ int tokens_of_unit(const Item& item) {
  return item.plan.units.tokens == 1 ? item.each : item.plan.units.tokens;
}

// The group's queries, or their pool, as f32 in shared memory: [n_scored][head_dim].
__device__ inline void load_queries(const UnfusedArgs& p, const Item& item, float* q) {
  const int d = p.s.head_dim;
  const auto* from = static_cast<const __nv_bfloat16*>(p.s.selection.last_q) + item.index * p.group * d;
  const auto at = [&](int g, int c) {
    const std::uint16_t bits = __ldcg(reinterpret_cast<const std::uint16_t*>(from) + g * d + c);
    return widen(__ushort_as_bfloat16(bits));
  };
  for (int i = threadIdx.x; i < item.n_scored * d; i += kScoreThreads) {
    float v = at(i / d, i % d);
    if (pools_queries(item.plan.scores.pool)) {
      const bool most = item.plan.scores.pool == Pool::kMaxQ;
      for (int g = 1; g < p.group; ++g) v = most ? fmaxf(v, at(g, i)) : v + at(g, i);
      if (!most) v /= static_cast<float>(p.group);
    }
    q[i] = v;
  }
  __syncthreads();
}

// The entries of a KV head.
__device__ __forceinline__ const std::byte* entries_of(const UnfusedArgs& p, const Item& item) {
  const UnitEntries& e = p.s.index.entries;
  return e.data + item.index * e.most * static_cast<std::int64_t>(e.bytes);
}

}  // namespace mneme::cuda

namespace mneme {

// HeadTerms of all rows, and the scores of summarised units (UnitEntries::summarised). Sets of centroids: the second has
// the terms of sinks and window too.
void compute_head_terms_cuda(const cuda::UnfusedArgs& args, const CudaContext& context);
void score_summaries_cuda(const cuda::UnfusedArgs& args, const CudaContext& context);
void score_centroids_cuda(const cuda::UnfusedArgs& args, const CudaContext& context);

// Scores of pages of 32 by sketches, by tensor cores; and, where a cluster of thread blocks holds a KV head's scores, its
// selection. Returns whether it has selected: if not, scores are in UnfusedArgs::scores.
// Requires  up to 16 coefficients; heads of 64 or 128, at most eight query heads a KV head, no pooled queries
//           (pools_queries).
bool select_sketches_cuda(const cuda::UnfusedArgs& args, const CudaContext& context);

}  // namespace mneme
