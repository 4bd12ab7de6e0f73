// One thread computes a value head of a sequence, row by row; S stays in its caches. It goes along d_v, which is
// contiguous in S, so that no sum is across a vector's lanes.
//
// The form in chunks of 32 rows (WY) has as many products and took 1.4 times as long where S fits the second cache.
#include <algorithm>
#include <cmath>

#include "src/base/check.h"
#include "src/ops/recurrent/gated_delta.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/recurrent/gated_delta_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// After highway.h: this header differs per target.
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;

// What a row has for all columns of S.
struct DeltaRow {
  float q[kMaxDeltaHead], k[kMaxDeltaHead];  // [d_k]
  float b = 0.0f, decay = 0.0f;
};

float sum_of_squares(const float* x, std::int64_t n) {
  const F32 d;
  const std::int64_t lanes = hn::Lanes(d);
  auto sum = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    sum = hn::MulAdd(v, v, sum);
  }
  float all = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) all += x[i] * x[i];
  return all;
}

HWY_INLINE void load_row(const GatedDeltaRows& r, const DeltaParameters& p, const DeltaShape& s, std::int64_t head,
                         std::int64_t row, DeltaRow& to) {
  constexpr float kEps = 1e-6f;
  const float* q = r.x + row * s.channels() + s.key_head(head) * s.d_k;
  const float* k = q + s.key_width();
  const float q_scale = 1.0f / std::sqrt((sum_of_squares(q, s.d_k) + kEps) * static_cast<float>(s.d_k));
  const float k_scale = 1.0f / std::sqrt(sum_of_squares(k, s.d_k) + kEps);
  for (std::int64_t j = 0; j < s.d_k; ++j) {
    to.q[j] = q[j] * q_scale;
    to.k[j] = k[j] * k_scale;
  }
  const std::int64_t at = row * s.n_v_heads + head;
  const double x = double{r.alpha[at]} + double{p.dt[head]};
  const double softplus = x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
  to.decay = static_cast<float>(std::exp(double{p.a[head]} * softplus));
  to.b = 1.0f / (1.0f + std::exp(-r.beta[at]));
}

// N vectors' columns of a row. Two are fastest (AMD Zen 4, heads of 128): with one, sums over d_k wait for each other; a
// row of S takes 512 bytes, so that more columns of all rows fall into the same sets of the first cache.
template <int N, class D>
HWY_INLINE void recur_columns(D d, const DeltaShape& s, const DeltaRow& row, const float* v, float* state, float* out) {
  const std::int64_t lanes = hn::Lanes(d);
  const auto scale = hn::Set(d, row.decay), b = hn::Set(d, row.b);
  hn::Vec<D> read[N], delta[N], sum[N];
  for (int n = 0; n < N; ++n) read[n] = sum[n] = hn::Zero(d);
  for (std::int64_t i = 0; i < s.d_k; ++i) {
    const auto k = hn::Set(d, row.k[i]);
    for (int n = 0; n < N; ++n) read[n] = hn::MulAdd(k, hn::LoadU(d, state + i * s.d_v + n * lanes), read[n]);
  }
  for (int n = 0; n < N; ++n) delta[n] = hn::Mul(b, hn::NegMulAdd(scale, read[n], hn::LoadU(d, v + n * lanes)));
  for (std::int64_t i = 0; i < s.d_k; ++i) {
    const auto k = hn::Set(d, row.k[i]), q = hn::Set(d, row.q[i]);
    for (int n = 0; n < N; ++n) {
      float* to = state + i * s.d_v + n * lanes;
      const auto x = hn::MulAdd(k, delta[n], hn::Mul(scale, hn::LoadU(d, to)));
      hn::StoreU(x, d, to);
      sum[n] = hn::MulAdd(q, x, sum[n]);
    }
  }
  for (int n = 0; n < N; ++n) hn::StoreU(sum[n], d, out + n * lanes);
}

