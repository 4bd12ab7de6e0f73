#include "src/ops/gemm/int16_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mneme {

std::size_t int16_bytes(std::int64_t m, std::int64_t k) {
  return m * Int16Input::row_bytes(k);
}

void prepare_int16(const ConstTensorView& x, std::byte* prepared) {
  const std::int64_t k = x.dim(1);
  for (std::int64_t i = 0; i < x.dim(0); ++i) {
    const Int16Input row = Int16Input::of(prepared, i, k);
    auto* q = const_cast<std::int16_t*>(row.q);
    auto *scale = const_cast<float*>(row.scale), *sum = const_cast<float*>(row.sum);
    std::memset(sum, 0, Int16Input::scale_bytes(k));
    for (std::int64_t b = 0; b < k / kQuantBlock; ++b) {
      const float* v = x.row_as<float>(i) + b * kQuantBlock;
      float largest = 0.0f;
      for (int j = 0; j < kQuantBlock; ++j) largest = std::max(largest, std::fabs(v[j]));
      // Below this the inverse is infinite; such a block is negligible against the rounding of any other.
      const bool tiny = largest < 1e-30f;
      const float inverse = tiny ? 0.0f : kInt16Levels / largest;
      scale[b] = tiny ? 0.0f : largest / kInt16Levels;
      int total = 0;
      for (int j = 0; j < kQuantBlock; ++j) {
        const int level = static_cast<int>(v[j] * inverse + (v[j] < 0.0f ? -0.5f : 0.5f));
        q[b * kQuantBlock + j] = static_cast<std::int16_t>(level);
        total += level;
      }
      sum[b] = scale[b] * static_cast<float>(total);
    }
  }
}

}  // namespace mneme
