// Packed rows against queries, 8 values at a time: a word of 8 nibbles is broadcast and shifted by lane.
#include "src/selection/summary/packed_dots.h"

#include "src/ops/simd/fixed_width_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/selection/summary/packed_dots_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/simd/load_half-inl.h"
#include "src/ops/simd/vec_math-inl.h"

#ifndef MNEME_KERNELS_PACKED_DOTS_CPU_ONCE_
#define MNEME_KERNELS_PACKED_DOTS_CPU_ONCE_
#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/base/check.h"
#include "src/kv/kv_quant.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 8>;

// Values [c, c + lanes) of a row of nibbles.
HWY_INLINE hn::Vec<Floats> load_nibbles(const std::byte* row, std::size_t c) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> du;
  const hn::RebindToSigned<Floats> di;
  std::uint32_t word;
  std::memcpy(&word, row + c / 8 * 4, sizeof(word));
  const auto shift = hn::ShiftLeft<2>(hn::Iota(du, static_cast<std::uint32_t>(c % 8)));
  const auto nibble = hn::And(hn::Shr(hn::Set(du, word), shift), hn::Set(du, 15u));
  return hn::ConvertTo(d, hn::Sub(hn::BitCast(di, nibble), hn::Set(di, 8)));
}

template <class T>
HWY_INLINE hn::Vec<Floats> load_bytes(const std::byte* row, std::size_t c) {
  const Floats d;
  const hn::Rebind<T, Floats> d8;
  const hn::RebindToSigned<Floats> di;
  return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const T*>(row) + c)));
}

template <int kHeads, class Load>
HWY_INLINE void dot_rows(const float* q, const PackedEntries& r, std::size_t row_bytes, Load load, float* out,
                         std::int64_t stride) {
  const Floats d;
  const std::size_t length = r.length;
  for (std::int64_t e = 0; e < r.n_entries; ++e) {
    const std::byte* row = r.entries + e * r.entry_bytes + r.first;
    for (std::int32_t i = 0; i < r.rows; ++i, row += row_bytes) {
      hn::Vec<Floats> sum[kHeads];
      for (auto& s : sum) s = hn::Zero(d);
      for (std::size_t c = 0; c < length; c += hn::Lanes(d)) {
        const auto x = load(row, c);
        for (std::size_t h = 0; h < kHeads; ++h) sum[h] = hn::MulAdd(x, hn::LoadU(d, q + h * length + c), sum[h]);
      }
      for (int h = 0; h < kHeads; ++h) out[h * stride + e * r.rows + i] = hn::GetLane(hn::SumOfLanes(d, sum[h]));
    }
  }
}

template <class Load>
HWY_INLINE void dot_group(const float* q, std::int32_t group, const PackedEntries& r, std::size_t row_bytes, Load load,
                          float* out, std::int64_t stride) {
  std::int32_t h = 0;
  for (; h + 4 <= group; h += 4) dot_rows<4>(q + h * r.length, r, row_bytes, load, out + h * stride, stride);
  for (; h < group; ++h) dot_rows<1>(q + h * r.length, r, row_bytes, load, out + h * stride, stride);
}

void NibbleDots(const float* q, std::int32_t group, const PackedEntries& r, float* out, std::int64_t stride) {
  dot_group(
      q, group, r, r.length / 2, [](const std::byte* row, std::size_t c) HWY_ATTR { return load_nibbles(row, c); }, out,
      stride);
}
void Int8Dots(const float* q, std::int32_t group, const PackedEntries& r, float* out, std::int64_t stride) {
  dot_group(
      q, group, r, r.length,
      [](const std::byte* row, std::size_t c) HWY_ATTR { return load_bytes<std::int8_t>(row, c); }, out, stride);
}
void Uint8Dots(const float* q, std::int32_t group, const PackedEntries& r, float* out, std::int64_t stride) {
  dot_group(
      q, group, r, r.length,
      [](const std::byte* row, std::size_t c) HWY_ATTR { return load_bytes<std::uint8_t>(row, c); }, out, stride);
}

void NibbleSum(const float* weights, const std::byte* nibbles, std::int32_t rows, std::int32_t length, float* out) {
  const Floats d;
  const std::size_t n = length;
  for (std::size_t t = 0; t < n; t += hn::Lanes(d)) {
    auto sum = hn::Zero(d);
    for (std::int32_t i = 0; i < rows; ++i)
      sum = hn::MulAdd(hn::Set(d, weights[i]), load_nibbles(nibbles + i * (n / 2), t), sum);
    hn::StoreU(sum, d, out + t);
  }
}

