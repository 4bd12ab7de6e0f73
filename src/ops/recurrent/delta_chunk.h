// A value head's rows of one chunk on the CPU, and memory for what is computed of them.
#pragma once

#include <array>

#include "src/ops/recurrent/gated_delta.h"

namespace mneme {

struct DeltaChunk {
  static constexpr std::int64_t kRows = kDeltaChunk, kHead = kMaxDeltaHead;
  float q[kRows * kHead], k[kRows * kHead];  // [row, d_k]
  float k_by_value[kHead * kRows];           // [d_k, row]
  float decayed_k[kRows * kHead];            // e^{G_m - G_i} k
  float u[kRows * kHead];                    // [row, d_v]
  float a[kRows * kRows], p[kRows * kRows], decay[kRows * kRows];
  std::array<double, kRows> g;  // logs of the decays, then their sums G
  std::array<float, kRows> b;
};

}  // namespace mneme
