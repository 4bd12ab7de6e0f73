// Boxes of the keys of a unit. Maximum and minimum are taken on the 16-bit patterns in an order-preserving form
// (negatives have their lower 15 bits flipped), which is the same for bf16 and f16 and orders -0 below +0; a pattern
// beyond infinity's is a NaN.
#include "src/selection/index/box.h"

#include "src/ops/simd/fixed_width_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/selection/index/box_build_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/simd/load_half-inl.h"

#ifndef MNEME_KERNELS_BOX_BUILD_CPU_ONCE_
#define MNEME_KERNELS_BOX_BUILD_CPU_ONCE_
#include <cmath>
#include <cstring>
#include <limits>

#include "src/base/check.h"
#include "src/kv/kv_quant.h"
#include "src/tensor/half.h"
#include "src/tensor/half_value.h"

namespace mneme {
namespace {

constexpr std::int32_t kMaxDim = 256;

struct HalfFormat {
  std::int16_t infinity;
  std::uint16_t quiet_nan;
};
constexpr HalfFormat kBf16Format{0x7f80, 0x7fc0};
constexpr HalfFormat kF16Format{0x7c00, 0x7e00};

}  // namespace
}  // namespace mneme
#endif

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class V>
HWY_INLINE V order_of(D d, V bits) {
  const hn::RebindToUnsigned<D> du;
  const auto low = hn::ShiftRight<1>(hn::BitCast(du, hn::BroadcastSignBit(bits)));
  return hn::Xor(bits, hn::BitCast(d, low));
}

