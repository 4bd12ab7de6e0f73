#include "src/ops/norm_rope/rope.h"

#include <algorithm>
#include <cmath>

#include "src/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/norm_rope/rope_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/norm_rope/rope-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
void RotateRow(float* row, std::int64_t heads, const float* cosines, const float* sines, std::int64_t half,
               RopePairs pairs) {
  for (std::int64_t h = 0; h < heads; ++h, row += 2 * half) rotate_head(row, cosines, sines, half, pairs);
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(RotateRow);

// Below these counts one thread finishes before another wakes: a cos and a sin in f64 take about 20 ns, rotating 16
// values 3 ns.
constexpr std::int64_t kAnglesAlone = 256;
constexpr std::int64_t kValuesAlone = 32768;

}  // namespace

RopeAngles::RopeAngles(std::span<const std::int32_t> positions, const RopeTable& table, const CpuContext& context) {
  set(positions, table, context);
}

void RopeAngles::set(std::span<const std::int32_t> positions, const RopeTable& table, const CpuContext& context) {
  n_rows_ = positions.size();
  n_pairs_ = table.inv_freq.size();
  pairs_ = table.pairs;
  values_.resize(2 * n_rows_ * n_pairs_);
  const std::int64_t grain = std::max<std::int64_t>(kAnglesAlone / std::max<std::int64_t>(n_pairs_, 1), 1);
  context.pool->parallel_for(n_rows_, grain, [&](std::int64_t row, std::int64_t end, int) {
    for (; row < end; ++row) {
      const double position = positions[row];
      float* c = values_.data() + row * 2 * n_pairs_;
      for (std::int64_t p = 0; p < n_pairs_; ++p) {
        const double angle = position * table.inv_freq[p];
        c[p] = static_cast<float>(std::cos(angle) * table.scale_of(p));
        c[n_pairs_ + p] = static_cast<float>(std::sin(angle) * table.scale_of(p));
      }
    }
  });
}

void rope_cpu(const TensorView& x, const RopeAngles& angles, const CpuContext& context) {
  const std::int64_t half = angles.n_pairs();
  expect_shape("x", x, DType::kF32, {angles.n_rows(), kAnySize, 2 * half});
  const std::int64_t heads = x.dim(1), row_values = std::max<std::int64_t>(heads * 2 * half, 1);
  const std::int64_t grain = std::max<std::int64_t>(kValuesAlone / row_values, 1);
  context.pool->parallel_for(x.dim(0), grain, [&](std::int64_t row, std::int64_t end, int) {
    for (; row < end; ++row) HWY_DYNAMIC_DISPATCH(RotateRow)
    (x.row_as<float>(row), heads, angles.cos(row), angles.sin(row), half, angles.pairs());
  });
}

void rope_cpu(const TensorView& x, std::span<const std::int32_t> positions, const RopeTable& table,
              const CpuContext& context) {
  rope_cpu(x, RopeAngles(positions, table, context), context);
}

}  // namespace mneme
#endif  // HWY_ONCE
