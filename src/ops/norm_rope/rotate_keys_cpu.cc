#include "src/ops/norm_rope/rotate_keys.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/norm_rope/rotate_keys_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/norm_rope/rope-inl.h"
#include "src/ops/simd/load_half-inl.h"
#include "src/ops/simd/round-inl.h"

#ifndef MNEME_OPS_NORM_ROPE_ROTATE_KEYS_CPU_ONCE_
#define MNEME_OPS_NORM_ROPE_ROTATE_KEYS_CPU_ONCE_
#include <cstring>

#include "src/base/check.h"
#include "src/kv/kv_quant.h"
#include "src/tensor/half_value.h"
namespace mneme {
namespace {
constexpr std::int32_t kMaxHeadDim = 256;
}
}  // namespace mneme
#endif

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace {

// D 16-bit values to f32; D is a multiple of 8.
template <class Load>
HWY_INLINE void expand(const std::byte* from, std::int32_t n, Load load, float* to) {
  const hn::CappedTag<float, 8> d;
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  for (std::int32_t i = 0; i < n; i += lanes) hn::StoreU(load(d, from + 2 * i), d, to + i);
}

HWY_INLINE void round_to_bf16(const float* from, std::int32_t n, std::byte* to) {
  const hn::CappedTag<float, 8> d;
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  for (std::int32_t i = 0; i < n; i += lanes) store_bf16(d, hn::LoadU(d, from + i), reinterpret_cast<bf16*>(to) + i);
}

void RotateTokens(const KvRun& run, const AttentionShape& shape, const RopeAngles& angles, std::int64_t row,
                  std::byte* to) {
  float key[kMaxHeadDim];
  const std::size_t key_bytes = shape.token_bytes() / 2;
  const std::byte* from = run.kv;
  for (std::int32_t t = 0; t < run.n_tokens; ++t, ++row, from += shape.token_bytes(), to += shape.token_bytes()) {
    if (shape.kv_dtype == DType::kBF16) {
      expand(from, shape.head_dim, LoadBf16(), key);
    } else {
      expand(from, shape.head_dim, LoadF16(), key);
    }
    rotate_head(key, angles.cos(row), angles.sin(row), shape.head_dim / 2, angles.pairs());
    if (shape.kv_dtype == DType::kBF16) {
      round_to_bf16(key, shape.head_dim, to);
    } else {
      for (std::int32_t i = 0; i < shape.head_dim; ++i) reinterpret_cast<f16*>(to)[i] = f16(key[i]);
    }
    std::memcpy(to + key_bytes, from + key_bytes, key_bytes);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {
HWY_EXPORT(RotateTokens);
}  // namespace

namespace {

// Keys in 8 bits: widened, rotated, and quantised again; values are copied with their scales.
void rotate_eight_bit(std::span<const KvRun> runs, const AttentionShape& shape, const RopeAngles& angles,
                      std::int64_t first_row, std::byte* to) {
  static thread_local Buffer t_wide;
  const WideTokens wide(runs, shape, t_wide);
  rotate_keys_cpu(wide.runs(), wide.shape(), angles, first_row, t_wide.data());
  const std::size_t dim = shape.head_dim;
  const std::byte* rotated = t_wide.data();
  float key[kMaxHeadDim];
  for (const KvRun& run : runs) {
    const std::byte* from = run.kv;
    for (std::int32_t t = 0; t < run.n_tokens; ++t, rotated += wide.shape().token_bytes()) {
      for (std::size_t c = 0; c < dim; ++c) key[c] = load_half(rotated, c, DType::kBF16);
      const float scale = quantise_row_cpu(key, shape.head_dim, shape.kv_dtype, to);
      std::memcpy(to + dim, from + dim, dim + 2 * sizeof(scale));
      std::memcpy(to + 2 * dim, &scale, sizeof(scale));
      from += shape.token_bytes();
      to += shape.token_bytes();
    }
  }
}

}  // namespace

void rotate_keys_cpu(std::span<const KvRun> runs, const AttentionShape& shape, const RopeAngles& angles,
                     std::int64_t first_row, std::byte* to) {
  MNEME_CHECK(runs.empty() || (shape.head_dim <= kMaxHeadDim && angles.n_pairs() * 2 == shape.head_dim),
              "{} pairs for head_dim {}", angles.n_pairs(), shape.head_dim);
  if (is_eight_bit(shape.kv_dtype)) return rotate_eight_bit(runs, shape, angles, first_row, to);
  for (const KvRun& run : runs) {
    MNEME_CHECK(first_row + run.n_tokens <= angles.n_rows(), "angles of {} rows, row {} is wanted", angles.n_rows(),
                first_row + run.n_tokens - 1);
    HWY_DYNAMIC_DISPATCH(RotateTokens)(run, shape, angles, first_row, to);
    first_row += run.n_tokens;
    to += run.n_tokens * shape.token_bytes();
  }
}

}  // namespace mneme
#endif  // HWY_ONCE
