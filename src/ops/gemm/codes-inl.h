// Unpacks the quantised types beyond q8_0, q4_0 and q4_1 to one form: bytes, with a scale and a minimum per group.
// Every kernel without a form of its own for a type multiplies or converts this one. Included once per Highway target.

#ifndef MNEME_OPS_GEMM_CODES_ONCE
#define MNEME_OPS_GEMM_CODES_ONCE

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "src/ops/gemm/quant.h"

namespace mneme {

// Up to 256 values of a row: value i = scale[g] * q[i] + minimum[g] with g = i / kCodeGroup<Block>. Scales of groups
// that are not there are 0.
struct alignas(64) Codes {
  std::int8_t q[kSuperBlock];
  float scale[16], minimum[16];
};

template <typename Block, typename... Others>
inline constexpr bool is_one_of = (std::is_same_v<Block, Others> || ...);

// Values that share a scale.
template <typename Block>
inline constexpr int kCodeGroup = is_one_of<Block, BlockQ2_K, BlockQ3_K, BlockQ6_K, BlockNVFP4> ? 16 : 32;
template <typename Block>
inline constexpr bool kHasMinima = is_one_of<Block, BlockQ5_1, BlockQ2_K, BlockQ4_K, BlockQ5_K, BlockInt4>;
template <typename Block>
inline constexpr int kBlockValues =
    is_one_of<Block, BlockQ5_0, BlockQ5_1, BlockIQ4_NL, BlockMXFP4, BlockInt4, BlockInt8> ? kQuantBlock
    : std::is_same_v<Block, BlockNVFP4>                                                   ? kNvfp4Block
                                                                                          : kSuperBlock;

}  // namespace mneme
#endif

#if defined(MNEME_OPS_GEMM_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MNEME_OPS_GEMM_CODES_INL_H_
#undef MNEME_OPS_GEMM_CODES_INL_H_
#else
#define MNEME_OPS_GEMM_CODES_INL_H_
#endif

#include <hwy/highway.h>

#include "src/ops/simd/round-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using CodeBytes = hn::CappedTag<std::uint8_t, 16>;
using VCodes = hn::Vec<CodeBytes>;

// to[i] = fn(bytes i of each of `from`...), 16 of them.
template <class Fn, typename... From>
HWY_INLINE void each_16(std::int8_t* to, Fn fn, const From*... from) {
  const CodeBytes d;
  for (std::size_t i = 0; i < 16; i += hn::Lanes(d))
    hn::StoreU(fn(hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(from) + i)...), d,
               reinterpret_cast<std::uint8_t*>(to) + i);
}

template <int kBit, int kBits>
HWY_INLINE VCodes bits_of(VCodes v) {
  const CodeBytes d;
  const auto mask = hn::Set(d, std::uint8_t{(1 << kBits) - 1});
  if constexpr (kBit == 0)
    return hn::And(v, mask);
  else
    return hn::And(hn::ShiftRight<kBit>(v), mask);
}

template <int kBit>
HWY_INLINE VCodes shifted_up(VCodes v) {
  return hn::ShiftLeft<kBit>(v);
}

HWY_INLINE VCodes less(VCodes v, int n) {
  return hn::Sub(v, hn::Set(CodeBytes(), static_cast<std::uint8_t>(n)));
}

HWY_INLINE VCodes look_up(const std::int8_t (&table)[16], VCodes index) {
  const CodeBytes d;
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, static_cast<std::uint8_t>(table[hn::GetLane(index)]));
#else
  return hn::TableLookupBytes(hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(table)), index);
#endif
}

// f16 fields of n <= 8 blocks as f32, zero-padded to 8.
template <typename Block>
HWY_INLINE void load_fields(const Block* b, f16 Block::*field, std::int64_t n, float* out) {
  const hn::CappedTag<float, 8> d;
  HWY_ALIGN f16 halves[8] = {};
  for (std::int64_t i = 0; i < n; ++i) halves[i] = b[i].*field;
  for (std::size_t i = 0; i < 8; i += hn::Lanes(d)) hn::StoreU(load_f16(d, halves + i), d, out + i);
}

// out[i] = factor * levels[i], 16 of them.
template <typename Level>
HWY_INLINE void scale_levels(float factor, const Level* levels, float* out) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<std::int32_t, hn::CappedTag<float, 16>> di;
  const hn::Rebind<Level, hn::CappedTag<float, 16>> d8;
  for (std::size_t i = 0; i < 16; i += hn::Lanes(d))
    hn::StoreU(hn::Mul(hn::Set(d, factor), hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, levels + i)))), d, out + i);
}

