// Pooling of a group's scores, and the cosine of two queries.
//
// Log domain: a head's log probability is t = (alpha x - top) - log(sum of exp(alpha x - top)) with top the head's
// largest alpha x; the first difference is one fused operation, so the error is relative to t, not to the size of the
// scores. Two passes over a row for top and sum, one pass over all rows for the units.
//
// The mean of probabilities keeps the exponentials of the second pass and adds them up by head: one logarithm per unit
// instead of one exponential per score. Units below 1e-30 are recomputed from the logarithms.
//
// The code for a unit is instantiated once, and a row's last units go through it in a padded copy: equal units give
// equal bits.
#include "src/selection/pool/group_pool.h"

#include "src/ops/simd/fixed_width_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/selection/pool/group_pool_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/simd/vec_math-inl.h"

#ifndef MNEME_KERNELS_GROUP_POOL_CPU_ONCE_
#define MNEME_KERNELS_GROUP_POOL_CPU_ONCE_
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/base/check.h"

namespace mneme {
namespace {

constexpr std::int32_t kMaxGroup = 16;
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Converts a head's scores to log probabilities.
struct HeadScale {
  float top = 0.0f;
  float log_sum = 0.0f;
  float inverse_sum = 0.0f;
};

// exp(alpha x - top) of all heads, row stride `stride` floats; null: not kept.
struct Exponentials {
  float* at = nullptr;
  std::int64_t stride = 0;
};

// Sum of exp(scale x - top) over all units, and over units of `wanted` that are not in `there`.
struct Masses {
  double all = 0.0, missing = 0.0;
  bool any_missing = false;
};

// Dot products of two vectors.
struct GemmRates {
  double ab = 0.0, aa = 0.0, bb = 0.0;
};

}  // namespace
}  // namespace mneme
#endif

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
inline constexpr std::size_t kMaxLanes = HWY_MAX_BYTES / sizeof(float);

// The last n < lanes elements of a row, padded with `fill`.
struct Tail {
  HWY_ALIGN float lanes[kMaxLanes];

  Tail(const float* row, std::size_t n, float fill) {
    std::fill_n(lanes, kMaxLanes, fill);
    std::memcpy(lanes, row, n * sizeof(float));
  }
};

// Largest alpha x of a row, at most the largest float, NaN ignored; has_nan: whether there was one.
HWY_NOINLINE float row_top(const float* row, std::size_t n, float alpha, bool& has_nan) {
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  V top = hn::Set(d, -kInf);
  auto all_ordered = hn::Eq(top, top);
  const auto take = [&](V x) HWY_ATTR {
    const auto ordered = hn::Eq(x, x);
    all_ordered = hn::And(all_ordered, ordered);
    top = hn::Max(top, hn::IfThenElse(ordered, hn::Mul(x, hn::Set(d, alpha)), hn::Set(d, -kInf)));
  };
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) take(hn::LoadU(d, row + i));
  if (i < n) take(hn::Load(d, Tail(row + i, n - i, -kInf).lanes));
  has_nan = !hn::AllTrue(d, all_ordered);
  HWY_ALIGN float tops[kMaxLanes];  // not MaxOfLanes: its emulation never returns less than the lowest finite float
  hn::Store(top, d, tops);
  return std::min(*std::max_element(tops, tops + lanes), kLargest);
}

// alpha x - top. With a score of +inf, or rounding of a top beyond 2^24, it may be positive: clamped so that sums of
// exp stay finite.
HWY_INLINE V below_top(V x, V alpha, V top) {
  const D d;
  const V difference = hn::MulSub(alpha, x, top);
  return hn::IfThenElse(hn::Gt(difference, hn::Set(d, 60.0f)), hn::Set(d, 60.0f), difference);
}

// Up to this top, differences are positive by rounding only.
constexpr float kOrdinary = 65536.0f;

