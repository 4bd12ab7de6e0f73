// One thread computes a value head of a sequence, whose S stays in its caches. Both forms go along d_v, which is
// contiguous in S, so that no sum is across a vector's lanes.
#include <algorithm>
#include <cmath>
#include <vector>

#include "src/base/check.h"
#include "src/ops/recurrent/delta_chunk.h"
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

// C = scale C + A B for `Rows` rows and one vector's columns.   A(i, k) = a[i row + k step]; B [n, columns], row-major
template <int Rows, class D>
HWY_INLINE void tile(D d, const float* a, std::int64_t row, std::int64_t step, std::int64_t n, const float* b,
                     std::int64_t ldb, float scale, float* c, std::int64_t ldc) {
  hn::Vec<D> sum[Rows];
  for (int i = 0; i < Rows; ++i)
    sum[i] = scale == 0.0f ? hn::Zero(d) : hn::Mul(hn::LoadU(d, c + i * ldc), hn::Set(d, scale));
  for (std::int64_t k = 0; k < n; ++k) {
    const auto v = hn::LoadU(d, b + k * ldb);
    for (int i = 0; i < Rows; ++i) sum[i] = hn::MulAdd(hn::Set(d, a[i * row + k * step]), v, sum[i]);
  }
  for (int i = 0; i < Rows; ++i) hn::StoreU(sum[i], d, c + i * ldc);
}

// The same for two vectors' columns, which halves the loads of A.
template <int Rows, class D>
HWY_INLINE void wide_tile(D d, const float* a, std::int64_t row, std::int64_t step, std::int64_t n, const float* b,
                          std::int64_t ldb, float scale, float* c, std::int64_t ldc) {
  const std::int64_t lanes = hn::Lanes(d);
  hn::Vec<D> left[Rows], right[Rows];
  for (int i = 0; i < Rows; ++i) {
    left[i] = scale == 0.0f ? hn::Zero(d) : hn::Mul(hn::LoadU(d, c + i * ldc), hn::Set(d, scale));
    right[i] = scale == 0.0f ? hn::Zero(d) : hn::Mul(hn::LoadU(d, c + i * ldc + lanes), hn::Set(d, scale));
  }
  for (std::int64_t k = 0; k < n; ++k) {
    const auto v = hn::LoadU(d, b + k * ldb), w = hn::LoadU(d, b + k * ldb + lanes);
    for (int i = 0; i < Rows; ++i) {
      const auto x = hn::Set(d, a[i * row + k * step]);
      left[i] = hn::MulAdd(x, v, left[i]);
      right[i] = hn::MulAdd(x, w, right[i]);
    }
  }
  for (int i = 0; i < Rows; ++i) {
    hn::StoreU(left[i], d, c + i * ldc);
    hn::StoreU(right[i], d, c + i * ldc + lanes);
  }
}

struct Product {
  const float* a;
  std::int64_t row, step;  // of A
  std::int64_t n;          // columns of A, rows of B
  const float* b;
  std::int64_t ldb;
  float scale;
  float* c;
  std::int64_t ldc;
};

template <int Rows>
HWY_INLINE void rows_of_product(const Product& p, std::int64_t i, std::int64_t columns) {
  const F32 d;
  const hn::CappedTag<float, 1> one;
  const std::int64_t lanes = hn::Lanes(d);
  const float* a = p.a + i * p.row;
  float* c = p.c + i * p.ldc;
  std::int64_t j = 0;
  for (; j + 2 * lanes <= columns; j += 2 * lanes)
    wide_tile<Rows>(d, a, p.row, p.step, p.n, p.b + j, p.ldb, p.scale, c + j, p.ldc);
  for (; j + lanes <= columns; j += lanes) tile<Rows>(d, a, p.row, p.step, p.n, p.b + j, p.ldb, p.scale, c + j, p.ldc);
  for (; j < columns; ++j) tile<Rows>(one, a, p.row, p.step, p.n, p.b + j, p.ldb, p.scale, c + j, p.ldc);
}

// C [rows, columns] = scale C + A B
void multiply(const Product& p, std::int64_t rows, std::int64_t columns) {
  std::int64_t i = 0;
  for (; i + 4 <= rows; i += 4) rows_of_product<4>(p, i, columns);
  for (; i < rows; ++i) rows_of_product<1>(p, i, columns);
}

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

