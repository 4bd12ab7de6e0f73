// Rounds vectors to bf16. Included once per Highway target.
#if defined(MNEME_OPS_SIMD_ROUND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MNEME_OPS_SIMD_ROUND_INL_H_
#undef MNEME_OPS_SIMD_ROUND_INL_H_
#else
#define MNEME_OPS_SIMD_ROUND_INL_H_
#endif

#include <hwy/highway.h>

#include "src/tensor/half.h"

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// f32 to bf16, round to nearest even, NaN stays NaN (Highway's DemoteTo truncates).
template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_bf16(D /*d*/, V v, bf16* to) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto u = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1u));
  const auto rounded = hn::Add(hn::Add(u, hn::Set(du, 0x7fffu)), odd);
  const auto quiet = hn::Or(u, hn::Set(du, 0x400000u));
  const auto bits = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
  hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(bits)), d16, reinterpret_cast<std::uint16_t*>(to));
}

template <class D>
HWY_INLINE hn::Vec<D> load_bf16(D d, const bf16* from) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto bits = hn::PromoteTo(du, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

template <class D>
HWY_INLINE hn::Vec<D> load_f16(D d, const f16* from) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