// Sum of exp(alpha x - top), NaN ignored; kPlain: there is none, and the top is ordinary. Lanes are flushed to a double
// before their rounding matters.   terms  null, or out, with room for n rounded up to full vectors
template <bool kPlain>
HWY_NOINLINE double row_sum(const float* row, std::size_t n, float alpha, float top, float* terms) {
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t chunk = 256 * lanes;
  const V a = hn::Set(d, alpha);
  const V t = hn::Set(d, top);
  double total = 0.0;
  const auto term = [&](V x) HWY_ATTR {
    if constexpr (kPlain) return vec_exp_ordered(d, hn::MulSub(a, x, t));
    return hn::IfThenElseZero(hn::Eq(x, x), vec_exp(d, below_top(x, a, t)));
  };
  std::size_t i = 0;
  while (i + lanes <= n) {
    V sum = hn::Zero(d);
    const std::size_t end = std::min(n / lanes * lanes, i + chunk);
    if (terms == nullptr) {
      for (; i < end; i += lanes) sum = hn::Add(sum, term(hn::LoadU(d, row + i)));
    } else {
      for (; i < end; i += lanes) {
        const V e = term(hn::LoadU(d, row + i));
        hn::StoreU(e, d, terms + i);
        sum = hn::Add(sum, e);
      }
    }
    total += hn::GetLane(hn::SumOfLanes(d, sum));
  }
  if (i < n) {
    const V sum = term(hn::Load(d, Tail(row + i, n - i, -kInf).lanes));
    if (terms != nullptr) hn::StoreU(sum, d, terms + i);
    total += hn::GetLane(hn::SumOfLanes(d, sum));
  }
  return total;
}

// Spreads NaN: a unit with a NaN in any head has it in every head.
void spread_nan(float* scores, std::int64_t stride, std::int32_t group, std::int64_t n) {
  for (std::int64_t u = 0; u < n; ++u) {
    bool nan = false;
    for (std::int32_t h = 0; h < group; ++h) nan = nan || std::isnan(scores[h * stride + u]);
    for (std::int32_t h = 0; nan && h < group; ++h) scores[h * stride + u] = std::numeric_limits<float>::quiet_NaN();
  }
}

void head_scales(float* scores, std::int64_t stride, std::int32_t group, std::int64_t n, float alpha,
                 const Exponentials& keep, HeadScale* out) {
  const std::size_t length = n;
  bool any_nan = false;
  for (std::int32_t h = 0; h < group; ++h) {
    bool nan;
    out[h].top = row_top(scores + h * stride, length, alpha, nan);
    any_nan = any_nan || nan;
  }
  if (any_nan) {
    spread_nan(scores, stride, group, n);
    for (std::int32_t h = 0; h < group; ++h) {
      bool nan;
      out[h].top = row_top(scores + h * stride, length, alpha, nan);
    }
  }
  for (std::int32_t h = 0; h < group; ++h) {
    float* terms = keep.at == nullptr ? nullptr : keep.at + h * keep.stride;
    if (out[h].top == -kInf) {
      out[h] = {0.0f, kInf, 0.0f};  // no unit gets probability
      if (terms != nullptr) std::fill_n(terms, keep.stride, 0.0f);
    } else {
      const bool plain = !any_nan && std::fabs(out[h].top) <= kOrdinary;
      const double sum =
          (plain ? row_sum<true> : row_sum<false>)(scores + h * stride, length, alpha, out[h].top, terms);
      out[h].log_sum = static_cast<float>(std::log(sum));
      out[h].inverse_sum = static_cast<float>(1.0 / sum);
    }
  }
}

struct PoolTask {
  std::int32_t group = 1;
  Pool pool = Pool::kMaxQk;
  float alpha = 1.0f;
  HeadScale heads[kMaxGroup];
  Exponentials kept;
};

