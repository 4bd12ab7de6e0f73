// One row of keys or values in 8 bits to bf16. Included once per target, inside a file that uses foreach_target.h.
#if defined(MNEME_KV_WIDEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MNEME_KV_WIDEN_INL_H_
#undef MNEME_KV_WIDEN_INL_H_
#else
#define MNEME_KV_WIDEN_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/ops/simd/round-inl.h"
#include "src/tensor/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {

// Lanes(d) codes at `p` as numbers, without their scale: int8 as they are, e4m3 times 2^-8.
template <DType kDType, class D>
HWY_INLINE hn::Vec<D> load_codes(D d, const std::byte* p) {
  if constexpr (kDType == DType::kInt8) {
    const hn::Rebind<std::int8_t, D> d8;
    const hn::Rebind<std::int32_t, D> d32;
    return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(p))));
  } else {
    const hn::Rebind<std::uint8_t, D> d8;
    const auto codes = hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(p));
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_ARCH_ARM_A64
    // Sign, four bits of exponent and three of mantissa are those of an f16 that is 2^-8 of the value.
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    const auto wide = hn::PromoteTo(d16, codes);
    const auto sign = hn::ShiftLeft<8>(hn::And(wide, hn::Set(d16, 0x80)));
    const auto rest = hn::ShiftLeft<7>(hn::And(wide, hn::Set(d16, 0x7f)));
    return hn::PromoteTo(d, hn::BitCast(df16, hn::Or(sign, rest)));
#else
    const hn::Rebind<std::uint32_t, D> d32;
    const auto wide = hn::PromoteTo(d32, codes);
    const auto sign = hn::ShiftLeft<24>(hn::And(wide, hn::Set(d32, 0x80u)));
    const auto rest = hn::ShiftLeft<20>(hn::And(wide, hn::Set(d32, 0x7fu)));
    const auto scaled = hn::Mul(hn::BitCast(d, rest), hn::Set(d, 0x1p112f));
    return hn::BitCast(d, hn::Or(hn::BitCast(d32, scaled), sign));
#endif
  }
}

// `head_dim` codes times their scale, rounded to bf16.
template <DType kDType>
HWY_INLINE void widen_row(const std::byte* codes, std::int32_t head_dim, float scale, bf16* to) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 8> d8;
  const float factor = kDType == DType::kInt8 ? scale : scale * 256.0f;
  const auto wide = static_cast<std::int32_t>(hn::Lanes(d)), few = static_cast<std::int32_t>(hn::Lanes(d8));
  std::int32_t i = 0;
  for (; i + wide <= head_dim; i += wide)
    store_bf16(d, hn::Mul(load_codes<kDType>(d, codes + i), hn::Set(d, factor)), to + i);
  for (; i < head_dim; i += few)
    store_bf16(d8, hn::Mul(load_codes<kDType>(d8, codes + i), hn::Set(d8, factor)), to + i);
}

// A token's key, and with `values` its value, as [K | V] in bf16.
template <DType kDType>
HWY_INLINE void widen_token(const std::byte* token, std::int32_t head_dim, bool values, bf16* to) {
  float scales[2];
  std::memcpy(scales, token + 2 * std::ptrdiff_t{head_dim}, sizeof(scales));
  widen_row<kDType>(token, head_dim, scales[0], to);
  if (values) widen_row<kDType>(token + head_dim, head_dim, scales[1], to + head_dim);
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