// Row `row` of x becomes q, k, b and g of row i of the chunk.
HWY_INLINE void load_row(const GatedDeltaRows& r, const DeltaParameters& p, const DeltaShape& s, std::int64_t head,
                         std::int64_t row, std::int64_t i, DeltaChunk& c) {
  constexpr float kEps = 1e-6f;
  // e^g is 0 in f32 from here on, whatever it multiplies; sums of more would lose the small ones.
  constexpr double kLeast = -200.0;
  const float* q = r.x + row * s.channels() + s.key_head(head) * s.d_k;
  const float* k = q + s.key_width();
  const float q_scale = 1.0f / std::sqrt((sum_of_squares(q, s.d_k) + kEps) * static_cast<float>(s.d_k));
  const float k_scale = 1.0f / std::sqrt(sum_of_squares(k, s.d_k) + kEps);
  for (std::int64_t j = 0; j < s.d_k; ++j) {
    c.q[i * s.d_k + j] = q[j] * q_scale;
    c.k[i * s.d_k + j] = k[j] * k_scale;
  }
  const std::int64_t at = row * s.n_v_heads + head;
  const double x = double{r.alpha[at]} + double{p.dt[head]};
  const double softplus = x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
  const double g = double{p.a[head]} * softplus;
  c.g[static_cast<std::size_t>(i)] = g < kLeast ? kLeast : g;  // NaN stays
  c.b[static_cast<std::size_t>(i)] = 1.0f / (1.0f + std::exp(-r.beta[at]));
}

// One row, of which q, k, b and g are row 0 of `c`: S is read twice and written once.
HWY_INLINE void recur(const DeltaShape& s, const float* v, float* state, float* out, DeltaChunk& c) {
  const F32 d;
  const hn::CappedTag<float, 1> one;
  const auto decay = static_cast<float>(std::exp(c.g[0]));
  const float b = c.b[0];
  const auto columns = [&](auto tag, std::int64_t j) HWY_ATTR {
    auto read = hn::Zero(tag);
    for (std::int64_t i = 0; i < s.d_k; ++i)
      read = hn::MulAdd(hn::Set(tag, c.k[i]), hn::LoadU(tag, state + i * s.d_v + j), read);
    const auto scale = hn::Set(tag, decay);
    const auto delta = hn::Mul(hn::Set(tag, b), hn::NegMulAdd(scale, read, hn::LoadU(tag, v + j)));
    auto sum = hn::Zero(tag);
    for (std::int64_t i = 0; i < s.d_k; ++i) {
      float* to = state + i * s.d_v + j;
      const auto x = hn::MulAdd(hn::Set(tag, c.k[i]), delta, hn::Mul(scale, hn::LoadU(tag, to)));
      hn::StoreU(x, tag, to);
      sum = hn::MulAdd(hn::Set(tag, c.q[i]), x, sum);
    }
    hn::StoreU(sum, tag, out + j);
  };
  const std::int64_t lanes = hn::Lanes(d);
  std::int64_t j = 0;
  for (; j + lanes <= s.d_v; j += lanes) columns(d, j);
  for (; j < s.d_v; ++j) columns(one, j);
}

// decay[i, j] = e^{G_i - G_j} for j <= i, else 0: differences first, since e^{-G} overflows.
HWY_INLINE void decays(std::int64_t m, DeltaChunk& c) {
  const F32 d;
  const std::int64_t lanes = hn::Lanes(d);
  for (std::int64_t i = 0; i < m; ++i) {
    float* row = c.decay + i * DeltaChunk::kRows;
    for (std::int64_t j = 0; j < DeltaChunk::kRows; ++j)
      row[j] = j <= i ? static_cast<float>(c.g[static_cast<std::size_t>(i)] - c.g[static_cast<std::size_t>(j)]) : 0.0f;
    for (std::int64_t j = 0; j <= i; j += lanes) {
      hn::StoreU(hn::Exp(d, hn::Max(hn::LoadU(d, row + j), hn::Set(d, -104.0f))), d, row + j);
    }
    for (std::int64_t j = i + 1; j < DeltaChunk::kRows; ++j) row[j] = 0.0f;
  }
}

