// Vector helpers of the attention kernels: 2^x for softmax, 16-bit loads, unrolling. Included once per Highway target.
#if defined(MNEME_SRC_KERNELS_ATTENTION_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MNEME_SRC_KERNELS_ATTENTION_SIMD_INL_H_
#undef MNEME_SRC_KERNELS_ATTENTION_SIMD_INL_H_
#else
#define MNEME_SRC_KERNELS_ATTENTION_SIMD_INL_H_
#endif

#include <cstdint>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"

// Attribute of a lambda: compiled for the target and inlined into its caller.
#undef MNEME_INLINED
#define MNEME_INLINED HWY_ATTR __attribute__((always_inline))

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {

// Calls f(0), f(1), ... f(N - 1), each with a constant, so that arrays indexed by it stay in registers: gcc keeps an
// array indexed in a loop on the stack, even if it unrolls the loop later.
template <class F, int... kI>
HWY_INLINE void unroll_each(const F& f, std::integer_sequence<int, kI...> /*indices*/) {
  (f(std::integral_constant<int, kI>()), ...);
}
template <int kN, class F>
HWY_INLINE void unroll(const F& f) {
  unroll_each(f, std::make_integer_sequence<int, kN>());
}

// Loads Lanes(df) 16-bit elements from `p` as f32.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> load_bf16(D df, const void* p) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Rebind<hwy::bfloat16_t, D> dh;
  return hn::PromoteTo(df, hn::LoadU(dh, static_cast<const hwy::bfloat16_t*>(p)));
}

template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> load_f16(D df, const void* p) {
  namespace hn = hwy::HWY_NAMESPACE;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_NEON
  const hn::Rebind<hwy::float16_t, D> dh;
  return hn::PromoteTo(df, hn::LoadU(dh, static_cast<const hwy::float16_t*>(p)));
#else
  // Without hardware support Highway converts infinity and NaN to finite numbers. This multiplication is exact,
  // subnormals included.
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<std::uint16_t, D> dh;
  const auto bits = hn::PromoteTo(du, hn::LoadU(dh, static_cast<const std::uint16_t*>(p)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fffu)));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  const auto finite = hn::BitCast(du, hn::Mul(hn::BitCast(df, magnitude), hn::Set(df, 0x1.0p112f)));
  const auto special = hn::Or(magnitude, hn::Set(du, 0x7f800000u));
  const auto is_finite = hn::Lt(magnitude, hn::Set(du, 0x0f800000u));
  return hn::BitCast(df, hn::Or(sign, hn::IfThenElse(is_finite, finite, special)));
#endif
}

// 2^x for x <= 0. Relative error at most 2 ulp in [-126, 0]; 2^0 is exactly 1; below -126 (so also for -inf) the result
// is 0; NaN gives NaN.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> exp2_nonpositive(D df, hwy::HWY_NAMESPACE::Vec<D> x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToSigned<D> di;
  const auto n = hn::NearestInt(x);
  const auto f = hn::Sub(x, hn::ConvertTo(df, n));
  // Minimax polynomial on [-1/2, 1/2] with p(0) = 1: relative error 9.2e-8 before rounding.
  auto p = hn::Set(df, 1.326472706e-03f);
  p = hn::MulAdd(p, f, hn::Set(df, 9.671512649e-03f));
  p = hn::MulAdd(p, f, hn::Set(df, 5.550733744e-02f));
  p = hn::MulAdd(p, f, hn::Set(df, 2.402224209e-01f));
  p = hn::MulAdd(p, f, hn::Set(df, 6.931469776e-01f));
  p = hn::MulAdd(p, f, hn::Set(df, 1.0f));
  const auto power = hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(df, -126.0f)), hn::Mul(p, power));
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#endif
