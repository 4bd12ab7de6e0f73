// k-means on int16 vectors. Assignment is a GEMM of tokens with centroids, 16 (or 8, or 4) centroids per vector: their
// channels are interleaved in pairs, [block of centroids][pair][centroid], so that one multiply-add of pairs serves a
// vector of centroids, and each lane tracks its best.
#include "src/selection/cluster/kmeans.h"

#include "src/ops/simd/fixed_width_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/selection/cluster/kmeans_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/simd/load_half-inl.h"

#ifndef MNEME_KERNELS_KMEANS_CPU_ONCE_
#define MNEME_KERNELS_KMEANS_CPU_ONCE_
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/base/check.h"
#include "src/kv/kv_quant.h"
#include "src/ops/simd/cpu_isa.h"

namespace mneme {
namespace {

constexpr std::int32_t kMaxDim = 256;
// Centroids per block: two vectors of the widest target, so that the packed form is the same for all.
constexpr std::int32_t kBlock = 32;

struct Centroids {
  const std::int16_t* packed = nullptr;
  const std::int32_t* bias = nullptr;  // added to each centroid's dot products
  std::int32_t n_blocks = 0;
};

}  // namespace
}  // namespace mneme
#endif

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Whether any channel is NaN or infinite.
template <class Load>
HWY_INLINE bool finite_key(const std::byte* key, std::size_t dim, Load load) {
  const hn::CappedTag<float, 8> d;
  auto sum = hn::Zero(d);
  for (std::size_t c = 0; c < dim; c += hn::Lanes(d)) sum = hn::MulAdd(load(d, key + 2 * c), hn::Zero(d), sum);
  return hn::AllTrue(d, hn::Eq(sum, hn::Zero(d)));
}

// Calls visit(key) for every token, and piece_ends() after each piece of kmeans.h.
template <class Visit, class PieceEnds>
HWY_INLINE void each_piece(std::span<const KvRun> runs, std::size_t token_bytes, const Visit& visit,
                           const PieceEnds& piece_ends) {
  std::int64_t n = 0;
  for (const KvRun& run : runs)
    for (std::int32_t t = 0; t < run.n_tokens; ++t) {
      visit(run.kv + t * token_bytes);
      if (++n % kKmeansPiece == 0) piece_ends();
    }
  if (n % kKmeansPiece != 0) piece_ends();
}

template <class Load>
HWY_INLINE void mean_with(std::span<const KvRun> runs, std::size_t token_bytes, std::size_t dim, Load load,
                          float* mean) {
  const hn::CappedTag<float, 8> d;
  alignas(64) float piece[kMaxDim] = {};
  std::fill_n(mean, dim, 0.0f);
  float n = 0;
  each_piece(
      runs, token_bytes,
      [&](const std::byte* key) HWY_ATTR {
        if (!finite_key(key, dim, load)) return;
        for (std::size_t c = 0; c < dim; c += hn::Lanes(d))
          hn::Store(hn::Add(hn::Load(d, piece + c), load(d, key + 2 * c)), d, piece + c);
        n += 1;
      },
      [&] {
        for (std::size_t c = 0; c < dim; ++c) mean[c] += piece[c], piece[c] = 0;
      });
  for (std::size_t c = 0; c < dim; ++c) mean[c] /= std::max(n, 1.0f);
}

// y = key - mean, or zero where a channel is not finite. Returns the largest |y|.
template <class Load>
HWY_INLINE float centre(const std::byte* key, const float* mean, std::size_t dim, Load load, float* y) {
  const hn::CappedTag<float, 8> d;
  auto most = hn::Zero(d);
  auto unsound = hn::Zero(d);  // NaN once a channel is not finite
  for (std::size_t c = 0; c < dim; c += hn::Lanes(d)) {
    const auto v = hn::Sub(load(d, key + 2 * c), hn::LoadU(d, mean + c));
    most = hn::Max(most, hn::Abs(v));
    unsound = hn::MulAdd(v, hn::Zero(d), unsound);
    hn::Store(v, d, y + c);
  }
  if (hn::AllTrue(d, hn::Eq(unsound, hn::Zero(d)))) return hn::GetLane(hn::MaxOfLanes(d, most));
  std::fill_n(y, dim, 0.0f);
  return 0.0f;
}

// x = round(scale * y), clamped to +-`most`.
HWY_INLINE void round_scaled(const float* y, std::size_t dim, float scale, float most, std::int16_t* x) {
  const hn::CappedTag<float, 8> d;
  const hn::Rebind<std::int16_t, decltype(d)> d16;
  const auto factor = hn::Set(d, scale);
  for (std::size_t c = 0; c < dim; c += hn::Lanes(d))
    hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(hn::Clamp(hn::Mul(hn::Load(d, y + c), factor), hn::Set(d, -most),
                                                          hn::Set(d, most)))),
               d16, x + c);
}