void LogSumExpRows(const float* x, std::int64_t n, std::int32_t width, float* out) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d), w = width;
  for (std::int64_t i = 0; i < n; ++i, x += width) {
    float largest = x[0];
    bool nan = std::isnan(x[0]);
    for (std::size_t c = 1; c < w; ++c) {
      nan = nan || std::isnan(x[c]);
      largest = std::max(largest, x[c]);
    }
    if (nan || std::isinf(largest)) {
      out[i] = nan ? NAN : largest;
      continue;
    }
    const auto top = hn::Set(d, largest);
    auto sum = hn::Zero(d);
    std::size_t c = 0;
    for (; c + lanes <= w; c += lanes) sum = hn::Add(sum, vec_exp(d, hn::Sub(hn::LoadU(d, x + c), top)));
    float total = hn::GetLane(hn::SumOfLanes(d, sum));
    for (; c < w; ++c) total += std::exp(x[c] - largest);
    out[i] = largest + std::log(total);
  }
}

template <class Load>
HWY_INLINE void load_with(std::span<const KvRun> runs, const AttentionShape& shape, Load load, float* x) {
  const Floats d;
  const std::size_t dim = shape.head_dim;
  for (const KvRun& run : runs) {
    const std::byte* key = run.kv;
    for (std::int32_t t = 0; t < run.n_tokens; ++t, key += shape.token_bytes(), x += dim)
      for (std::size_t c = 0; c < dim; c += hn::Lanes(d)) hn::StoreU(load(d, key + 2 * c), d, x + c);
  }
}

void LoadKeys(std::span<const KvRun> runs, const AttentionShape& shape, float* x) {
  if (shape.kv_dtype == DType::kBF16)
    load_with(runs, shape, LoadBf16(), x);
  else
    load_with(runs, shape, LoadF16(), x);
}

void RowProducts(const float* a, std::int64_t n, const float* b, std::int64_t m, std::int64_t dim, float* out) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < m; ++j) {
      auto sum = hn::Zero(d);
      for (std::int64_t c = 0; c < dim; c += lanes)
        sum = hn::MulAdd(hn::LoadU(d, a + i * dim + c), hn::LoadU(d, b + j * dim + c), sum);
      out[i * m + j] = hn::GetLane(hn::SumOfLanes(d, sum));
    }
}

void AddOuter(const float* x, std::int64_t n, std::int64_t dim, float* c) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < dim; ++i)
    for (std::int64_t j = 0; j < dim; j += lanes) {
      auto sum = hn::LoadU(d, c + i * dim + j);
      for (std::int64_t t = 0; t < n; ++t)
        sum = hn::MulAdd(hn::Set(d, x[t * dim + i]), hn::LoadU(d, x + t * dim + j), sum);
      hn::StoreU(sum, d, c + i * dim + j);
    }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {
HWY_EXPORT(NibbleDots);
HWY_EXPORT(Int8Dots);
HWY_EXPORT(Uint8Dots);
HWY_EXPORT(NibbleSum);
HWY_EXPORT(LogSumExpRows);
HWY_EXPORT(LoadKeys);
HWY_EXPORT(RowProducts);
HWY_EXPORT(AddOuter);

void expect_eights(std::int64_t length) {
  MNEME_CHECK(length > 0 && length % 8 == 0, "rows of {} values", length);
}
}  // namespace

void nibble_dots_cpu(const float* q, std::int32_t group, const PackedEntries& rows, float* out, std::int64_t stride) {
  expect_eights(rows.length);
  HWY_DYNAMIC_DISPATCH(NibbleDots)(q, group, rows, out, stride);
}
void int8_dots_cpu(const float* q, std::int32_t group, const PackedEntries& rows, float* out, std::int64_t stride) {
  expect_eights(rows.length);
  HWY_DYNAMIC_DISPATCH(Int8Dots)(q, group, rows, out, stride);
}
void uint8_dots_cpu(const float* q, std::int32_t group, const PackedEntries& rows, float* out, std::int64_t stride) {
  expect_eights(rows.length);
  HWY_DYNAMIC_DISPATCH(Uint8Dots)(q, group, rows, out, stride);
}
void nibble_sum_cpu(const float* weights, const std::byte* nibbles, std::int32_t rows, std::int32_t length,
                    float* out) {
  expect_eights(length);
  HWY_DYNAMIC_DISPATCH(NibbleSum)(weights, nibbles, rows, length, out);
}
void log_sum_exp_rows_cpu(const float* x, std::int64_t n, std::int32_t width, float* out) {
  HWY_DYNAMIC_DISPATCH(LogSumExpRows)(x, n, width, out);
}
void load_keys_cpu(std::span<const KvRun> runs, const AttentionShape& shape, float* x) {
  expect_eights(shape.head_dim);
  static thread_local Buffer t_wide;
  const WideTokens wide(runs, shape, t_wide, KvPart::kKeys);
  HWY_DYNAMIC_DISPATCH(LoadKeys)(wide.runs(), wide.shape(), x);
}
void row_products_cpu(const float* a, std::int64_t n, const float* b, std::int64_t m, std::int64_t dim, float* out) {
  expect_eights(dim);
  HWY_DYNAMIC_DISPATCH(RowProducts)(a, n, b, m, dim, out);
}
void add_outer_cpu(const float* x, std::int64_t n, std::int64_t dim, float* c) {
  expect_eights(dim);
  HWY_DYNAMIC_DISPATCH(AddOuter)(x, n, dim, c);
}

}  // namespace mneme
#endif  // HWY_ONCE
