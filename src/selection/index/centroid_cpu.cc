// Means of keys, 8 channels at a time. Their scores are dot products of rows, as for keys: box_cpu.cc.
#include "src/selection/index/centroid.h"

#include "src/ops/simd/fixed_width_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/selection/index/centroid_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/simd/load_half-inl.h"

#ifndef MNEME_KERNELS_CENTROID_CPU_ONCE_
#define MNEME_KERNELS_CENTROID_CPU_ONCE_
#include <cmath>
#include <cstring>

#include "src/base/check.h"
#include "src/kv/kv_quant.h"
#include "src/tensor/half.h"

namespace mneme {
namespace {
constexpr std::int32_t kMaxDim = 256;
}  // namespace
}  // namespace mneme
#endif

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

template <class Load>
HWY_INLINE void sum_with(std::span<const KvRun> runs, std::size_t token_bytes, std::size_t dim, Load load, float* sum) {
  const hn::CappedTag<float, 8> d;
  for (std::size_t c = 0; c < dim; c += hn::Lanes(d)) hn::StoreU(hn::Zero(d), d, sum + c);
  for (const KvRun& run : runs) {
    const std::byte* key = run.kv;
    for (std::int32_t t = 0; t < run.n_tokens; ++t, key += token_bytes)
      for (std::size_t c = 0; c < dim; c += hn::Lanes(d))
        hn::StoreU(hn::Add(hn::LoadU(d, sum + c), load(d, key + 2 * c)), d, sum + c);
  }
}

void sum_keys(std::span<const KvRun> runs, std::size_t token_bytes, std::size_t dim, DType dtype, float* sum) {
  if (dtype == DType::kBF16)
    sum_with(runs, token_bytes, dim, LoadBf16(), sum);
  else
    sum_with(runs, token_bytes, dim, LoadF16(), sum);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(sum_keys);

}  // namespace

void centroid_build_cpu(std::span<const KvRun> tokens, const AttentionShape& stored, std::byte* centroid) {
  static thread_local Buffer t_wide;
  const WideTokens wide(tokens, stored, t_wide, KvPart::kKeys);
  const std::span<const KvRun> runs = wide.runs();
  const AttentionShape& shape = wide.shape();
  MNEME_CHECK(shape.head_dim % 8 == 0 && shape.head_dim >= 8 && shape.head_dim <= kMaxDim, "D {}", shape.head_dim);
  std::int64_t n = 0;
  for (const KvRun& run : runs) n += run.n_tokens;
  MNEME_CHECK(n > 0, "the centroid of no token");
  const std::size_t dim = shape.head_dim;
  alignas(64) float sum[kMaxDim];
  HWY_DYNAMIC_DISPATCH(sum_keys)(runs, shape.token_bytes(), dim, shape.kv_dtype, sum);
  const bool bf = shape.kv_dtype == DType::kBF16;
  for (std::size_t c = 0; c < dim; ++c) {
    const float mean = sum[c] / static_cast<float>(n);
    const std::uint16_t quiet = bf ? 0x7fc0 : 0x7e00;
    const std::uint16_t bits = std::isnan(mean) ? quiet : bf ? bf16(mean).bits : f16(mean).bits;
    std::memcpy(centroid + 2 * c, &bits, sizeof(bits));
  }
}

}  // namespace mneme
#endif
