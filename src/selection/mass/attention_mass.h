// How much attention tokens received from some rows of queries: a second pass over the keys with the rows' saved
// log-sum-exp, for methods that keep what was attended.
//
//   mass[t] += sum over rows i that see t of exp(q[i] . k[t] * scale - lse[i])
//
// which are the probabilities of softmax where lse is what attention over the same tokens returned.
//
// NaN  in a key: that token's mass; in a query or its lse: the mass of every token that the row sees.
#pragma once

#include <cstdint>
#include <span>

#include "src/kernels/attention.h"
#include "src/kernels/cpu_context.h"

namespace mneme {

enum class MassBy : std::uint8_t {
  kQueryHead,  // one row of mass a head of the group
  kGroup,      // the group's heads together: one row
};

// The last rows of one (sequence, KV head).
struct MassHead {
  const float* q = nullptr;    // row i, head g: q + i * q_stride + g * D
  std::int64_t q_stride = 0;   // elements between rows
  const float* lse = nullptr;  // row i, head g: lse + i * lse_stride + g
  std::int64_t lse_stride = 0;
  std::int32_t n_rows = 0;
  std::span<const KvRun> runs;   // M tokens in all, in order of position; row i sees the first M - n_rows + 1 + i
  std::int32_t window = 0;       // of those, the last `window` alone. 0: no limit
  float* mass = nullptr;         // [G or 1, M] f32, added to
  std::int64_t mass_stride = 0;  // floats between rows of mass
};

// Requires  M >= n_rows. The order of the sum over rows is one for every number of threads.
void attention_mass_ref(std::span<const MassHead> heads, const AttentionShape& shape, MassBy by);
void attention_mass_cpu(std::span<const MassHead> heads, const AttentionShape& shape, MassBy by,
                        const CpuContext& context);

}  // namespace mneme
