// Loads bf16 and f16 as f32 vectors, exactly. Included once per target, inside a file that uses foreach_target.h.
#if defined(MNEME_OPS_SIMD_LOAD_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MNEME_OPS_SIMD_LOAD_HALF_INL_H_
#undef MNEME_OPS_SIMD_LOAD_HALF_INL_H_
#else
#define MNEME_OPS_SIMD_LOAD_HALF_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {

struct LoadBf16 {
  template <class D>
  HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> operator()(D d, const std::byte* p) const {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<std::uint32_t, D> d32;
    const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
  }
};

struct LoadF16 {
  template <class D>
  HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> operator()(D d, const std::byte* p) const {
    namespace hn = hwy::HWY_NAMESPACE;
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_ARCH_ARM_A64
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
#else
    // Highway 1.0.3 converts infinity and NaN to finite numbers where it emulates this.
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<std::uint32_t, D> d32;
    const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(d32, 0x7fffu)));
    const auto scale = hn::BitCast(d, hn::Set(d32, (127u + 112u) << 23));  // 2^112; exact for subnormals too
    const auto finite = hn::BitCast(d32, hn::Mul(hn::BitCast(d, magnitude), scale));
    const auto special = hn::Gt(hn::BitCast(hn::RebindToSigned<decltype(d32)>(), magnitude),
                                hn::Set(hn::RebindToSigned<decltype(d32)>(), 0x0f7fffff));
    const auto exponent = hn::IfThenElseZero(hn::RebindMask(d32, special), hn::Set(d32, 0x7f800000u));
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d32, 0x8000u)));
    return hn::BitCast(d, hn::Or(hn::Or(finite, exponent), sign));
#endif
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#endif