// hi and lo of kVectors vectors of channels, starting at c.
template <int kVectors, class D>
HWY_INLINE void min_max_channels(D d, std::span<const KvRun> runs, std::size_t token_bytes, std::size_t c,
                                 const HalfFormat& format, std::int16_t* hi, std::int16_t* lo) {
  using V = hn::Vec<D>;
  const std::size_t lanes = hn::Lanes(d);
  const V magnitude = hn::Set(d, std::int16_t{0x7fff});
  V most[kVectors], least[kVectors], largest[kVectors];  // `largest`: of magnitudes
  for (int v = 0; v < kVectors; ++v) {
    most[v] = hn::Set(d, std::numeric_limits<std::int16_t>::min());
    least[v] = magnitude;
    largest[v] = hn::Zero(d);
  }
  for (const KvRun& run : runs) {
    const std::byte* token = run.kv + 2 * c;
    for (std::int32_t t = 0; t < run.n_tokens; ++t, token += token_bytes) {
      const auto* keys = reinterpret_cast<const std::int16_t*>(token);
      for (int v = 0; v < kVectors; ++v) {
        const V bits = hn::LoadU(d, keys + v * lanes);
        const V x = order_of(d, bits);
        most[v] = hn::Max(most[v], x);
        least[v] = hn::Min(least[v], x);
        largest[v] = hn::Max(largest[v], hn::And(bits, magnitude));
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    const auto nan = hn::Gt(largest[v], hn::Set(d, format.infinity));
    const V quiet = hn::Set(d, static_cast<std::int16_t>(format.quiet_nan));
    const std::size_t at = c + v * lanes;
    hn::StoreU(hn::IfThenElse(nan, quiet, order_of(d, most[v])), d, hi + at);
    hn::StoreU(hn::IfThenElse(nan, quiet, order_of(d, least[v])), d, lo + at);
  }
}

template <class D>
HWY_INLINE void min_max_in(D d, std::span<const KvRun> runs, std::size_t token_bytes, std::size_t dim,
                           const HalfFormat& format, std::int16_t* hi, std::int16_t* lo) {
  constexpr int kVectors = 4;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t c = 0;
  for (; c + kVectors * lanes <= dim; c += kVectors * lanes)
    min_max_channels<kVectors>(d, runs, token_bytes, c, format, hi, lo);
  for (; c < dim; c += lanes) min_max_channels<1>(d, runs, token_bytes, c, format, hi, lo);
}

void min_max(std::span<const KvRun> runs, std::size_t token_bytes, std::size_t dim, DType dtype, std::int16_t* hi,
             std::int16_t* lo) {
  const HalfFormat& format = dtype == DType::kBF16 ? kBf16Format : kF16Format;
  const hn::ScalableTag<std::int16_t> d;
  const hn::CappedTag<std::int16_t, 8> d8;
  if (dim % hn::Lanes(d) == 0)
    min_max_in(d, runs, token_bytes, dim, format, hi, lo);
  else
    min_max_in(d8, runs, token_bytes, dim, format, hi, lo);
}

template <class Load>
HWY_INLINE void sum_distances_of(std::span<const KvRun> runs, std::size_t token_bytes, std::size_t dim, Load load,
                                 const float* centre, float* distance) {
  const hn::CappedTag<float, 8> d;
  for (std::size_t c = 0; c < dim; c += hn::Lanes(d)) {
    const auto middle = hn::LoadU(d, centre + c);
    auto sum = hn::Zero(d);
    for (const KvRun& run : runs) {
      const std::byte* token = run.kv + 2 * c;
      for (std::int32_t t = 0; t < run.n_tokens; ++t, token += token_bytes)
        sum = hn::Add(sum, hn::Abs(hn::Sub(middle, load(d, token))));
    }
    hn::StoreU(sum, d, distance + c);
  }
}

// distance[c] = sum over tokens, in order, of |centre[c] - key[c]|.
void sum_distances(std::span<const KvRun> runs, std::size_t token_bytes, std::size_t dim, DType dtype,
                   const float* centre, float* distance) {
  if (dtype == DType::kBF16)
    sum_distances_of(runs, token_bytes, dim, LoadBf16(), centre, distance);
  else
    sum_distances_of(runs, token_bytes, dim, LoadF16(), centre, distance);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(min_max);
HWY_EXPORT(sum_distances);

}  // namespace

void box_build_cpu(std::span<const KvRun> tokens, const AttentionShape& stored, BoxKind kind, std::byte* box) {
  static thread_local Buffer t_wide;
  const WideTokens wide(tokens, stored, t_wide, KvPart::kKeys);
  const std::span<const KvRun> runs = wide.runs();
  const AttentionShape& shape = wide.shape();
  MNEME_CHECK(shape.head_dim % 8 == 0 && shape.head_dim >= 8 && shape.head_dim <= kMaxDim, "D {}", shape.head_dim);
  std::int64_t n = 0;
  for (const KvRun& run : runs) n += run.n_tokens;
  MNEME_CHECK(n > 0, "a box around no token");
  const std::size_t dim = shape.head_dim;
  auto* hi = reinterpret_cast<std::int16_t*>(box);
  auto* lo = hi + dim;
  HWY_DYNAMIC_DISPATCH(min_max)(runs, shape.token_bytes(), dim, shape.kv_dtype, hi, lo);
  if (kind == BoxKind::kMinMax) return;

  const HalfFormat& format = shape.kv_dtype == DType::kBF16 ? kBf16Format : kF16Format;
  float centre[kMaxDim], distance[kMaxDim];
  for (std::size_t c = 0; c < dim; ++c)
    centre[c] = 0.5f * half_value(hi[c], shape.kv_dtype) + 0.5f * half_value(lo[c], shape.kv_dtype);
  HWY_DYNAMIC_DISPATCH(sum_distances)(runs, shape.token_bytes(), dim, shape.kv_dtype, centre, distance);
  const auto store = [&](float x, std::int16_t* at) {
    *at = std::isnan(x) ? format.quiet_nan : half_bits(x, shape.kv_dtype);
  };
  for (std::size_t c = 0; c < dim; ++c) {
    const float mean = distance[c] / static_cast<float>(n);  // NaN where the centre is
    store(centre[c] + mean, hi + c);
    store(centre[c] - mean, lo + c);
  }
}

}  // namespace mneme
#endif
