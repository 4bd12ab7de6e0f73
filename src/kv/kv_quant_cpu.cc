#include "src/kv/kv_quant.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kv/kv_quant_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/kv/widen-inl.h"

#ifndef MNEME_KV_QUANT_CPU_ONCE_
#define MNEME_KV_QUANT_CPU_ONCE_
#include <cmath>
#include <limits>

#include "src/base/check.h"
#include "src/tensor/half_value.h"

namespace mneme {
namespace {

constexpr float kLeast = 0x1p-100f;  // below, rows are 0: 127 / max would overflow
constexpr float kLargestFp8 = 448.0f, kLargestInt8 = 127.0f;

struct Tokens {
  const std::byte* const* rows;
  std::size_t n;
  std::int32_t head_dim;
  bool values;
  bf16* to;
};

}  // namespace
}  // namespace mneme
#endif

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace {

using D8 = hn::CappedTag<float, 8>;

// The largest magnitude; NaN where an element is not finite.
float LargestMagnitude(const float* x, std::int32_t n) {
  const D8 d;
  auto largest = hn::Zero(d);
  bool finite = true;
  for (std::int32_t i = 0; i < n; i += static_cast<std::int32_t>(hn::Lanes(d))) {
    const auto v = hn::LoadU(d, x + i);
    finite = finite && hn::AllTrue(d, hn::IsFinite(v));
    largest = hn::Max(largest, hn::Abs(v));
  }
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

void ToInt8(const float* x, std::int32_t n, float inverse, std::int8_t* to) {
  const D8 d;
  const hn::Rebind<std::int8_t, D8> d8;
  const hn::Rebind<std::int32_t, D8> d32;
  for (std::int32_t i = 0; i < n; i += static_cast<std::int32_t>(hn::Lanes(d))) {
    const auto code = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse)));
    hn::StoreU(hn::DemoteTo(d8, hn::Max(hn::Min(code, hn::Set(d32, 127)), hn::Set(d32, -127))), d8, to + i);
  }
}

// From 2^-6 on, the upper bits of the f32, rounded to nearest even, with the exponent's bias changed from 127 to 7.
// Below, multiples of 2^-9; 8 of them are the code of 2^-6.
void ToFp8(const float* x, std::int32_t n, float inverse, std::uint8_t* to) {
  const D8 d;
  const hn::Rebind<std::uint8_t, D8> d8;
  const hn::RebindToSigned<D8> d32;
  for (std::int32_t i = 0; i < n; i += static_cast<std::int32_t>(hn::Lanes(d))) {
    const auto v = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse));
    const auto size = hn::Min(hn::Abs(v), hn::Set(d, kLargestFp8));
    const auto bits = hn::BitCast(d32, size);
    const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(d32, 1));
    const auto rounded = hn::ShiftRight<20>(hn::Add(hn::Add(bits, hn::Set(d32, 0x7ffff)), odd));
    const auto normal = hn::Sub(rounded, hn::Set(d32, (127 - 7) << 3));
    const auto small = hn::NearestInt(hn::Mul(size, hn::Set(d, 512.0f)));
    const auto is_small = hn::RebindMask(d32, hn::Lt(size, hn::Set(d, 0x1p-6f)));
    const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(d32, v)), hn::Set(d32, 0x80));
    hn::StoreU(hn::DemoteTo(d8, hn::Or(hn::IfThenElse(is_small, small, normal), sign)), d8, to + i);
  }
}

template <DType kDType>
HWY_INLINE void widen_all(const Tokens& t) {
  bf16* to = t.to;
  for (std::size_t i = 0; i < t.n; ++i, to += 2 * t.head_dim) widen_token<kDType>(t.rows[i], t.head_dim, t.values, to);
}

void WidenTokens(const Tokens& t, DType dtype) {
  if (dtype == DType::kInt8)
    widen_all<DType::kInt8>(t);
  else
    widen_all<DType::kFp8>(t);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(LargestMagnitude);
HWY_EXPORT(ToInt8);
HWY_EXPORT(ToFp8);
HWY_EXPORT(WidenTokens);

float value_of(std::byte code, DType dtype) {
  const auto bits = std::to_integer<unsigned>(code);
  if (dtype == DType::kInt8) return std::bit_cast<std::int8_t>(code);
  const unsigned exponent = (bits >> 3) & 15u, mantissa = bits & 7u;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(8 + mantissa), static_cast<int>(exponent) - 10);
  return (bits & 0x80u) != 0 ? -size : size;
}

}  // namespace

float quantise_row_cpu(const float* x, std::int32_t head_dim, DType dtype, std::byte* codes) {
  MNEME_CHECK(is_eight_bit(dtype) && head_dim % 8 == 0, "{}, D {}", dtype_name(dtype), head_dim);
  const float largest = HWY_DYNAMIC_DISPATCH(LargestMagnitude)(x, head_dim);
  if (!(largest >= kLeast)) {  // NaN, too
    std::fill_n(codes, head_dim, std::isnan(largest) ? std::byte{1} : std::byte{0});
    return std::isnan(largest) ? largest : 0.0f;
  }
  if (dtype == DType::kInt8) {
    HWY_DYNAMIC_DISPATCH(ToInt8)(x, head_dim, kLargestInt8 / largest, reinterpret_cast<std::int8_t*>(codes));
    return largest / kLargestInt8;
  }
  HWY_DYNAMIC_DISPATCH(ToFp8)(x, head_dim, kLargestFp8 / largest, reinterpret_cast<std::uint8_t*>(codes));
  return largest / kLargestFp8;
}

void widen_tokens_cpu(std::span<const std::byte* const> rows, const AttentionShape& shape, KvPart part, std::byte* to) {
  HWY_DYNAMIC_DISPATCH(WidenTokens)
  ({rows.data(), rows.size(), shape.head_dim, part == KvPart::kKeysAndValues, reinterpret_cast<bf16*>(to)},
   shape.kv_dtype);
}

WideTokens::WideTokens(std::span<const KvRun> runs, const AttentionShape& shape, Buffer& scratch, KvPart part)
    : runs_(runs), shape_(shape.wide()) {
  if (!is_eight_bit(shape.kv_dtype)) return;
  std::int64_t n = 0;
  for (const KvRun& run : runs) n += run.n_tokens;
  scratch.reserve(n * shape_.token_bytes());
  copy_ = {scratch.data(), static_cast<std::int32_t>(n)};
  runs_ = {&copy_, 1};
  constexpr std::int32_t kAtOnce = 32;
  const std::byte* rows[kAtOnce];
  std::byte* to = scratch.data();
  for (const KvRun& run : runs)
    for (std::int32_t t = 0; t < run.n_tokens;) {
      std::int32_t taken = 0;
      for (; taken < kAtOnce && t < run.n_tokens; ++t) rows[taken++] = run.kv + t * shape.token_bytes();
      widen_tokens_cpu(std::span(rows).first(taken), shape, part, to);
      to += taken * shape_.token_bytes();
    }
}

float load_kv(const std::byte* token, std::int32_t i, DType dtype, std::int32_t head_dim) {
  if (!is_eight_bit(dtype)) return load_half(token, i, dtype);
  float scales[2];
  std::memcpy(scales, token + 2 * std::ptrdiff_t{head_dim}, sizeof(scales));
  return bf16(value_of(token[i], dtype) * scales[i / head_dim]);
}

}  // namespace mneme
#endif  // HWY_ONCE
