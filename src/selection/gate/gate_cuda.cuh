// The gate on the device; gate.h says what it is. It is evaluated once a step, by the first kernel that has its input,
// and published as one flag a KV head (Selections::flags). All other kernels read the flag: needs_now() of
// device_cache_cuda.cuh.
//
//   kSpeculative, cosine gate  store_qkv_cuda (append_cuda.h), which makes the cosines    publish_cosine_gate
//   kSpeculative, mass gate    the selection for this step, which weighs what is missing  publish_mass_gate
//   kBoundary                  the selection for this step, for all KV heads of a layer   gate_layer,
//                                                                                      publish_layer_gate
//
// The flags of a step are there for its recall, and for the selection and recall of the next step (SelectWhen::kNext);
// those of cosine gates for the selection of this step, too.
#pragma once

#include "src/offload/device_cache_cuda.cuh"
#include "src/selection/gate/gate.h"

namespace mneme::cuda {

// Cosines that a gate compares.
struct Cosines {
  float sum = 0, most = -2, least = 2;
  bool nan = false;
  __device__ __forceinline__ void take(float v) {
    nan = nan || isnan(v);
    sum += v, most = fmaxf(most, v), least = fminf(least, v);
  }
  // Whether the queries of n of them moved.
  __device__ __forceinline__ bool moved(const SelectionPlan::Gate& gate, int n) const {
    const float pooled = gate.pool == GatePool::kMean  ? sum / static_cast<float>(n)
                         : gate.pool == GatePool::kMax ? most
                                                       : least;
    return nan || queries_moved(gate, pooled);
  }
};

// ---- a KV head's queries (ScheduleKind::kSpeculative)

// Publishes for a KV head of the model, and so for all heads of the cache slots that have it. Called by a whole warp.
//   cosines  [group] of its query heads, in shared memory
__device__ __forceinline__ void publish_cosine_gate(const DeviceCache& s, const SelectionPlan::Gate& gate, int layer,
                                                    int seq_slot, int kv_head, const float* cosines, int group) {
  Cosines all;
#pragma unroll 4
  for (int g = 0; g < group; ++g) all.take(cosines[g]);
  const int flag = all.moved(gate, group) ? 1 : 0, lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane < s.shared) s.selection.flags[slot_index(s, layer, seq_slot, kv_head * s.shared + lane)] = flag;
}

// ---- the missing mass of a KV head (ScheduleKind::kSpeculative)

// Publishes for a head of the cache slots.   index: slot_index()
__device__ __forceinline__ void publish_mass_gate(const DeviceCache& s, const SelectionPlan::Gate& gate,
                                                  std::int64_t index, float missing) {
  s.selection.mass[index] = missing;
  s.selection.flags[index] = mass_lacks(gate, missing, 1) ? 1 : 0;
}

// ---- a layer's queries (ScheduleKind::kBoundary). Every thread block of the selection evaluates it, from one cosine a
// lane, and the first one publishes: waiting for another block, or a launch of its own, would take longer.

// What the gate of a layer says in a step.
struct LayerGate {
  bool asked, moved;  // there was a query to compare with; the queries moved
  bool selects;       // the layer selects with this step's query
};
// Called by a whole warp, before the step's recall_units_cuda.
__device__ __forceinline__ LayerGate gate_layer(const DeviceCache& s, const SlotRow& r, int layer) {
  const std::int64_t at = kept_index(s, layer, r.seq_slot);
  LayerGate gate;
  gate.asked = (r.reset_bits & kNoQuery) == 0;
  gate.moved = false;
  if (gate.asked) {
    Cosines c;
    for (int h = threadIdx.x % kWarp; h < s.n_heads; h += kWarp)
      c.take(__ldcg(s.selection.cosine + at * s.n_heads + h));
    c.sum = warp_sum(c.sum), c.most = warp_max(c.most), c.least = -warp_max(-c.least), c.nan = __any_sync(~0u, c.nan);
    gate.moved = c.moved(r.plan.gate, s.n_heads);
  }
  gate.selects = false;
  if (!r.sparse) return gate;
  const KeptSelection& kept = s.selection.kept[at];
  const bool worn = selection_worn(r.plan.gate, __ldcg(&kept.reused));
  // A selection made just above the budget may be too short for a step with a shorter window.
  const bool too_short = __ldcg(&kept.n_units) < region_of(s, r.plan, layer, r.seq_slot, r.length).n_select;
  gate.selects = r.reset || gate.moved || worn || too_short;
  return gate;
}
// Publishes and counts. One warp per launch, row and layer.
__device__ __forceinline__ void publish_layer_gate(const DeviceCache& s, const SlotRow& r, int layer,
                                                   const LayerGate& gate) {
  const int lane = threadIdx.x % kWarp;
  for (int h = lane; h < s.n_kv_heads; h += kWarp)
    s.selection.flags[slot_index(s, layer, r.seq_slot, h)] = gate.selects ? 1 : 0;
  if (lane != 0) return;
  const std::int64_t at = kept_index(s, layer, r.seq_slot);
  s.selection.kept[at].made_now = gate.selects ? s.selection.kept[at].n_made + 1 : 0;
  if (gate.asked) add_count(s.counts[at].checks, 1);
  if (gate.moved) add_count(s.counts[at].corrections, 1);
  if (gate.selects) add_count(s.counts[at].made, 1);
}
// Stores the queries that the gate will compare with, where these are the last selection's. One thread block per KV
// head.
__device__ __forceinline__ void keep_queries(const DeviceCache& s, const SlotRow& r, int layer, int kv_head,
                                             const LayerGate& gate) {
  if (s.selection.asked_q == nullptr || r.plan.gate.reference == GateReference::kPrevious ||
      !(gate.selects || !r.sparse))
    return;
  const int group = s.n_heads / s.n_kv_heads, words = group * s.head_dim / 8;
  const std::int64_t at = (kept_index(s, layer, r.seq_slot) * s.n_heads + kv_head * group) * s.head_dim / 8;
  for (int i = threadIdx.x; i < words; i += blockDim.x)
    static_cast<uint4*>(s.selection.asked_q)[at + i] = __ldcg(static_cast<const uint4*>(s.selection.last_q) + at + i);
}

}  // namespace mneme::cuda
