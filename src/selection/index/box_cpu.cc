// Scores of boxes and of keys. Both are dot products of rows of 16-bit floats with f32 weights, one row of weights per
// query head:
//
//   boxes  rows [hi: D | lo: D], weights [max(q, 0) | min(q, 0)]
//   keys   rows [K: D | V: D] of which K is read, weights q
//   means  rows [D], weights q (centroid.h)
//
// Four rows at a time, with all heads while they are in L1. Each (row, head) has one accumulator of a vector's lanes,
// summed in a fixed order, so that equal rows score equal at any index.
#include "src/selection/index/box.h"

#include "src/ops/simd/fixed_width_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/selection/index/box_cpu.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/simd/load_half-inl.h"

#ifndef MNEME_KERNELS_BOX_CPU_ONCE_
#define MNEME_KERNELS_BOX_CPU_ONCE_
#include <algorithm>

#include "src/base/check.h"
#include "src/kv/kv_quant.h"
#include "src/selection/index/centroid.h"

namespace mneme {
namespace {

constexpr int kRows = 4;
constexpr std::int32_t kMaxGroup = 16;
constexpr std::int32_t kMaxDim = 256;

// Weights of all heads, [heads, length].
struct Weights {
  const float* w = nullptr;
  std::int32_t heads = 0;
  std::size_t length = 0;
};

// Prefetch distance in rows, of this run and of runs of one token: without it a scan beyond the caches has half the
// rate.
constexpr std::size_t kPrefetch = 8;

// Destination: row i of head h goes to scores[h * score_stride + i].
struct ScoreTarget {
  float* scores = nullptr;
  std::int64_t score_stride = 0;
};

}  // namespace
}  // namespace mneme
#endif

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Horizontal sums of four vectors, each in the order ((0 + 2) + (1 + 3)) after folding halves.
#if HWY_TARGET == HWY_SCALAR
template <class D>
HWY_INLINE void sum_lanes(D, const hn::Vec<D>* v, float* sums) {
  for (int r = 0; r < kRows; ++r) sums[r] = hn::GetLane(v[r]);
}
#else
template <class D, class V>
HWY_INLINE auto fold(D, V v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return fold(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

template <class D>
HWY_INLINE void sum_lanes(D d, const hn::Vec<D>* v, float* sums) {
  const hn::FixedTag<float, 4> d4;
  const auto a = fold(d, v[0]);
  const auto b = fold(d, v[1]);
  const auto e = fold(d, v[2]);
  const auto f = fold(d, v[3]);
  const auto ab = hn::Add(hn::InterleaveLower(d4, a, b), hn::InterleaveUpper(d4, a, b));
  const auto ef = hn::Add(hn::InterleaveLower(d4, e, f), hn::InterleaveUpper(d4, e, f));
  hn::StoreU(hn::Add(hn::ConcatLowerLower(d4, ef, ab), hn::ConcatUpperUpper(d4, ef, ab)), d4, sums);
}
#endif

template <int kHeads, class D, class Load>
HWY_INLINE void dot_rows(D d, const std::byte* const* rows, const float* w, std::size_t length, Load load,
                         float* sums) {
  hn::Vec<D> acc[kHeads][kRows];
  for (int h = 0; h < kHeads; ++h)
    for (int r = 0; r < kRows; ++r) acc[h][r] = hn::Zero(d);
  for (std::size_t c = 0; c < length; c += hn::Lanes(d)) {
    hn::Vec<D> x[kRows];
    for (int r = 0; r < kRows; ++r) x[r] = load(d, rows[r] + 2 * c);
    for (int h = 0; h < kHeads; ++h) {
      const auto weight = hn::LoadU(d, w + h * length + c);
      for (int r = 0; r < kRows; ++r) acc[h][r] = hn::MulAdd(x[r], weight, acc[h][r]);
    }
  }
  for (int h = 0; h < kHeads; ++h) sum_lanes(d, acc[h], sums + h * kRows);
}

// 16 accumulators of AVX-512's 32 registers, 8 of the 16 of other targets.
inline constexpr int kHeadsAtOnce = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

// Scores of rows[0..3] at columns [at, at + n), n <= 4.
template <class D, class Load>
HWY_INLINE void score_rows(D d, const std::byte* const* rows, const Weights& weights, Load load, std::int64_t at, int n,
                           const ScoreTarget& out) {
  for (std::int32_t h = 0; h < weights.heads; h += kHeadsAtOnce) {
    HWY_ALIGN float sums[kHeadsAtOnce * kRows];
    const float* w = weights.w + h * weights.length;
    const int heads = std::min<int>(kHeadsAtOnce, weights.heads - h);
    if (heads == 1) dot_rows<1>(d, rows, w, weights.length, load, sums);
    if (heads == 2) dot_rows<2>(d, rows, w, weights.length, load, sums);
    if constexpr (kHeadsAtOnce > 2) {
      if (heads == 3) dot_rows<3>(d, rows, w, weights.length, load, sums);
      if (heads == 4) dot_rows<4>(d, rows, w, weights.length, load, sums);
    }
    for (int i = 0; i < heads; ++i)
      for (int r = 0; r < n; ++r) out.scores[(h + i) * out.score_stride + at + r] = sums[i * kRows + r];
  }
}

HWY_INLINE void prefetch_row(const std::byte* row, std::size_t length) {
  for (std::size_t byte = 0; byte < 2 * length; byte += 64) hwy::Prefetch(row + byte);
}

template <class D, class Load>
HWY_INLINE void score_runs(D d, std::span<const KvRun> runs, std::size_t row_bytes, const Weights& weights, Load load,
                           const ScoreTarget& out) {
  const std::byte* rows[kRows];
  int n = 0;
  std::int64_t at = 0;
  const auto score_block = [&]() HWY_ATTR {
    score_rows(d, rows, weights, load, at, n, out);
    at += n;
    n = 0;
  };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (i + kPrefetch < runs.size() && runs[i + kPrefetch].n_tokens > 0)
      prefetch_row(runs[i + kPrefetch].kv, weights.length);
    const std::byte* row = runs[i].kv;
    std::int32_t left = runs[i].n_tokens;
    while (left > 0) {
      for (; n < kRows && left > 0; --left, row += row_bytes) {
        if (left > static_cast<std::int32_t>(kPrefetch)) prefetch_row(row + kPrefetch * row_bytes, weights.length);
        rows[n++] = row;
      }
      if (n == kRows) score_block();
    }
  }
  if (n == 0) return;
  for (int r = n; r < kRows; ++r) rows[r] = rows[n - 1];
  score_block();
}

// Full vectors where they divide D, 8 lanes otherwise.
template <class Load>
HWY_INLINE void score_any(std::span<const KvRun> runs, std::size_t row_bytes, const Weights& weights, Load load,
                          const ScoreTarget& out) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 8> d8;
  if (weights.length % hn::Lanes(d) == 0)
    score_runs(d, runs, row_bytes, weights, load, out);
  else
    score_runs(d8, runs, row_bytes, weights, load, out);
}

