// Converts weight rows of any type to f32 or bf16, in vectors. Included once per Highway target.
#if defined(MNEME_OPS_GEMM_QUANT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MNEME_OPS_GEMM_QUANT_INL_H_
#undef MNEME_OPS_GEMM_QUANT_INL_H_
#else
#define MNEME_OPS_GEMM_QUANT_INL_H_
#endif

#include <hwy/highway.h>

#include "src/base/check.h"
#include "src/ops/gemm/codes-inl.h"
#include "src/ops/gemm/quant.h"
#include "src/ops/simd/round-inl.h"
#include "src/tensor/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE void put(D d, hn::Vec<D> v, float* to) {
  hn::StoreU(v, d, to);
}
template <class D>
HWY_INLINE void put(D d, hn::Vec<D> v, bf16* to) {
  store_bf16(d, v, to);
}

// D: f32, at most 16 lanes.
template <class D, typename Out>
HWY_INLINE void convert_block(D d, const BlockQ8_0& block, Out* out) {
  const hn::Rebind<std::int32_t, D> di;
  const hn::Rebind<std::int8_t, D> d8;
  const auto scale = hn::Set(d, float{block.d});
  for (std::size_t i = 0; i < kQuantBlock; i += hn::Lanes(d)) {
    const auto q = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, block.q + i)));
    put(d, hn::Mul(scale, q), out + i);
  }
}

template <class D, typename Out>
HWY_INLINE void convert_block(D d, const BlockQ4_0& block, Out* out) {
  const hn::Rebind<std::int32_t, D> di;
  const hn::Rebind<std::uint8_t, D> d8;
  const auto scale = hn::Set(d, float{block.d});
  const auto eight = hn::Set(di, 8);
  for (std::size_t i = 0; i < kQuantBlock / 2; i += hn::Lanes(d)) {
    const auto both = hn::PromoteTo(di, hn::LoadU(d8, block.q + i));
    const auto low = hn::Sub(hn::And(both, hn::Set(di, 15)), eight);
    const auto high = hn::Sub(hn::ShiftRight<4>(both), eight);
    put(d, hn::Mul(scale, hn::ConvertTo(d, low)), out + i);
    put(d, hn::Mul(scale, hn::ConvertTo(d, high)), out + kQuantBlock / 2 + i);
  }
}

template <class D, typename Out>
HWY_INLINE void convert_block(D d, const BlockQ4_1& block, Out* out) {
  const hn::Rebind<std::int32_t, D> di;
  const hn::Rebind<std::uint8_t, D> d8;
  const auto scale = hn::Set(d, float{block.d}), min = hn::Set(d, float{block.m});
  for (std::size_t i = 0; i < kQuantBlock / 2; i += hn::Lanes(d)) {
    const auto both = hn::PromoteTo(di, hn::LoadU(d8, block.q + i));
    const auto low = hn::ConvertTo(d, hn::And(both, hn::Set(di, 15)));
    const auto high = hn::ConvertTo(d, hn::ShiftRight<4>(both));
    put(d, hn::MulAdd(scale, low, min), out + i);
    put(d, hn::MulAdd(scale, high, min), out + kQuantBlock / 2 + i);
  }
}

template <class D, typename Block, typename Out>
HWY_INLINE void convert_blocks(D d, const std::byte* row, std::int64_t k, Out* out) {
  const auto* blocks = reinterpret_cast<const Block*>(row);
  for (std::int64_t b = 0; b < k / kQuantBlock; ++b) convert_block(d, blocks[b], out + b * kQuantBlock);
}

// Values i and on of a block of fp8, as f32 without the scale and kFp8OfF16.
template <class D>
HWY_INLINE hn::Vec<D> load_fp8(D d, const std::uint8_t* codes) {
  const hn::Rebind<std::uint8_t, D> d8;
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> dh;
  const auto wide = hn::ShiftLeft<8>(hn::PromoteTo(d16, hn::LoadU(d8, codes)));
  const hn::RebindToSigned<decltype(d16)> di16;
  const auto shifted = hn::BitCast(d16, hn::ShiftRight<1>(hn::BitCast(di16, wide)));
  return hn::PromoteTo(d, hn::BitCast(dh, hn::And(shifted, hn::Set(d16, std::uint16_t{0xbfff}))));
}

