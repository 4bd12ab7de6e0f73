#include <cmath>

#include "src/base/check.h"
#include "src/ops/norm_rope/rope.h"

namespace mneme {

void rope_ref(const TensorView& x, std::span<const std::int32_t> positions, const RopeTable& table) {
  const auto half = std::ssize(table.inv_freq);
  expect_shape("x", x, DType::kF32, {std::ssize(positions), kAnySize, 2 * half});
  for (std::int64_t i = 0; i < x.dim(0); ++i) {
    const double position = positions[i];
    for (std::int64_t head = 0; head < x.dim(1); ++head) {
      float* v = x.row_as<float>(i) + head * 2 * half;
      for (std::int64_t p = 0; p < half; ++p) {
        const double angle = position * table.inv_freq[p];
        const double c = std::cos(angle) * table.scale_of(p), s = std::sin(angle) * table.scale_of(p);
        float& first = v[table.pairs == RopePairs::kHalves ? p : 2 * p];
        float& second = v[table.pairs == RopePairs::kHalves ? p + half : 2 * p + 1];
        const double a = first, b = second;
        first = static_cast<float>(a * c - b * s);
        second = static_cast<float>(b * c + a * s);
      }
    }
  }
}

}  // namespace mneme