// All rows of one value head.
void DeltaHead(const GatedDeltaRows& r, const DeltaParameters& p, const DeltaShape& s, std::int64_t head) {
  const F32 d;
  const hn::CappedTag<float, 1> one;
  const std::int64_t lanes = hn::Lanes(d);
  float* const state = r.state + head * s.d_k * s.d_v;
  DeltaRow row;
  for (std::int64_t i = 0; i < r.n; ++i) {
    load_row(r, p, s, head, i, row);
    const float* v = r.x + i * s.channels() + 2 * s.key_width() + head * s.d_v;
    float* out = r.out + i * s.value_width() + head * s.d_v;
    std::int64_t j = 0;
    for (; j + 2 * lanes <= s.d_v; j += 2 * lanes) recur_columns<2>(d, s, row, v + j, state + j, out + j);
    for (; j + lanes <= s.d_v; j += lanes) recur_columns<1>(d, s, row, v + j, state + j, out + j);
    for (; j < s.d_v; ++j) recur_columns<1>(one, s, row, v + j, state + j, out + j);
  }
}

// Channels [begin, end) of the convolution, in place from the last row to the first.
void Convolve(const GatedDeltaRows& r, const float* weight, const DeltaShape& s, std::int64_t begin, std::int64_t end) {
  const F32 d;
  const hn::CappedTag<float, 1> one;
  const std::int64_t channels = s.channels(), before = s.taps - 1;
  const auto row = [&](std::int64_t t) { return t < 0 ? r.inputs + (t + before) * channels : r.x + t * channels; };
  const auto column = [&](auto tag, std::int64_t c) HWY_ATTR {
    using Tag = decltype(tag);
    const std::int64_t lanes = hn::Lanes(tag);
    constexpr std::int64_t kMost = 16;
    hn::Vec<Tag> kept[kMost], tap[kMost];
    for (std::int64_t i = 0; i < s.taps; ++i) {
      float values[kMost];
      for (std::int64_t j = 0; j < lanes; ++j) values[j] = weight[(c + j) * s.taps + i];
      tap[i] = hn::LoadU(tag, values);
    }
    for (std::int64_t i = 0; i < before; ++i) kept[i] = hn::LoadU(tag, row(r.n - before + i) + c);
    for (std::int64_t t = r.n - 1; t >= 0; --t) {
      auto sum = hn::Zero(tag);
      for (std::int64_t i = 0; i < s.taps; ++i) sum = hn::MulAdd(tap[i], hn::LoadU(tag, row(t - before + i) + c), sum);
      // exp above 100 is infinity in f32, and sum / infinity is 0 as required.
      const auto e = hn::Exp(tag, hn::Min(hn::Neg(sum), hn::Set(tag, 100.0f)));
      hn::StoreU(hn::Div(sum, hn::Add(hn::Set(tag, 1.0f), e)), tag, r.x + t * channels + c);
    }
    for (std::int64_t i = 0; i < before; ++i) hn::StoreU(kept[i], tag, r.inputs + i * channels + c);
  };
  const std::int64_t lanes = hn::Lanes(d);
  std::int64_t c = begin;
  for (; c + lanes <= end; c += lanes) column(d, c);
  for (; c < end; ++c) column(one, c);
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(DeltaHead);
HWY_EXPORT(Convolve);

constexpr std::int64_t kChannels = 64;  // of a task: a few lines of every row

}  // namespace

void gated_delta_cpu(std::span<const GatedDeltaRows> sequences, const DeltaParameters& p, const DeltaShape& s,
                     const CpuContext& context) {
  MNEME_CHECK(s.taps >= 2 && s.taps <= 16 && s.d_k <= kMaxDeltaHead && s.d_v <= kMaxDeltaHead,
              "{} taps, heads of {}, {}", s.taps, s.d_k, s.d_v);
  const std::int64_t n = std::ssize(sequences), blocks = (s.channels() + kChannels - 1) / kChannels;
  context.pool->parallel_for(n * blocks, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % blocks * kChannels;
      HWY_DYNAMIC_DISPATCH(Convolve)
      (sequences[static_cast<std::size_t>(i / blocks)], p.conv, s, first, std::min(first + kChannels, s.channels()));
    }
  });
  context.pool->parallel_for(n * s.n_v_heads, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i)
      HWY_DYNAMIC_DISPATCH(DeltaHead)(sequences[static_cast<std::size_t>(i / s.n_v_heads)], p, s, i % s.n_v_heads);
  });
}

}  // namespace mneme
#endif