template <int kGroup>  // 0: group size from the task
HWY_INLINE V pool_unit(const float* at, std::int64_t stride, const PoolTask& task) {
  const D d;
  const std::int32_t group = kGroup > 0 ? kGroup : task.group;
  const V first = hn::LoadU(d, at);
  if (task.pool == Pool::kMeanQk) {
    V sum = first;
    for (std::int32_t h = 1; h < group; ++h) sum = hn::Add(sum, hn::LoadU(d, at + h * stride));
    return hn::Div(sum, hn::Set(d, static_cast<float>(group)));
  }
  if (task.pool == Pool::kMaxQk) {
    V most = first;
    for (std::int32_t h = 1; h < group; ++h) {
      const V x = hn::LoadU(d, at + h * stride);
      most = hn::IfThenElse(hn::Eq(most, most), hn::IfThenElse(hn::Eq(x, x), hn::Max(most, x), x), most);
    }
    return most;
  }
  const V alpha = hn::Set(d, task.alpha);
  const auto log_probability = [&](std::int32_t h, V x) HWY_ATTR {
    return hn::Sub(below_top(x, alpha, hn::Set(d, task.heads[h].top)), hn::Set(d, task.heads[h].log_sum));
  };
  V t[kGroup > 0 ? kGroup : kMaxGroup];
  t[0] = log_probability(0, first);
  V result = t[0];
  for (std::int32_t h = 1; h < group; ++h) {
    t[h] = log_probability(h, hn::LoadU(d, at + h * stride));
    result = hn::Max(result, t[h]);
  }
  if (task.pool == Pool::kMeanS) {
    const V most = hn::Max(result, hn::Set(d, -kLargest));  // -inf - (-inf) would be NaN
    V sum = hn::Zero(d);
    for (std::int32_t h = 0; h < group; ++h) sum = hn::Add(sum, vec_exp(d, hn::Sub(t[h], most)));
    result = hn::Add(most, vec_log(d, sum));
  }
  return hn::IfThenElse(hn::Eq(first, first), result, first);
}

// Sum over heads of the probability of a vector of units with exponentials `terms`; ok: lanes far enough from underflow
// to be exact.
template <int kGroup>
HWY_INLINE V sum_probabilities(const float* terms, const PoolTask& task, bool& all_ok, hn::Mask<D>& ok) {
  const D d;
  const std::int32_t group = kGroup > 0 ? kGroup : task.group;
  V sum = hn::Zero(d);
  for (std::int32_t h = 0; h < group; ++h)
    sum = hn::MulAdd(hn::LoadU(d, terms + h * task.kept.stride), hn::Set(d, task.heads[h].inverse_sum), sum);
  ok = hn::Gt(sum, hn::Set(d, 1e-30f));
  all_ok = hn::AllTrue(d, ok);
  return sum;
}

// Requires  n a multiple of the lanes; task.kept starts where the scores do. Not inlined: the last units use the same
//           code.
template <int kGroup>
HWY_NOINLINE void pool_units(const float* scores, std::int64_t stride, std::size_t n, const PoolTask& task,
                             float* pooled) {
  const D d;
  if (task.kept.at == nullptr) {
    for (std::size_t u = 0; u < n; u += hn::Lanes(d))
      hn::StoreU(pool_unit<kGroup>(scores + u, stride, task), d, pooled + u);
    return;
  }
  for (std::size_t u = 0; u < n; u += hn::Lanes(d)) {
    bool all_ok;
    hn::Mask<D> ok;
    V result = vec_log(d, sum_probabilities<kGroup>(task.kept.at + u, task, all_ok, ok));
    if (!all_ok) result = hn::IfThenElse(ok, result, pool_unit<kGroup>(scores + u, stride, task));
    hn::StoreU(result, d, pooled + u);
  }
}

template <int kGroup>
HWY_INLINE void pool_row(const float* scores, std::int64_t stride, std::size_t n, const PoolTask& task, float* pooled) {
  const std::size_t lanes = hn::Lanes(D());
  const std::size_t whole = n / lanes * lanes;
  pool_units<kGroup>(scores, stride, whole, task, pooled);
  if (whole == n) return;
  HWY_ALIGN float rows[kMaxGroup * kMaxLanes] = {};
  HWY_ALIGN float last[kMaxLanes];
  for (std::int32_t h = 0; h < task.group; ++h)
    std::memcpy(rows + h * kMaxLanes, scores + h * stride + whole, (n - whole) * sizeof(float));
  PoolTask rest = task;
  if (rest.kept.at != nullptr) rest.kept.at += whole;
  pool_units<kGroup>(rows, kMaxLanes, lanes, rest, last);
  std::memcpy(pooled + whole, last, (n - whole) * sizeof(float));
}

