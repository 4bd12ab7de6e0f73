// One tile of keys in f32 arithmetic, on any CPU, for keys and values in bf16 or f16.
#include "src/ops/attention/prefill/attention_prefill_tile.h"

#include "src/base/unchecked_loop.h"
#include "src/ops/simd/fixed_width_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/attention/prefill/attention_prefill_f32.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "src/ops/attention/attention_simd-inl.h"

#ifndef MNEME_ATTENTION_PREFILL_F32_ONCE
#define MNEME_ATTENTION_PREFILL_F32_ONCE
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace mneme {
namespace {

std::vector<BadValue> take_bad_values(int n_tokens, std::int32_t head_dim, float* values) {
  std::vector<BadValue> bad;
  for (int n = 0; n < n_tokens; ++n)
    for (std::int32_t d = 0; d < head_dim; ++d) {
      float& value = values[n * head_dim + d];
      if (std::isfinite(value)) continue;
      bad.push_back({n, d, value});
      value = 0.0f;
    }
  return bad;
}

void add_bad_values(const KeyTile& tile, const std::vector<BadValue>& bad, const QueryTile& queries) {
  for (const BadValue& b : bad)
    for (int lane = 0; lane < queries.n_lanes; ++lane) {
      const std::int32_t token = tile.begin + b.token;
      if (token >= queries.first[lane] && token < queries.last[lane])
        queries.out[b.d * queries.n_lanes + lane] += queries.scores[b.token * queries.n_lanes + lane] * b.value;
    }
}

}  // namespace
}  // namespace mneme
#endif

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
constexpr int kWidth = hn::MaxLanes(DF());
constexpr int kMaxVecs =
    kWidth == 16 ? 4 : 2;  // vectors of lanes at once: with 4 keys 16 or 8 sums; AVX2 has 16 registers

// n elements of 16 bits as f32.
template <DType kDType>
MNEME_UNCHECKED_LOOP void expand(const std::byte* from, std::int32_t n, float* to) {
  const hn::CappedTag<float, 8> df;
  for (std::int32_t i = 0; i < n; i += static_cast<int>(hn::Lanes(df)))
    hn::StoreU(kDType == DType::kBF16 ? load_bf16(df, from + 2 * i) : load_f16(df, from + 2 * i), df, to + i);
}

template <DType kDType>
MNEME_UNCHECKED_LOOP void expand_tile(const KeyTile& tile, const KeyTile& following, const QueryTile& queries) {
  const std::int32_t head_dim = queries.head_dim;
  for (int n = 0; n < (tile.n + 3) / 4 * 4; ++n) {
    if (n < following.n)
      for (std::int32_t b = 0; b < 4 * head_dim; b += 64) hwy::Prefetch(following.rows[n] + b);
    expand<kDType>(tile.rows[n], head_dim, static_cast<float*>(queries.keys) + n * head_dim);
    expand<kDType>(tile.rows[n] + 2 * head_dim, head_dim, static_cast<float*>(queries.values) + n * head_dim);
  }
}

// Scores of kVecs vectors of lanes, starting at `lane`, with every key of the tile.
template <int kVecs>
MNEME_UNCHECKED_LOOP HWY_NOINLINE void score(int n_tokens, int lane, const QueryTile& queries) {
  const DF df;
  const std::ptrdiff_t lanes = queries.n_lanes;
  const std::ptrdiff_t head_dim = queries.head_dim;
  for (int n = 0; n < n_tokens; n += 4) {
    VF acc[4 * kVecs];
    unroll<4 * kVecs>([&](auto i) MNEME_INLINED { acc[i] = hn::Zero(df); });
    const float* q = static_cast<const float*>(queries.q) + lane;
    const float* keys = static_cast<const float*>(queries.keys) + n * head_dim;
    for (std::ptrdiff_t d = 0; d < head_dim; ++d, q += lanes) {
      VF query[kVecs];
      unroll<kVecs>([&](auto v) MNEME_INLINED { query[v] = hn::Load(df, q + v * kWidth); });
      unroll<4>([&](auto k) MNEME_INLINED {
        const VF key = hn::Set(df, keys[k * head_dim + d]);
        unroll<kVecs>([&](auto v) MNEME_INLINED {
          constexpr int kI = k * kVecs + v;
          acc[kI] = hn::MulAdd(query[v], key, acc[kI]);
        });
      });
    }
    float* to = queries.scores + n * lanes + lane;
    unroll<4 * kVecs>([&](auto i)
                          MNEME_INLINED { hn::Store(acc[i], df, to + i / kVecs * lanes + i % kVecs * kWidth); });
  }
}