// m rows together. With G_i the sum of g up to row i, D_ij = e^{G_i - G_j} for j <= i:
//   U = (I + A)^-1 b (V - e^G (K S)),  A_ij = b_i (k_i k_j) D_ij for j < i
//   out = e^G (Q S) + ((Q K^T) D) U;   S = e^{G_m} S + (e^{G_m - G} K)^T U
HWY_INLINE void compute_chunk(const DeltaShape& s, std::int64_t m, const float* v, std::int64_t v_stride, float* state,
                              float* out, std::int64_t out_stride, DeltaChunk& c) {
  constexpr std::int64_t kRows = DeltaChunk::kRows;
  for (std::int64_t i = 1; i < m; ++i) c.g[static_cast<std::size_t>(i)] += c.g[static_cast<std::size_t>(i - 1)];
  decays(m, c);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < s.d_k; ++j) c.k_by_value[j * kRows + i] = c.k[i * s.d_k + j];
  multiply({c.k, s.d_k, 1, s.d_k, c.k_by_value, kRows, 0.0f, c.a, kRows}, m, m);
  multiply({c.q, s.d_k, 1, s.d_k, c.k_by_value, kRows, 0.0f, c.p, kRows}, m, m);
  multiply({c.k, s.d_k, 1, s.d_k, state, s.d_v, 0.0f, c.u, s.d_v}, m, s.d_v);
  multiply({c.q, s.d_k, 1, s.d_k, state, s.d_v, 0.0f, out, out_stride}, m, s.d_v);
  for (std::int64_t i = 0; i < m; ++i) {
    const auto from_start = static_cast<float>(std::exp(c.g[static_cast<std::size_t>(i)]));
    const float b = c.b[static_cast<std::size_t>(i)];
    float* u = c.u + i * s.d_v;
    for (std::int64_t j = 0; j < s.d_v; ++j) u[j] = b * (v[i * v_stride + j] - from_start * u[j]);
    for (std::int64_t j = 0; j < s.d_v; ++j) out[i * out_stride + j] *= from_start;
    for (std::int64_t j = 0; j < i; ++j) c.a[i * kRows + j] *= -b * c.decay[i * kRows + j];
    for (std::int64_t j = 0; j < m; ++j)
      c.p[i * kRows + j] = j <= i ? c.p[i * kRows + j] * c.decay[i * kRows + j] : 0.0f;
    if (i > 0) multiply({c.a + i * kRows, kRows, 1, i, c.u, s.d_v, 1.0f, u, s.d_v}, 1, s.d_v);
  }
  multiply({c.p, kRows, 1, m, c.u, s.d_v, 1.0f, out, out_stride}, m, s.d_v);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < s.d_k; ++j)
      c.decayed_k[i * s.d_k + j] = c.decay[(m - 1) * kRows + i] * c.k[i * s.d_k + j];
  const auto whole = static_cast<float>(std::exp(c.g[static_cast<std::size_t>(m - 1)]));
  multiply({c.decayed_k, 1, s.d_k, m, c.u, s.d_v, whole, state, s.d_v}, s.d_k, s.d_v);
}

// All rows of one value head; in_chunks: rows of a chunk together.
void DeltaHead(const GatedDeltaRows& r, const DeltaParameters& p, const DeltaShape& s, std::int64_t head,
               bool in_chunks, DeltaChunk& c) {
  constexpr std::int64_t kFew = 8;  // rows that are faster one by one
  float* state = r.state + head * s.d_k * s.d_v;
  const std::int64_t first_v = 2 * s.key_width() + head * s.d_v;
  for (std::int64_t row = 0; row < r.n;) {
    const std::int64_t to_end = kDeltaChunk - (r.position + row) % kDeltaChunk;
    const std::int64_t m = in_chunks ? std::min(r.n - row, to_end) : 1;
    const float* v = r.x + row * s.channels() + first_v;
    float* out = r.out + row * s.value_width() + head * s.d_v;
    if (m >= kFew) {
      for (std::int64_t i = 0; i < m; ++i) load_row(r, p, s, head, row + i, i, c);
      compute_chunk(s, m, v, s.channels(), state, out, s.value_width(), c);
    } else {
      for (std::int64_t i = 0; i < m; ++i) {
        load_row(r, p, s, head, row + i, 0, c);
        recur(s, v + i * s.channels(), state, out + i * s.value_width(), c);
      }
    }
    row += m;
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
  const bool in_chunks = context.rounding == Rounding::kFast;
  context.pool->parallel_for(n * s.n_v_heads, 1, [&](std::int64_t begin, std::int64_t end, int) {
    thread_local std::vector<DeltaChunk> memory(1);
    for (std::int64_t i = begin; i < end; ++i) HWY_DYNAMIC_DISPATCH(DeltaHead)
    (sequences[static_cast<std::size_t>(i / s.n_v_heads)], p, s, i % s.n_v_heads, in_chunks, memory[0]);
  });
}

}  // namespace mneme
#endif