void pool_group(float* scores, std::int64_t stride, std::int32_t group, std::int64_t n, Pool pool, float alpha,
                float* pooled) {
  PoolTask task{.group = group, .pool = pool, .alpha = alpha, .heads = {}, .kept = {}};
  const std::size_t length = n;
  thread_local std::vector<float> kept;
  if (pool == Pool::kMeanS) {
    const std::size_t row = (length + hn::Lanes(D()) - 1) / hn::Lanes(D()) * hn::Lanes(D());
    kept.resize(group * row);
    task.kept = {kept.data(), static_cast<std::int64_t>(row)};
  }
  if (pool == Pool::kMaxS || pool == Pool::kMeanS) head_scales(scores, stride, group, n, alpha, task.kept, task.heads);
  if (group == 4)
    pool_row<4>(scores, stride, length, task, pooled);
  else if (group == 8)
    pool_row<8>(scores, stride, length, task, pooled);
  else
    pool_row<0>(scores, stride, length, task, pooled);
}

Masses masses(std::span<const float> scores, float scale, std::span<const std::int32_t> wanted,
              std::span<const std::int32_t> there) {
  Masses m;
  bool nan = false;
  const float top = row_top(scores.data(), scores.size(), scale, nan);
  const bool plain = !nan && std::fabs(top) <= kOrdinary;
  auto at = there.begin();
  for (const std::int32_t u : wanted) {
    while (at != there.end() && *at < u) ++at;
    if (at != there.end() && *at == u) continue;
    m.any_missing = true;
    const float x = scores[u];
    if (!std::isnan(x) && top > -kInf) m.missing += std::exp(std::min(std::fma(scale, x, -top), 60.0f));
  }
  if (m.any_missing && top > -kInf)
    m.all = (plain ? row_sum<true> : row_sum<false>)(scores.data(), scores.size(), scale, top, nullptr);
  return m;
}

GemmRates dots(const float* a, const float* b, std::size_t n) {
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  V ab = hn::Zero(d), aa = ab, bb = ab;
  const auto take = [&](V x, V y) HWY_ATTR {
    ab = hn::MulAdd(x, y, ab);
    aa = hn::MulAdd(x, x, aa);
    bb = hn::MulAdd(y, y, bb);
  };
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) take(hn::LoadU(d, a + i), hn::LoadU(d, b + i));
  if (i < n) take(hn::Load(d, Tail(a + i, n - i, 0.0f).lanes), hn::Load(d, Tail(b + i, n - i, 0.0f).lanes));
  const auto sum = [&](V x) HWY_ATTR { return double{hn::GetLane(hn::SumOfLanes(d, x))}; };
  return {sum(ab), sum(aa), sum(bb)};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(pool_group);
HWY_EXPORT(masses);
HWY_EXPORT(dots);

}  // namespace

void group_pool_cpu(float* scores, std::int64_t score_stride, std::int32_t group, std::int64_t n, Pool pool,
                    float alpha, float* pooled) {
  MNEME_CHECK(group >= 1 && group <= kMaxGroup, "group {}", group);
  if (n == 0) return;
  HWY_DYNAMIC_DISPATCH(pool_group)(scores, score_stride, group, n, pool, alpha, pooled);
}

float missing_mass_cpu(std::span<const float> scores, float scale, std::span<const std::int32_t> wanted,
                       std::span<const std::int32_t> there) {
  const Masses m = HWY_DYNAMIC_DISPATCH(masses)(scores, scale, wanted, there);
  if (!m.any_missing) return 0.0f;
  return m.all == 0.0 ? 1.0f : static_cast<float>(std::min(m.missing / m.all, 1.0));
}

float cosine(const float* a, const float* b, std::int64_t n) {
  const GemmRates p = HWY_DYNAMIC_DISPATCH(dots)(a, b, static_cast<std::size_t>(n));
  if (std::isnan(p.ab)) return std::numeric_limits<float>::quiet_NaN();
  if (p.aa == 0.0 || p.bb == 0.0) return 0.0f;
  return static_cast<float>(p.ab / (std::sqrt(p.aa) * std::sqrt(p.bb)));
}

}  // namespace mneme
#endif