// ---- blocks of 32: n <= 8 of them

#if HWY_TARGET == HWY_SCALAR

template <int kOffset, typename Block>
HWY_INLINE void unpack_five_bits(const Block& b, std::int8_t* q) {
  for (int i = 0; i < kQuantBlock; ++i)
    q[i] =
        static_cast<std::int8_t>((b.q[i % 16] >> (i < 16 ? 0 : 4) & 15) + 16 * (b.h[i / 8] >> (i % 8) & 1) - kOffset);
}

#else

// 16 where a bit is set of the two bytes of h from kFirst on; h: the four bytes, repeated.
template <int kFirst>
HWY_INLINE VCodes expand_bits(VCodes h) {
  const CodeBytes d;
  constexpr std::uint8_t k0 = kFirst, k1 = kFirst + 1;
  HWY_ALIGN static constexpr std::uint8_t kByte[16] = {k0, k0, k0, k0, k0, k0, k0, k0, k1, k1, k1, k1, k1, k1, k1, k1};
  HWY_ALIGN static constexpr std::uint8_t kBit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const auto bit = hn::Load(d, kBit);
  const auto set = hn::And(hn::TableLookupBytes(h, hn::Load(d, kByte)), bit);
  return hn::IfThenElseZero(hn::Eq(set, bit), hn::Set(d, std::uint8_t{16}));
}

// In registers: with the bits by way of memory, stored as bytes and loaded as a vector, a GEMM took six times as long.
template <int kOffset, typename Block>
HWY_INLINE void unpack_five_bits(const Block& b, std::int8_t* q) {
  const CodeBytes d;
  const hn::Repartition<std::uint32_t, CodeBytes> d32;
  std::uint32_t word;
  std::memcpy(&word, b.h, sizeof(word));
  const auto h = hn::BitCast(d, hn::Set(d32, word)), nibbles = hn::LoadU(d, b.q);
  const auto low = less(hn::Or(bits_of<0, 4>(nibbles), expand_bits<0>(h)), kOffset);
  const auto high = less(hn::Or(bits_of<4, 4>(nibbles), expand_bits<2>(h)), kOffset);
  hn::StoreU(low, d, reinterpret_cast<std::uint8_t*>(q));
  hn::StoreU(high, d, reinterpret_cast<std::uint8_t*>(q + 16));
}

#endif

template <typename Block>
HWY_INLINE void unpack_table(const Block& b, const std::int8_t (&table)[16], std::int8_t* q) {
  each_16(
      q, [&](VCodes v) HWY_ATTR { return look_up(table, bits_of<0, 4>(v)); }, b.q);
  each_16(
      q + 16, [&](VCodes v) HWY_ATTR { return look_up(table, bits_of<4, 4>(v)); }, b.q);
}

HWY_INLINE void unpack_codes(const BlockQ5_0* b, std::int64_t n, Codes& c) {
  load_fields(b, &BlockQ5_0::d, n, c.scale);
  for (std::int64_t i = 0; i < n; ++i) unpack_five_bits<16>(b[i], c.q + i * kQuantBlock);
}

HWY_INLINE void unpack_codes(const BlockQ5_1* b, std::int64_t n, Codes& c) {
  load_fields(b, &BlockQ5_1::d, n, c.scale);
  load_fields(b, &BlockQ5_1::m, n, c.minimum);
  for (std::int64_t i = 0; i < n; ++i) unpack_five_bits<0>(b[i], c.q + i * kQuantBlock);
}

HWY_INLINE void unpack_codes(const BlockIQ4_NL* b, std::int64_t n, Codes& c) {
  load_fields(b, &BlockIQ4_NL::d, n, c.scale);
  for (std::int64_t i = 0; i < n; ++i) unpack_table(b[i], kIq4Values, c.q + i * kQuantBlock);
}

HWY_INLINE void unpack_codes(const BlockMXFP4* b, std::int64_t n, Codes& c) {
  for (std::int64_t i = 0; i < 8; ++i) c.scale[i] = i < n ? mxfp4_scale(b[i].e) : 0.0f;
  for (std::int64_t i = 0; i < n; ++i) unpack_table(b[i], kFp4Values, c.q + i * kQuantBlock);
}