template <class D, typename Out>
HWY_INLINE void convert_fp8(D d, const std::byte* row, std::int64_t k, Out* out) {
  const auto* blocks = reinterpret_cast<const BlockFp8*>(row);
  for (std::int64_t b = 0; b < k / kFp8Block; ++b) {
    const auto scale = hn::Set(d, blocks[b].d), exponent = hn::Set(d, kFp8OfF16);
    for (std::size_t i = 0; i < kFp8Block; i += hn::Lanes(d))
      put(d, hn::Mul(scale, hn::Mul(exponent, load_fp8(d, blocks[b].q + i))), out + b * kFp8Block + i);
  }
}

// By way of codes-inl.h.
template <class D, typename Block, typename Out>
HWY_INLINE void convert_codes(D d, const std::byte* row, std::int64_t k, Out* out) {
  const hn::Rebind<std::int32_t, D> di;
  const hn::Rebind<std::int8_t, D> d8;
  const std::int64_t lanes = hn::Lanes(d);
  Codes codes;
  for (std::int64_t at = 0; at < k; at += kSuperBlock) {
    const std::int64_t n = unpack_run(reinterpret_cast<const Block*>(row), at, k, codes);
    for (std::int64_t i = 0; i < n; i += lanes) {
      const auto q = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, codes.q + i)));
      const auto scale = hn::Set(d, codes.scale[i / kCodeGroup<Block>]);
      if constexpr (kHasMinima<Block>)
        put(d, hn::MulAdd(scale, q, hn::Set(d, codes.minimum[i / kCodeGroup<Block>])), out + at + i);
      else
        put(d, hn::Mul(scale, q), out + at + i);
    }
  }
}

template <class D>
HWY_INLINE hn::Vec<D> get(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> get(D d, const bf16* from) {
  return load_bf16(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> get(D d, const f16* from) {
  return load_f16(d, from);
}

template <class D, typename In, typename Out>
HWY_INLINE void convert_floats(D d, const std::byte* row, std::int64_t k, Out* out) {
  const auto* in = reinterpret_cast<const In*>(row);
  const std::int64_t lanes = hn::Lanes(d);
  std::int64_t j = 0;
  for (; j + lanes <= k; j += lanes) put(d, get(d, in + j), out + j);
  for (; j < k; ++j) {
    const float value = in[j];
    out[j] = Out(value);
  }
}

// Converts k values of a row of type `from`.   out [k] float or bf16, round to nearest even
template <class D, typename Out>
HWY_INLINE void convert_row(D d, const std::byte* row, DType from, std::int64_t k, Out* out) {
  switch (from) {
    case DType::kF32:
      return convert_floats<D, float>(d, row, k, out);
    case DType::kF16:
      return convert_floats<D, f16>(d, row, k, out);
    case DType::kBF16:
      return convert_floats<D, bf16>(d, row, k, out);
    case DType::kQ8_0:
      return convert_blocks<D, BlockQ8_0>(d, row, k, out);
    case DType::kQ4_0:
      return convert_blocks<D, BlockQ4_0>(d, row, k, out);
    case DType::kQ4_1:
      return convert_blocks<D, BlockQ4_1>(d, row, k, out);
    case DType::kQ5_0:
      return convert_codes<D, BlockQ5_0>(d, row, k, out);
    case DType::kQ5_1:
      return convert_codes<D, BlockQ5_1>(d, row, k, out);
    case DType::kQ2_K:
      return convert_codes<D, BlockQ2_K>(d, row, k, out);
    case DType::kQ3_K:
      return convert_codes<D, BlockQ3_K>(d, row, k, out);
    case DType::kQ4_K:
      return convert_codes<D, BlockQ4_K>(d, row, k, out);
    case DType::kQ5_K:
      return convert_codes<D, BlockQ5_K>(d, row, k, out);
    case DType::kQ6_K:
      return convert_codes<D, BlockQ6_K>(d, row, k, out);
    case DType::kIQ4_NL:
      return convert_codes<D, BlockIQ4_NL>(d, row, k, out);
    case DType::kIQ4_XS:
      return convert_codes<D, BlockIQ4_XS>(d, row, k, out);
    case DType::kMXFP4:
      return convert_codes<D, BlockMXFP4>(d, row, k, out);
    case DType::kFp8:
      return convert_fp8(d, row, k, out);
    case DType::kInt4:
      return convert_codes<D, BlockInt4>(d, row, k, out);
    case DType::kInt8:
      return convert_codes<D, BlockInt8>(d, row, k, out);
    case DType::kNVFP4:
      return convert_codes<D, BlockNVFP4>(d, row, k, out);
    case DType::kI32:
    case DType::kU8:
      break;
  }
  MNEME_CHECK(false, "{} holds no weights", dtype_name(from));
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
