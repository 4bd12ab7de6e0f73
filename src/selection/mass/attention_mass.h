// Attention mass: how much attention tokens received from some query rows. A second pass over the keys with the rows'
// saved log-sum-exp, for methods that keep what was attended (H2O, SnapKV).
//
//   mass[t] += sum over rows i that attend t of exp(q[i] . k[t] * scale - lse[i])
//
// The terms are softmax probabilities if lse is what attention over the same tokens returned.
//
// NaN  in a key: that token's mass; in a query or its lse: the mass of every token that the row attends.
#pragma once

#include <cstdint>
#include <span>

#include "src/ops/attention/attention.h"
#include "src/ops/simd/cpu_context.h"

namespace mneme {

enum class MassBy : std::uint8_t {
  kQueryHead,  // one row of mass per head of the group
  kGroup,      // one row, summed over the group's heads
};

// The last rows of one (sequence, KV head).
struct MassHead {
  const float* q = nullptr;    // row i, head g: q + i * q_stride + g * D
  std::int64_t q_stride = 0;   // elements between rows
  const float* lse = nullptr;  // row i, head g: lse + i * lse_stride + g
  std::int64_t lse_stride = 0;
  std::int32_t n_rows = 0;
  std::span<const KvRun> runs;   // M tokens in total, in order of position; row i attends the first M - n_rows + 1 + i
  std::int32_t window = 0;       // only the last `window` of those. 0: no limit
  float* mass = nullptr;         // [G or 1, M] f32, added to
  std::int64_t mass_stride = 0;  // floats between rows of mass
};

// Requires  M >= n_rows. The summation order does not depend on the number of threads.
void attention_mass_ref(std::span<const MassHead> heads, const AttentionShape& shape, MassBy by);
void attention_mass_cpu(std::span<const MassHead> heads, const AttentionShape& shape, MassBy by,
                        const CpuContext& context);

}  // namespace mneme
