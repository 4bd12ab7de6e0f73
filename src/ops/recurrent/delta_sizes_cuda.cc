#include <algorithm>

#include "src/base/check.h"
#include "src/ops/recurrent/gated_delta_cuda.h"

namespace mneme {

bool delta_shape_on_device(const DeltaShape& s) {
  const auto takes = [](std::int64_t d) { return d > 0 && d % 4 == 0 && d <= kMaxDeltaHeadCuda; };
  return takes(s.d_k) && takes(s.d_v) && s.taps >= 2 && s.taps <= kMaxDeltaTapsCuda;
}

DeltaScratchBytes delta_scratch_bytes(const DeltaShape& s, std::int32_t n) {
  const std::int64_t rows = std::min(n, kMaxDeltaRowsCuda), chunks = rows / kDeltaChunkCuda + 2;
  const auto bytes = [](std::int64_t floats) { return static_cast<std::size_t>(floats) * sizeof(float); };
  return {.convolved = bytes(rows * s.channels()),
          .gates = bytes(rows * 2 * s.n_v_heads),
          .out = bytes(rows * s.value_width()),
          .tiles = bytes(chunks * s.n_v_heads * kDeltaTileFloats)};
}

void check_delta_step(const DeltaShape& s, std::int32_t n) {
  MNEME_CHECK(delta_shape_on_device(s) && n <= kMaxDeltaRowsCuda, "{} rows, {} taps, heads of {}, {}", n, s.taps, s.d_k,
              s.d_v);
}

}  // namespace mneme