// The minimum is -scale times zero point: 16 bits by 8, exact.
HWY_INLINE void unpack_codes(const BlockInt4* b, std::int64_t n, Codes& c) {
  for (std::int64_t i = 0; i < 8; ++i) {
    c.scale[i] = i < n ? b[i].scale() : 0.0f;
    c.minimum[i] = i < n ? -c.scale[i] * static_cast<float>(b[i].zero()) : 0.0f;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    each_16(
        c.q + i * kQuantBlock, [](VCodes v) HWY_ATTR { return bits_of<0, 4>(v); }, b[i].q);
    each_16(
        c.q + i * kQuantBlock + 16, [](VCodes v) HWY_ATTR { return bits_of<4, 4>(v); }, b[i].q);
  }
}

HWY_INLINE void unpack_codes(const BlockInt8* b, std::int64_t n, Codes& c) {
  for (std::int64_t i = 0; i < 8; ++i) c.scale[i] = i < n ? b[i].d : 0.0f;
  for (std::int64_t i = 0; i < n; ++i) std::memcpy(c.q + i * kQuantBlock, b[i].q, kQuantBlock);
}

// ---- blocks of 64: n <= 4 of them

HWY_INLINE void unpack_codes(const BlockNVFP4* b, std::int64_t n, Codes& c) {
  for (int g = 0; g < 16; ++g) c.scale[g] = g / 4 < n ? nvfp4_scale(b[g / 4], g % 4) : 0.0f;
  for (std::int64_t i = 0; i < 2 * n; ++i) {
    const std::uint8_t* q = b[i / 2].q + 16 * (i % 2);
    each_16(
        c.q + 32 * i, [](VCodes v) HWY_ATTR { return look_up(kFp4Values, bits_of<0, 4>(v)); }, q);
    each_16(
        c.q + 32 * i + 16, [](VCodes v) HWY_ATTR { return look_up(kFp4Values, bits_of<4, 4>(v)); }, q);
  }
}

// ---- blocks of 256

// Calls fn(part as a constant) for parts 0 to 3: four runs of 32 values lie in the same bytes.
template <class Fn>
HWY_INLINE void each_part(Fn fn) {
  fn(std::integral_constant<int, 0>());
  fn(std::integral_constant<int, 1>());
  fn(std::integral_constant<int, 2>());
  fn(std::integral_constant<int, 3>());
}

HWY_INLINE void unpack_codes(const BlockQ2_K* b, std::int64_t, Codes& c) {
  HWY_ALIGN std::int8_t low[16], high[16];
  each_16(
      low, [](VCodes v) HWY_ATTR { return bits_of<0, 4>(v); }, b->s);
  each_16(
      high, [](VCodes v) HWY_ATTR { return bits_of<4, 4>(v); }, b->s);
  scale_levels(b->d, low, c.scale);
  scale_levels(-b->dmin, high, c.minimum);
  for (int half = 0; half < 2; ++half)
    each_part([&](auto part) HWY_ATTR {
      constexpr int kPart = part;
      for (int i = 0; i < 32; i += 16)
        each_16(
            c.q + 128 * half + 32 * kPart + i, [](VCodes v) HWY_ATTR { return bits_of<2 * kPart, 2>(v); },
            b->q + 32 * half + i);
    });
}

HWY_INLINE void unpack_codes(const BlockQ3_K* b, std::int64_t, Codes& c) {
  std::int8_t scales[16];
  for (int j = 0; j < 16; ++j) {
    const int low = b->s[j % 8] >> (j < 8 ? 0 : 4) & 15;
    scales[j] = static_cast<std::int8_t>(low + 16 * (b->s[8 + j % 4] >> (2 * (j / 4)) & 3) - 32);
  }
  scale_levels(b->d, scales, c.scale);
  const auto half_of = [&](auto half) HWY_ATTR {
    each_part([&](auto part) HWY_ATTR {
      constexpr int kPart = part;
      constexpr int kBit = 4 * half + kPart;
      for (int i = 0; i < 32; i += 16)
        each_16(
            c.q + 128 * half + 32 * kPart + i,
            [](VCodes v, VCodes h)
                HWY_ATTR { return less(hn::Or(bits_of<2 * kPart, 2>(v), shifted_up<2>(bits_of<kBit, 1>(h))), 4); },
            b->q + 32 * half + i, b->h + i);
    });
  };
  half_of(std::integral_constant<int, 0>());
  half_of(std::integral_constant<int, 1>());
}

