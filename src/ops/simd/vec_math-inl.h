// exp and log of f32 vectors. Included once per target, inside a file that uses foreach_target.h.
//
//   vec_exp  within 2 ulp; results below 2^-126 are 0, above the largest float +inf
//   vec_log  within 2 ulp for normal positive x; 0 and subnormals give -inf, negative x gives NaN, +inf gives +inf
//
// NaN gives NaN. A lane's result depends on that lane alone.
#if defined(MNEME_OPS_SIMD_VEC_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MNEME_OPS_SIMD_VEC_MATH_INL_H_
#undef MNEME_OPS_SIMD_VEC_MATH_INL_H_
#else
#define MNEME_OPS_SIMD_VEC_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {

// vec_exp for x <= 88 and not NaN; below 2^-126 the result is 0 or subnormal.
template <class D, class V>
HWY_INLINE V vec_exp_ordered(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  constexpr bool kScales = hn::MaxLanes(D()) == 16;  // one instruction for p * 2^k
#else
  constexpr bool kScales = false;
#endif
  const hn::RebindToSigned<D> di;
  // For very negative x the remainder after k ln 2 is rounding error, and its powers overflow.
  if constexpr (kScales) x = hn::Max(x, hn::Set(d, -200.0f));
  // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const V k = hn::Sub(shifted, magic);
  // ln 2 in two parts, so that k * hi is exact: the first has 15 bits.
  V r = hn::NegMulAdd(k, hn::Set(d, 0.693145751953125f), x);
  r = hn::NegMulAdd(k, hn::Set(d, 1.42860677e-6f), r);
  // (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2, through the Chebyshev nodes of degree 4; relative error of e^r 1.1e-8.
  V p = hn::MulAdd(r, hn::Set(d, 0.0013926250394433737f), hn::Set(d, 0.00836323294788599f));
  p = hn::MulAdd(r, p, hn::Set(d, 0.04166655242443085f));
  p = hn::MulAdd(r, p, hn::Set(d, 0.16666576266288757f));
  p = hn::MulAdd(r, p, hn::Set(d, 0.5f));
  p = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.0f));
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  if constexpr (kScales) return V{_mm512_scalef_ps(p.raw, k.raw)};
#endif
  if constexpr (!kScales) {
    const V scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
    return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -87.3365402f)), scaled);
  }
}

template <class D, class V>
HWY_INLINE V vec_exp(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  V y = hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -87.3365402f)), vec_exp_ordered(d, x));  // 0 for NaN too
  y = hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.7228317f)), hn::Set(d, std::numeric_limits<float>::infinity()), y);
  return hn::IfThenElse(hn::Eq(x, x), y, x);
}

template <class D, class V>
HWY_INLINE V vec_log(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToSigned<D> di;
  // x = 2^e m with m in [sqrt(1/2), sqrt(2)).
  const auto bits = hn::Sub(hn::BitCast(di, x), hn::Set(di, 0x3f3504f3));
  const V e = hn::ConvertTo(d, hn::ShiftRight<23>(bits));
  const V m = hn::BitCast(d, hn::Add(hn::And(bits, hn::Set(di, 0x007fffff)), hn::Set(di, 0x3f3504f3)));
  const V f = hn::Sub(m, hn::Set(d, 1.0f));
  // (log(1 + f) - f + f^2 / 2) / f^3 through the Chebyshev nodes of degree 7; relative error of log(1 + f) 2e-8.
  V p = hn::MulAdd(f, hn::Set(d, -0.0790274366736412f), hn::Set(d, 0.12622319161891937f));
  p = hn::MulAdd(f, p, hn::Set(d, -0.12998183071613312f));
  p = hn::MulAdd(f, p, hn::Set(d, 0.14214496314525604f));
  p = hn::MulAdd(f, p, hn::Set(d, -0.166412815451622f));
  p = hn::MulAdd(f, p, hn::Set(d, 0.20001044869422913f));
  p = hn::MulAdd(f, p, hn::Set(d, -0.25000306963920593f));
  p = hn::MulAdd(f, p, hn::Set(d, 0.3333333134651184f));
  const V ff = hn::Mul(f, f);
  V low = hn::MulAdd(e, hn::Set(d, 1.42860677e-6f), hn::Mul(hn::Mul(ff, f), p));
  low = hn::NegMulAdd(hn::Set(d, 0.5f), ff, low);
  V y = hn::MulAdd(e, hn::Set(d, 0.693145751953125f), hn::Add(f, low));
  const V inf = hn::Set(d, std::numeric_limits<float>::infinity());
  y = hn::IfThenElse(hn::Lt(x, hn::Set(d, std::numeric_limits<float>::min())), hn::Neg(inf), y);
  y = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Set(d, std::numeric_limits<float>::quiet_NaN()), y);
  y = hn::IfThenElse(hn::Eq(x, inf), inf, y);
  return hn::IfThenElse(hn::Eq(x, x), y, x);
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#endif