// x = round(32767 z / |z|), z = round(2047 y / max |y|).
HWY_INLINE void direction(float* y, std::size_t dim, float largest, std::int16_t* x) {
  const hn::CappedTag<float, 8> d;
  const hn::RebindToSigned<decltype(d)> di;
  if (largest < 1e-30f) {
    std::fill_n(x, dim, std::int16_t{0});
    return;
  }
  const auto scale = hn::Set(d, 2047.0f / largest);
  auto norm2 = hn::Zero(di);
  for (std::size_t c = 0; c < dim; c += hn::Lanes(d)) {
    const auto z = hn::NearestInt(hn::Mul(hn::Load(d, y + c), scale));
    norm2 = hn::Add(norm2, hn::Mul(z, z));
    hn::Store(hn::ConvertTo(d, z), d, y + c);
  }
  const auto total = static_cast<float>(hn::GetLane(hn::SumOfLanes(di, norm2)));
  round_scaled(y, dim, 32767.0f / std::sqrt(total), 32767.0f, x);
}

// 127 / m, with m of kmeans.h; y has room for a key.
template <class Load>
HWY_INLINE float scale_with(const KmeansTask& task, Load load, const float* mean, float* y) {
  const hn::CappedTag<float, 8> d;
  const std::size_t dim = task.shape.head_dim;
  alignas(64) float piece[kMaxDim] = {};
  float largest = 0, total = 0, n = 0;
  each_piece(
      task.runs, task.shape.token_bytes(),
      [&](const std::byte* key) HWY_ATTR {
        largest = std::max(largest, centre(key, mean, dim, load, y));
        for (std::size_t c = 0; c < dim; c += hn::Lanes(d))
          hn::Store(hn::Add(hn::Load(d, piece + c), hn::Abs(hn::Load(d, y + c))), d, piece + c);
        n += 1;
      },
      [&] {
        float of_piece = 0;
        for (std::size_t c = 0; c < dim; ++c) of_piece += piece[c], piece[c] = 0;
        total += of_piece;
      });
  if (largest < 1e-30f) return 0;
  return 127.0f / std::min(largest, 16.0f * (total / (n * static_cast<float>(dim))));
}

template <class Load>
HWY_INLINE void whole_with(const KmeansTask& task, Load load, std::int16_t* x) {
  alignas(64) float mean[kMaxDim];
  alignas(64) float y[kMaxDim];
  const std::size_t dim = task.shape.head_dim;
  const std::size_t token_bytes = task.shape.token_bytes();
  mean_with(task.runs, token_bytes, dim, load, mean);
  const bool cosine = task.metric == KmeansMetric::kCosine;
  const float scale = cosine ? 0.0f : scale_with(task, load, mean, y);
  for (const KvRun& run : task.runs)
    for (std::int32_t t = 0; t < run.n_tokens; ++t, x += dim) {
      const float largest = centre(run.kv + t * token_bytes, mean, dim, load, y);
      if (cosine) {
        direction(y, dim, largest, x);
      } else {
        round_scaled(y, dim, scale, 127.0f, x);
      }
    }
}

void whole(const KmeansTask& task, std::int16_t* x) {
  if (task.shape.kv_dtype == DType::kBF16)
    whole_with(task, LoadBf16(), x);
  else
    whole_with(task, LoadF16(), x);
}

#if HWY_TARGET == HWY_SCALAR
void nearest(const std::int16_t* x, std::int64_t n, std::size_t dim, const Centroids& centroids,
             std::int32_t* cluster) {
  for (std::int64_t t = 0; t < n; ++t, x += dim) {
    std::int32_t most = std::numeric_limits<std::int32_t>::min();
    for (std::int32_t k = 0; k < centroids.n_blocks * kBlock; ++k) {
      const std::int16_t* channels =
          centroids.packed +
          (static_cast<std::size_t>(k / kBlock) * (dim / 2) * kBlock + static_cast<std::size_t>(k % kBlock)) * 2;
      std::int32_t dot = centroids.bias[k];
      for (std::size_t c = 0; c < dim; ++c) dot += x[c] * channels[c / 2 * 2 * kBlock + c % 2];
      if (dot <= most) continue;
      most = dot;
      cluster[t] = k;
    }
  }
}
#else
using Floats = hn::CappedTag<float, 16>;
using Ints = hn::RebindToSigned<Floats>;
using Shorts = hn::Repartition<std::int16_t, Ints>;

inline constexpr std::size_t kLanes = hn::MaxLanes(Ints());
inline constexpr std::size_t kVectors = 2;  // of centroids at once
inline constexpr int kTokens = kLanes == 16 ? 8 : 4;

