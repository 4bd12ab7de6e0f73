// The gate: whether a KV head keeps the selection that an earlier step made, or attends one made with this step's
// query. These are its rules, which host and device share; a recipe's are in SelectionPlan::Gate.
//
//   kSpeculative, cosine gate   A KV head is flagged where the cosines of its queries with those of the step before,
//                               pooled over the group, are below tau.
//   kSpeculative, mass gate     A KV head is flagged where the share of softmax mass that this step's selection has and
//                               the speculative one lacks is above eps. All KV heads select before this is known.
//   kBoundary                   A layer selects where the cosines of all its queries, pooled, are below tau, or where
//                               its selection is worn (reused max_reuse times), too short for the step, or missing.
//
// The other schedules have no gate.
//
// Host    DecodeAttention::gate_row() and select_by_mass() of src/methods/decode_attention.cc evaluate it.
// Device  gate_cuda.cuh evaluates it once a step and publishes Selections::flags, one a KV head, which kernels read.
// NaN     A cosine of NaN flags. A missing mass of NaN does not.
#pragma once

#include <cstdint>

#include "src/cuda/host_device.h"
#include "src/offload/selection_plan.h"

namespace mneme {

// Cosines of a group's queries with those of another step, pooled over the group.
//
//   q, before  [group, D]  f32
//
// NaN  any NaN among the cosines gives NaN.
float pooled_cosine(GatePool pool, const float* q, const float* before, std::int32_t group, std::int32_t head_dim);

// Whether queries with this pooled cosine moved.
MNEME_HOST_DEVICE bool queries_moved(const SelectionPlan::Gate& gate, float pooled) {
  return !(pooled >= gate.tau);
}
// Whether a selection that was reused so often must be made again.
MNEME_HOST_DEVICE bool selection_worn(const SelectionPlan::Gate& gate, std::int32_t reused) {
  return gate.max_reuse > 0 && reused >= gate.max_reuse;
}
// Whether a speculative selection lacks too much mass.   attended: of all mass, the share that the speculative
// selection has (SelectionPlan::Gate::of_attended), or 1
MNEME_HOST_DEVICE bool mass_lacks(const SelectionPlan::Gate& gate, float missing, float attended) {
  return missing > gate.eps * attended;
}

}  // namespace mneme