void score(std::span<const KvRun> runs, std::size_t row_bytes, const Weights& weights, DType dtype,
           const ScoreTarget& out) {
  if (dtype == DType::kBF16)
    score_any(runs, row_bytes, weights, LoadBf16(), out);
  else
    score_any(runs, row_bytes, weights, LoadF16(), out);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(score);

void check_shape(const AttentionShape& shape) {
  MNEME_CHECK(shape.group >= 1 && shape.group <= kMaxGroup, "group {}", shape.group);
  MNEME_CHECK(shape.head_dim % 8 == 0 && shape.head_dim >= 8 && shape.head_dim <= kMaxDim, "D {}", shape.head_dim);
}

// Keys in 8 bits, widened some hundred tokens at a time, which stay in L1 or L2: calls `score` with them and the index of
// the first.
template <class Score>
void score_in_pieces(std::span<const KvRun> runs, const AttentionShape& shape, const Score& score) {
  static thread_local Buffer t_wide;
  constexpr std::int64_t kTokens = 128;
  std::int64_t at = 0;
  for (std::size_t first = 0, last = 0; first < runs.size(); first = last) {
    std::int64_t n = 0;
    while (last < runs.size() && (n == 0 || n + runs[last].n_tokens <= kTokens)) n += runs[last++].n_tokens;
    score(WideTokens(runs.subspan(first, last - first), shape, t_wide, KvPart::kKeys), at);
    at += n;
  }
}

}  // namespace

void box_score_cpu(const float* q, const AttentionShape& shape, const std::byte* boxes, std::int64_t n, float* scores,
                   std::int64_t score_stride) {
  check_shape(shape);
  alignas(64) float w[kMaxGroup * 2 * kMaxDim];
  const std::int32_t dim = shape.head_dim;
  for (std::int32_t g = 0; g < shape.group; ++g)
    for (std::int32_t c = 0; c < dim; ++c) {
      const float x = q[g * dim + c];
      w[2 * g * dim + c] = x < 0.0f ? 0.0f : x;  // NaN stays in both
      w[(2 * g + 1) * dim + c] = x > 0.0f ? 0.0f : x;
    }
  const Weights weights{w, shape.group, std::size_t{2} * dim};
  constexpr std::int64_t kChunk = std::int64_t{1} << 30;  // a run's tokens are an int32
  for (std::int64_t at = 0; at < n; at += kChunk) {
    const std::size_t bytes = shape.wide().token_bytes();
    const KvRun run{boxes + at * bytes, static_cast<std::int32_t>(std::min(kChunk, n - at))};
    HWY_DYNAMIC_DISPATCH(score)({&run, 1}, bytes, weights, shape.wide().kv_dtype, {scores + at, score_stride});
  }
}

void key_score_cpu(const float* q, const AttentionShape& shape, std::span<const KvRun> runs, float* scores,
                   std::int64_t score_stride) {
  check_shape(shape);
  const Weights weights{q, shape.group, static_cast<std::size_t>(shape.head_dim)};
  if (is_eight_bit(shape.kv_dtype)) {
    score_in_pieces(runs, shape, [&](const WideTokens& wide, std::int64_t at) {
      HWY_DYNAMIC_DISPATCH(score)
      (wide.runs(), wide.shape().token_bytes(), weights, wide.shape().kv_dtype, {scores + at, score_stride});
    });
    return;
  }
  HWY_DYNAMIC_DISPATCH(score)(runs, shape.token_bytes(), weights, shape.kv_dtype, {scores, score_stride});
}

void centroid_score_cpu(const float* q, const AttentionShape& shape, const std::byte* centroids, std::int64_t n,
                        float* scores, std::int64_t score_stride) {
  check_shape(shape);
  MNEME_CHECK(n >= 0 && n <= INT32_MAX, "{} centroids", n);
  const Weights weights{q, shape.group, static_cast<std::size_t>(shape.head_dim)};
  const KvRun run{centroids, static_cast<std::int32_t>(n)};
  HWY_DYNAMIC_DISPATCH(score)({&run, 1}, 2 * weights.length, weights, shape.wide().kv_dtype, {scores, score_stride});
}

}  // namespace mneme
#endif