// sum0 + sum1 += products of pairs.   kOne  by vpdpwssd, which Highway's AVX3 lacks: half the instructions
template <bool kOne>
HWY_INLINE void add_dot_products(hn::Vec<Shorts> a, hn::Vec<Shorts> b, hn::Vec<Ints>& sum0, hn::Vec<Ints>& sum1) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kOne) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum0.raw) : "v"(a.raw), "v"(b.raw));
    return;
  }
#endif
  sum0 = hn::ReorderWidenMulAccumulate(Ints(), a, b, sum0, sum1);
}

// The best centroid of each of kRows tokens.
template <int kRows, bool kOne>
HWY_INLINE void nearest_rows(const std::int16_t* x, std::size_t dim, const Centroids& centroids,
                             std::int32_t* cluster) {
  const Ints di;
  const Shorts ds;
  const std::size_t pairs = dim / 2;
  HWY_ALIGN std::int32_t most[kRows * kLanes], where[kRows * kLanes];
  std::fill_n(most, kRows * kLanes, std::numeric_limits<std::int32_t>::min());
  std::fill_n(where, kRows * kLanes, 0);
  for (std::int32_t block = 0; block < centroids.n_blocks; ++block)
    for (std::size_t first = 0; first < kBlock; first += kVectors * kLanes) {
      const std::int16_t* column = centroids.packed + 2 * (block * pairs * kBlock + first);
      hn::Vec<Ints> sum0[kRows][kVectors], sum1[kRows][kVectors];
      // If this loop is not unrolled the sums are kept in memory.
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
        for (std::size_t v = 0; v < kVectors; ++v) sum0[r][v] = sum1[r][v] = hn::Zero(di);
      for (std::size_t p = 0; p < pairs; ++p, column += 2 * kBlock) {
        hn::Vec<Shorts> c[kVectors];
        for (std::size_t v = 0; v < kVectors; ++v) c[v] = hn::LoadU(ds, column + 2 * v * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          std::int32_t pair;
          std::memcpy(&pair, x + r * dim + 2 * p, sizeof(pair));
          const auto token = hn::BitCast(ds, hn::Set(di, pair));
#pragma GCC unroll 2
          for (std::size_t v = 0; v < kVectors; ++v) add_dot_products<kOne>(token, c[v], sum0[r][v], sum1[r][v]);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
        for (std::size_t v = 0; v < kVectors; ++v) {
          const auto bias =
              hn::LoadU(di, centroids.bias + static_cast<std::size_t>(block) * kBlock + first + v * kLanes);
          const auto dots = hn::Add(hn::RearrangeToOddPlusEven(sum0[r][v], sum1[r][v]), bias);
          const auto old = hn::Load(di, most + r * kLanes);
          const auto larger = hn::Gt(dots, old);
          const auto id =
              hn::Iota(di, static_cast<std::int32_t>(static_cast<std::size_t>(block) * kBlock + first + v * kLanes));
          hn::Store(hn::IfThenElse(larger, dots, old), di, most + r * kLanes);
          const auto old_id = hn::Load(di, where + r * kLanes);
          hn::Store(hn::IfThenElse(larger, id, old_id), di, where + r * kLanes);
        }
    }
  for (std::size_t r = 0; r < kRows; ++r) {
    const auto dots = hn::Load(di, most + r * kLanes);
    const auto best = hn::Eq(dots, hn::MaxOfLanes(di, dots));
    const auto ids = hn::IfThenElse(best, hn::Load(di, where + r * kLanes), hn::Set(di, 1 << 30));
    cluster[r] = hn::GetLane(hn::MinOfLanes(di, ids));
  }
}

template <bool kOne>
void nearest_by(const std::int16_t* x, std::int64_t n, std::size_t dim, const Centroids& centroids,
                std::int32_t* cluster) {
  std::int64_t t = 0;
  for (; t + kTokens <= n; t += kTokens) nearest_rows<kTokens, kOne>(x + t * dim, dim, centroids, cluster + t);
  for (; t < n; ++t) nearest_rows<1, kOne>(x + t * dim, dim, centroids, cluster + t);
}

void nearest(const std::int16_t* x, std::int64_t n, std::size_t dim, const Centroids& centroids,
             std::int32_t* cluster) {
#if HWY_TARGET == HWY_AVX3
  if (kernels_may_use(CpuIsa::kAvx512Vnni)) return nearest_by<true>(x, n, dim, centroids, cluster);
#endif
  nearest_by<false>(x, n, dim, centroids, cluster);
}

#endif

// sums[cluster[t]] += x[t].
void add_up(const std::int16_t* x, std::int64_t n, std::size_t dim, const std::int32_t* cluster, std::int32_t* sums) {
  const hn::CappedTag<std::int32_t, 8> d;
  const hn::Rebind<std::int16_t, decltype(d)> d16;
  for (std::int64_t t = 0; t < n; ++t, x += dim) {
    std::int32_t* sum = sums + cluster[t] * dim;
    for (std::size_t c = 0; c < dim; c += hn::Lanes(d))
      hn::StoreU(hn::Add(hn::LoadU(d, sum + c), hn::PromoteTo(d, hn::LoadU(d16, x + c))), d, sum + c);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(whole);
HWY_EXPORT(nearest);
HWY_EXPORT(add_up);

// Recomputes centroids from the sums; a cluster without tokens keeps its centroid.
void convert_to_sums(const KmeansScratch& s, std::size_t dim, KmeansMetric metric,
                     std::vector<std::int16_t>& centroids) {
  for (std::size_t k = 0; k < s.sizes.size(); ++k) {
    const std::int32_t* sum = s.sums.data() + k * dim;
    double norm2 = 0;
    for (std::size_t c = 0; c < dim; ++c) norm2 += static_cast<double>(sum[c]) * sum[c];
    if (s.sizes[k] == 0 || (norm2 == 0 && metric == KmeansMetric::kCosine)) continue;
    const double length = 32767.0 / std::sqrt(norm2), size = s.sizes[k];
    for (std::size_t c = 0; c < dim; ++c)
      centroids[k * dim + c] =
          static_cast<std::int16_t>(std::nearbyint(metric == KmeansMetric::kCosine ? sum[c] * length : sum[c] / size));
  }
}

// [block][pair][centroid of the block][2]. Padding of the last block repeats the first centroid, which wins its ties.
void pack(KmeansScratch& s, std::int32_t n, std::size_t dim, KmeansMetric metric) {
  const std::size_t n_blocks = (n + kBlock - 1) / kBlock, pairs = dim / 2;
  s.packed.resize(n_blocks * kBlock * dim);
  s.bias.assign(n_blocks * kBlock, 0);
  for (std::size_t k = 0; k < n_blocks * kBlock; ++k) {
    const std::int16_t* from = s.centroids.data() + (k < static_cast<std::size_t>(n) ? k : 0) * dim;
    std::int16_t* to = s.packed.data() + (k / kBlock * pairs * kBlock + k % kBlock) * 2;
    for (std::size_t p = 0; p < pairs; ++p, to += 2 * kBlock) std::memcpy(to, from + 2 * p, 2 * sizeof(*to));
    if (metric == KmeansMetric::kCosine) continue;
    for (std::size_t c = 0; c < dim; ++c) s.bias[k] += from[c] * from[c];
    s.bias[k] = -(s.bias[k] / 2);
  }
}

}  // namespace

void kmeans_cpu(const KmeansTask& task, std::int32_t* cluster, KmeansScratch& s) {
  const std::size_t dim = task.shape.head_dim;
  MNEME_CHECK(dim % 8 == 0 && dim >= 8 && dim <= kMaxDim, "D {}", dim);
  std::int64_t n = 0;
  for (const KvRun& run : task.runs) n += run.n_tokens;
  MNEME_CHECK(n >= 1 && n <= 65535 && task.n_clusters >= 1 && task.n_clusters <= n && task.iterations >= 1,
              "{} clusters of {} tokens in {} iterations", task.n_clusters, n, task.iterations);
  s.tokens.resize(n * dim);
  static thread_local Buffer t_wide;
  const WideTokens wide(task.runs, task.shape, t_wide, KvPart::kKeys);
  KmeansTask wide_task = task;
  wide_task.runs = wide.runs();
  wide_task.shape = wide.shape();
  HWY_DYNAMIC_DISPATCH(whole)(wide_task, s.tokens.data());
  s.centroids.resize(task.n_clusters * dim);
  for (std::int64_t k = 0; k < task.n_clusters; ++k)
    std::copy_n(s.tokens.data() + (k * n / task.n_clusters) * dim, dim, s.centroids.data() + k * dim);
  for (std::int32_t i = 0; i < task.iterations; ++i) {
    pack(s, task.n_clusters, dim, task.metric);
    s.before.assign(cluster, cluster + (i > 0 ? n : 0));
    HWY_DYNAMIC_DISPATCH(nearest)
    (s.tokens.data(), n, dim, {s.packed.data(), s.bias.data(), (task.n_clusters + kBlock - 1) / kBlock}, cluster);
    // Converged: the same tokens give the same centroids, and these the same tokens.
    if (i + 1 == task.iterations || (i > 0 && std::equal(s.before.begin(), s.before.end(), cluster))) break;
    s.sums.assign(s.centroids.size(), 0);
    HWY_DYNAMIC_DISPATCH(add_up)(s.tokens.data(), n, dim, cluster, s.sums.data());
    s.sizes.assign(task.n_clusters, 0);
    for (std::int64_t t = 0; t < n; ++t) ++s.sizes[cluster[t]];
    convert_to_sums(s, dim, task.metric, s.centroids);
  }
}

}  // namespace mneme
#endif