template <typename Block>
HWY_INLINE void unpack_six_bit_scales(const Block& b, Codes& c) {
  std::uint8_t scales[16] = {}, minima[16] = {};
  for (int j = 0; j < 8; ++j) {
    const ScaleAndMinimum s = scale_and_minimum(b.s, j);
    scales[j] = s.scale & 63;
    minima[j] = s.minimum & 63;
  }
  scale_levels(b.d, scales, c.scale);
  scale_levels(-b.dmin, minima, c.minimum);
}

HWY_INLINE void unpack_codes(const BlockQ4_K* b, std::int64_t, Codes& c) {
  unpack_six_bit_scales(*b, c);
  for (int pair = 0; pair < 4; ++pair)
    for (int i = 0; i < 32; i += 16) {
      const std::uint8_t* q = b->q + 32 * pair + i;
      each_16(
          c.q + 64 * pair + i, [](VCodes v) HWY_ATTR { return bits_of<0, 4>(v); }, q);
      each_16(
          c.q + 64 * pair + 32 + i, [](VCodes v) HWY_ATTR { return bits_of<4, 4>(v); }, q);
    }
}

HWY_INLINE void unpack_codes(const BlockQ5_K* b, std::int64_t, Codes& c) {
  unpack_six_bit_scales(*b, c);
  each_part([&](auto pair) HWY_ATTR {
    constexpr int kPair = pair;
    for (int i = 0; i < 32; i += 16) {
      const std::uint8_t* q = b->q + 32 * kPair + i;
      each_16(
          c.q + 64 * kPair + i,
          [](VCodes v, VCodes h) HWY_ATTR { return hn::Or(bits_of<0, 4>(v), shifted_up<4>(bits_of<2 * kPair, 1>(h))); },
          q, b->h + i);
      each_16(
          c.q + 64 * kPair + 32 + i,
          [](VCodes v, VCodes h)
              HWY_ATTR { return hn::Or(bits_of<4, 4>(v), shifted_up<4>(bits_of<2 * kPair + 1, 1>(h))); },
          q, b->h + i);
    }
  });
}

HWY_INLINE void unpack_codes(const BlockQ6_K* b, std::int64_t, Codes& c) {
  scale_levels(b->d, b->s, c.scale);
  for (int half = 0; half < 2; ++half)
    each_part([&](auto part) HWY_ATTR {
      constexpr int kPart = part;
      for (int i = 0; i < 32; i += 16)
        each_16(
            c.q + 128 * half + 32 * kPart + i,
            [](VCodes l, VCodes h) HWY_ATTR {
              return less(hn::Or(bits_of<kPart / 2 * 4, 4>(l), shifted_up<4>(bits_of<2 * kPart, 2>(h))), 32);
            },
            b->l + 64 * half + kPart % 2 * 32 + i, b->h + 32 * half + i);
    });
}

HWY_INLINE void unpack_codes(const BlockIQ4_XS* b, std::int64_t, Codes& c) {
  std::int8_t scales[16] = {};
  for (int j = 0; j < 8; ++j)
    scales[j] = static_cast<std::int8_t>((b->s[j / 2] >> (4 * (j % 2)) & 15) + 16 * (b->u >> (2 * j) & 3) - 32);
  scale_levels(b->d, scales, c.scale);
  for (int j = 0; j < 8; ++j) {
    each_16(
        c.q + 32 * j, [](VCodes v) HWY_ATTR { return look_up(kIq4Values, bits_of<0, 4>(v)); }, b->q + 16 * j);
    each_16(
        c.q + 32 * j + 16, [](VCodes v) HWY_ATTR { return look_up(kIq4Values, bits_of<4, 4>(v)); }, b->q + 16 * j);
  }
}

// Codes of the blocks from value `at` of a row of k values on; returns how many values, at most 256.
template <typename Block>
HWY_INLINE std::int64_t unpack_run(const Block* row, std::int64_t at, std::int64_t k, Codes& c) {
  const std::int64_t n = std::min<std::int64_t>(kSuperBlock, k - at);
  unpack_codes(row + at / kBlockValues<Block>, n / kBlockValues<Block>, c);
  return n;
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
