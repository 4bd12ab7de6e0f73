// The drop after a decode step (drop_least.h) in every KV head of many sequences at once, in the masks of the page
// tables. Nothing moves, and the host is not asked.
#pragma once

#include <cstdint>

#include "src/cuda/context.h"
#include "src/kv/kv_tables_cuda.h"

namespace mneme {

// A sequence and its last step.
struct DropTask {
  std::int32_t mass_row = -1;  // in `given` and `received`; -1: no work
  std::int32_t seq_slot = 0;   // in the page tables
  std::int32_t length = 0;     // tokens of the sequence, the step's own the last
  std::int32_t keep = 0;       // tokens that a head keeps
  std::int32_t recent = 0;
  bool adds = false;         // mass is summed over steps: H2O; else the last step's counts: TOVA
  bool by_mass = true;       // false: all tokens score the same, so that the oldest goes
  bool one_a_layer = false;  // the heads of a layer drop the same slots, by the sum of their masses
};

// All pointers are device memory.
//
//   rows         [n]
//   given        [mass rows][layers][KV heads][stride] f32: mass that the step gave, by slot
//   received     the same: sums over steps, to which `given` is added; null where no row adds
//   first_slots  [mass rows][layers * KV heads] i32: the first slot that may be dropped; -1: the layer drops nothing
//   masks        those of `tables`, in which the dropped tokens' bits are cleared
//
// Ties, NaN  as keep_largest().   Numerics  f32: heads are summed in order, from the first.
// Async      enqueues; allocates nothing. The next kernel starts when it has ended: page tables are read early.
struct DropLeastCuda {
  const DropTask* rows = nullptr;
  const float* given = nullptr;
  float* received = nullptr;
  const std::int32_t* first_slots = nullptr;
  std::uint32_t* masks = nullptr;
  std::int64_t stride = 0;
  std::int32_t n = 0, n_layers = 0;
};
void drop_least_cuda(const DropLeastCuda& a, const KvTables& tables, const CudaContext& context);

}  // namespace mneme