// Converts scores to probabilities relative to the new top, in place; one vector of lanes.
MNEME_UNCHECKED_LOOP void softmax(const KeyTile& tile, int lane, const QueryTile& queries) {
  const DF df;
  const hn::RebindToSigned<DF> di;
  const VF nothing = hn::Set(df, -std::numeric_limits<float>::infinity());
  const std::ptrdiff_t lanes = queries.n_lanes;
  float* scores = queries.scores + lane;
  VF high = nothing;
  if (tile.masked) {
    const auto first = hn::Load(di, queries.first + lane);
    const auto last = hn::Load(di, queries.last + lane);
    for (int n = 0; n < tile.n; ++n) {
      const auto token = hn::Set(di, tile.begin + n);
      const auto hidden = hn::Or(hn::Lt(token, first), hn::Not(hn::Lt(token, last)));
      const VF s = hn::IfThenElse(hn::RebindMask(df, hidden), nothing, hn::Load(df, scores + n * lanes));
      hn::Store(s, df, scores + n * lanes);
      high = hn::Max(s, high);
    }
  } else {
    for (int n = 0; n < tile.n; ++n) high = hn::Max(hn::Load(df, scores + n * lanes), high);
  }
  const VF before = hn::Load(df, queries.top + lane);
  const VF top = hn::Max(high, before);
  const VF base = hn::IfThenZeroElse(hn::Eq(top, nothing), top);
  const VF factor = exp2_nonpositive(df, hn::Sub(before, base));
  VF sum = hn::Mul(hn::Load(df, queries.sum + lane), factor);
  for (int n = 0; n < tile.n; ++n) {
    const VF p = exp2_nonpositive(df, hn::Sub(hn::Load(df, scores + n * lanes), base));
    hn::Store(p, df, scores + n * lanes);
    sum = hn::Add(sum, p);
  }
  hn::Store(top, df, queries.top + lane);
  hn::Store(sum, df, queries.sum + lane);
  hn::Store(factor, df, queries.factor + lane);
}

// out = out * factor + values * probabilities for kVecs vectors of lanes, starting at `lane`.
template <int kVecs>
MNEME_UNCHECKED_LOOP HWY_NOINLINE void weigh(int n_tokens, int lane, const QueryTile& queries) {
  const DF df;
  const std::ptrdiff_t lanes = queries.n_lanes;
  for (std::ptrdiff_t d = 0; d < queries.head_dim; d += 4) {
    float* out = queries.out + d * lanes + lane;
    VF acc[4 * kVecs];
    unroll<4 * kVecs>([&](auto i) MNEME_INLINED {
      acc[i] = hn::Mul(hn::Load(df, out + i / kVecs * lanes + i % kVecs * kWidth),
                       hn::Load(df, queries.factor + lane + i % kVecs * kWidth));
    });
    const float* value = static_cast<const float*>(queries.values) + d;
    const float* weight = queries.scores + lane;
    for (int n = 0; n < n_tokens; ++n, value += queries.head_dim, weight += lanes) {
      VF w[kVecs];
      unroll<kVecs>([&](auto v) MNEME_INLINED { w[v] = hn::Load(df, weight + v * kWidth); });
      unroll<4>([&](auto i) MNEME_INLINED {
        const VF x = hn::Set(df, value[i]);
        unroll<kVecs>([&](auto v) MNEME_INLINED {
          constexpr int kI = i * kVecs + v;
          acc[kI] = hn::MulAdd(w[v], x, acc[kI]);
        });
      });
    }
    unroll<4 * kVecs>([&](auto i)
                          MNEME_INLINED { hn::Store(acc[i], df, out + i / kVecs * lanes + i % kVecs * kWidth); });
  }
}

}  // namespace

void attend_key_tile_simd(const KeyTile& tile, const KeyTile& following, const QueryTile& queries) {
  if (queries.kv_dtype == DType::kBF16)
    expand_tile<DType::kBF16>(tile, following, queries);
  else
    expand_tile<DType::kF16>(tile, following, queries);
  int lane = 0;
  for (; lane + kMaxVecs * kWidth <= queries.n_lanes; lane += kMaxVecs * kWidth) score<kMaxVecs>(tile.n, lane, queries);
  for (; lane < queries.n_lanes; lane += kWidth) score<1>(tile.n, lane, queries);
  for (lane = 0; lane < queries.n_lanes; lane += kWidth) softmax(tile, lane, queries);
  std::vector<BadValue> bad;
  if (tile.masked) bad = take_bad_values(tile.n, queries.head_dim, static_cast<float*>(queries.values));
  lane = 0;
  for (; lane + kMaxVecs * kWidth <= queries.n_lanes; lane += kMaxVecs * kWidth) weigh<kMaxVecs>(tile.n, lane, queries);
  for (; lane < queries.n_lanes; lane += kWidth) weigh<1>(tile.n, lane, queries);
  add_bad_values(tile, bad, queries);
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {

HWY_EXPORT(attend_key_tile_simd);

namespace {

// Checks all memory that the unchecked loops access.
void expect_addressable_tile(const KeyTile& tile, const QueryTile& queries) {
  const std::size_t lane_bytes = queries.n_lanes * sizeof(float), head_dim = queries.head_dim;
  const std::size_t n_rows = (tile.n + 3) / 4 * 4;
  for (std::size_t r = 0; r < n_rows; ++r) expect_addressable(tile.rows[r], 4 * head_dim);
  expect_addressable(queries.q, head_dim * lane_bytes);
  for (const void* rows : {queries.keys, queries.values}) expect_addressable(rows, n_rows * head_dim * sizeof(float));
  expect_addressable(queries.scores, n_rows * lane_bytes);
  if (tile.masked)
    for (const std::int32_t* lanes : {queries.first, queries.last}) expect_addressable(lanes, lane_bytes);
  for (const float* lanes : {queries.top, queries.sum, queries.factor}) expect_addressable(lanes, lane_bytes);
  expect_addressable(queries.out, head_dim * lane_bytes);
}

}  // namespace

void attend_key_tile_f32(const KeyTile& tile, const KeyTile& following, const QueryTile& queries) {
  expect_addressable_tile(tile, queries);
  HWY_DYNAMIC_DISPATCH(attend_key_tile_simd)(tile, following, queries);
}

}  // namespace mneme
#endif
