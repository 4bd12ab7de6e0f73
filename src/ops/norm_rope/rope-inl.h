// Rotates one head by the cos and sin of its pairs. Included once per Highway target.
#if defined(MNEME_OPS_NORM_ROPE_ROPE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MNEME_OPS_NORM_ROPE_ROPE_INL_H_
#undef MNEME_OPS_NORM_ROPE_ROPE_INL_H_
#else
#define MNEME_OPS_NORM_ROPE_ROPE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "src/ops/norm_rope/rope.h"

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One head [2 * half], pairs (i, i + half).
HWY_INLINE void rotate_halves(float* v, const float* cosines, const float* sines, std::int64_t half) {
  const hn::ScalableTag<float> d;
  const std::int64_t lanes = hn::Lanes(d);
  std::int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    const auto a = hn::LoadU(d, v + i), b = hn::LoadU(d, v + half + i);
    const auto c = hn::LoadU(d, cosines + i), s = hn::LoadU(d, sines + i);
    hn::StoreU(hn::MulSub(a, c, hn::Mul(b, s)), d, v + i);
    hn::StoreU(hn::MulAdd(b, c, hn::Mul(a, s)), d, v + half + i);
  }
  for (; i < half; ++i) {
    const float a = v[i], b = v[half + i];
    v[i] = a * cosines[i] - b * sines[i];
    v[half + i] = b * cosines[i] + a * sines[i];
  }
}

// One head, pairs (2i, 2i + 1).
HWY_INLINE void rotate_adjacent(float* v, const float* cosines, const float* sines, std::int64_t half) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> d;
  const std::int64_t lanes = hn::Lanes(d);
  for (; i + lanes <= half; i += lanes) {
    hn::Vec<decltype(d)> a, b;
    hn::LoadInterleaved2(d, v + 2 * i, a, b);
    const auto c = hn::LoadU(d, cosines + i), s = hn::LoadU(d, sines + i);
    hn::StoreInterleaved2(hn::MulSub(a, c, hn::Mul(b, s)), hn::MulAdd(b, c, hn::Mul(a, s)), d, v + 2 * i);
  }
#endif
  for (; i < half; ++i) {
    const float a = v[2 * i], b = v[2 * i + 1];
    v[2 * i] = a * cosines[i] - b * sines[i];
    v[2 * i + 1] = b * cosines[i] + a * sines[i];
  }
}

HWY_INLINE void rotate_head(float* v, const float* cosines, const float* sines, std::int64_t half, RopePairs pairs) {
  if (pairs == RopePairs::kHalves)
    rotate_halves(v, cosines, sines, half);
  else
    rotate_adjacent(v, cosines, sines, half);
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
