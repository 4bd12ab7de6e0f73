// One tile of keys in bf16 arithmetic: overrides attention_prefill_f32.cc on CPUs with vdpbf16ps, which Highway 1.0.3
// does not emit.
//
// The instruction multiplies pairs: acc[lane] += a[lane].lo * b[lane].lo + a[lane].hi * b[lane].hi. Keys need no
// packing: two adjacent elements of a key are one 32-bit broadcast from the page. Values are interleaved by pairs of
// tokens, 3 % of the work.
#include "src/ops/attention/prefill/attention_prefill_tile.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/base/unchecked_loop.h"
#include "src/ops/simd/cpu_isa.h"

#if !defined(__clang__)
// gcc 12's own intrinsics (its bug 105593)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define MNEME_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define MNEME_INLINE MNEME_TARGET MNEME_UNCHECKED_LOOP __attribute__((always_inline))

namespace mneme {

bool has_avx512_bf16() {
  return kernels_may_use(CpuIsa::kAvx512Bf16);
}

namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr int kWidth = 16;

// Calls f(0) ... f(N - 1), each with a constant: gcc keeps an array that is indexed in a loop on the stack.
template <class F, int... kI>
MNEME_INLINE inline void unroll_each(const F& f, std::integer_sequence<int, kI...> /*indices*/) {
  (f(std::integral_constant<int, kI>()), ...);
}
template <int kN, class F>
MNEME_INLINE inline void unroll(const F& f) {
  unroll_each(f, std::make_integer_sequence<int, kN>());
}

MNEME_INLINE inline __m512i broadcast_pair(const void* p) {
  std::int32_t pair;
  std::memcpy(&pair, p, sizeof(pair));
  return _mm512_set1_epi32(pair);
}

MNEME_INLINE inline __m512 dot_pairs(__m512 acc, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

// 2^x for x <= 0: relative error 2.9e-6, 1 % of the error of rounding to bf16; 2^0 is exactly 1, 2^-inf is 0.
MNEME_INLINE inline __m512 exp2_rough(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, 0x09);  // x - floor(x); 0 for infinity
  __m512 p = _mm512_set1_ps(1.342668440e-02f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.224247392e-02f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.412802050e-01f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.930448449e-01f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, x);
}

MNEME_INLINE inline void fetch_row(const KeyTile& tile, int r, std::int32_t head_dim) {
  if (r >= tile.n) return;
  for (std::int32_t b = 0; b < 4 * head_dim; b += 64)
    _mm_prefetch(reinterpret_cast<const char*>(tile.rows[r]) + b, _MM_HINT_T1);
}

// Scores of the tile and each lane's maximum: queries.scores, queries.top -> returned in `high`.
// kKeys x kVecs sums in registers.
template <int kVecs, bool kMasked>
MNEME_TARGET MNEME_UNCHECKED_LOOP void score(const KeyTile& tile, const KeyTile& following, const QueryTile& queries,
                                             float* high) {
  constexpr int kKeys = 16 / kVecs;
  __m512 top[kVecs];
  unroll<kVecs>([&](auto v) MNEME_INLINE { top[v] = _mm512_set1_ps(kMinusInf); });
  const std::ptrdiff_t pairs = queries.head_dim / 2;
  for (int n = 0; n < tile.n; n += kKeys) {
    for (int k = n; k < n + kKeys; ++k) fetch_row(following, k, queries.head_dim);
    __m512 acc[kKeys * kVecs];
    unroll<kKeys * kVecs>([&](auto i) MNEME_INLINE { acc[i] = _mm512_setzero_ps(); });
    const std::byte* const* rows = tile.rows + n;
    const auto* q = static_cast<const __m512i*>(queries.q);
    for (std::ptrdiff_t d = 0; d < pairs; ++d, q += kVecs) {
      __m512i query[kVecs];
      unroll<kVecs>([&](auto v) MNEME_INLINE { query[v] = _mm512_load_si512(q + v); });
      unroll<kKeys>([&](auto k) MNEME_INLINE {
        const __m512i key = broadcast_pair(rows[k] + 4 * d);
        unroll<kVecs>([&](auto v) MNEME_INLINE {
          constexpr int kI = k * kVecs + v;
          acc[kI] = dot_pairs(acc[kI], query[v], key);
        });
      });
    }
    float* to = queries.scores + n * kVecs * kWidth;
    unroll<kKeys * kVecs>([&](auto i) MNEME_INLINE {
      if constexpr (kMasked) {
        const __m512i token = _mm512_set1_epi32(tile.begin + n + i / kVecs);
        const __mmask16 seen = _mm512_cmple_epi32_mask(_mm512_load_si512(queries.first + i % kVecs * kWidth), token) &
                               _mm512_cmpgt_epi32_mask(_mm512_load_si512(queries.last + i % kVecs * kWidth), token);
        acc[i] = _mm512_mask_blend_ps(seen, _mm512_set1_ps(kMinusInf), acc[i]);
      }
      _mm512_store_ps(to + i * kWidth, acc[i]);
      top[i % kVecs] = _mm512_max_ps(acc[i], top[i % kVecs]);
    });
  }
  unroll<kVecs>([&](auto v) MNEME_INLINE { _mm512_store_ps(high + v * kWidth, top[v]); });
}

// Converts scores to probabilities relative to the new top, rounded and interleaved by pairs of tokens; updates top,
// sum and factor.
template <int kVecs>
MNEME_TARGET void softmax(int n_tokens, const float* high, const QueryTile& queries) {
  alignas(64) static constexpr std::uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                                21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                                11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i interleave = _mm512_load_si512(kInterleave);
  __m512 base[kVecs], even[kVecs], odd[kVecs];
  unroll<kVecs>([&](auto v) MNEME_INLINE {
    const __m512 before = _mm512_load_ps(queries.top + v * kWidth);
    const __m512 top = _mm512_max_ps(_mm512_load_ps(high + v * kWidth), before);
    base[v] = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(top, _mm512_set1_ps(kMinusInf), _CMP_NEQ_UQ), top);
    const __m512 factor = exp2_rough(_mm512_sub_ps(before, base[v]));
    even[v] = _mm512_mul_ps(_mm512_load_ps(queries.sum + v * kWidth), factor);
    odd[v] = _mm512_setzero_ps();
    _mm512_store_ps(queries.top + v * kWidth, top);
    _mm512_store_ps(queries.factor + v * kWidth, factor);
  });
  const float* scores = queries.scores;
  auto* weights = static_cast<__m512i*>(queries.weights);
  for (int n = 0; n < n_tokens; n += 2, scores += 2 * kVecs * kWidth, weights += kVecs) {
    unroll<kVecs>([&](auto v) MNEME_INLINE {
      const __m512 p0 = exp2_rough(_mm512_sub_ps(_mm512_load_ps(scores + v * kWidth), base[v]));
      const __m512 p1 = exp2_rough(_mm512_sub_ps(_mm512_load_ps(scores + (kVecs + v) * kWidth), base[v]));
      even[v] = _mm512_add_ps(even[v], p0);
      odd[v] = _mm512_add_ps(odd[v], p1);
      const auto halves = (__m512i)_mm512_cvtne2ps_pbh(p1, p0);
      _mm512_store_si512(weights + v, _mm512_permutexvar_epi16(interleave, halves));
    });
  }
  unroll<kVecs>([&](auto v)
                    MNEME_INLINE { _mm512_store_ps(queries.sum + v * kWidth, _mm512_add_ps(even[v], odd[v])); });
}

// Values of the tile as pairs of tokens: [ceil(n / 2)][D]. With kMasked, returns whether one is infinite or NaN.
template <bool kMasked>
MNEME_TARGET bool interleave_values(const KeyTile& tile, std::int32_t head_dim, std::uint32_t* to) {
  const std::size_t value_bytes = std::size_t{2} * head_dim;
  const __m256i exponent = _mm256_set1_epi16(0x7f80);
  __mmask16 bad = 0;
  for (int n = 0; n < tile.n; n += 2, to += head_dim) {
    const std::byte* v0 = tile.rows[n] + value_bytes;
    const std::byte* v1 = n + 1 < tile.n ? tile.rows[n + 1] + value_bytes : nullptr;
    for (std::int32_t d = 0; d < head_dim; d += 16) {
      const auto some = static_cast<__mmask16>(head_dim - d >= 16 ? 0xffff : 0xff);
      const __m256i a = _mm256_maskz_loadu_epi16(some, v0 + 2 * d);
      const __m256i b = v1 == nullptr ? _mm256_setzero_si256() : _mm256_maskz_loadu_epi16(some, v1 + 2 * d);
      if constexpr (kMasked)
        bad = static_cast<__mmask16>(bad | _mm256_cmpeq_epi16_mask(_mm256_and_si256(a, exponent), exponent) |
                                     _mm256_cmpeq_epi16_mask(_mm256_and_si256(b, exponent), exponent));
      const __m512i pair = _mm512_or_si512(_mm512_cvtepu16_epi32(a), _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
      _mm512_mask_storeu_epi32(to + d, some, pair);
    }
  }
  return bad != 0;
}

std::vector<BadValue> take_bad_values(const KeyTile& tile, std::int32_t head_dim, std::uint32_t* pairs) {
  std::vector<BadValue> bad;
  for (int n = 0; n < tile.n; ++n)
    for (std::int32_t d = 0; d < head_dim; ++d) {
      std::uint32_t& pair = pairs[n / 2 * head_dim + d];
      const int shift = n % 2 * 16;
      bf16 value;
      value.bits = static_cast<std::uint16_t>(pair >> shift);
      if ((value.bits & 0x7f80) != 0x7f80) continue;
      bad.push_back({n, d, value});
      pair &= ~(std::uint32_t{0xffff} << shift);
    }
  return bad;
}

void add_bad_values(const KeyTile& tile, const std::vector<BadValue>& bad, const QueryTile& queries) {
  const auto* weights = static_cast<const std::uint16_t*>(queries.weights);
  for (const BadValue& b : bad)
    for (int lane = 0; lane < queries.n_lanes; ++lane) {
      const std::int32_t token = tile.begin + b.token;
      if (token < queries.first[lane] || token >= queries.last[lane]) continue;
      bf16 p;
      p.bits = weights[(b.token / 2 * queries.n_lanes + lane) * 2 + b.token % 2];
      queries.out[b.d * queries.n_lanes + lane] += static_cast<float>(p) * b.value;
    }
}

// out = out * factor + values * weights, kD x kVecs sums in registers.
template <int kVecs>
MNEME_TARGET MNEME_UNCHECKED_LOOP void weigh(int n_tokens, const QueryTile& queries) {
  constexpr int kD = kVecs == 1 ? 8 : 16 / kVecs;
  const auto* weights = static_cast<const __m512i*>(queries.weights);
  for (std::int32_t d = 0; d < queries.head_dim; d += kD) {
    float* out = queries.out + d * kVecs * kWidth;
    __m512 acc[kD * kVecs];
    unroll<kD * kVecs>([&](auto i) MNEME_INLINE {
      acc[i] = _mm512_mul_ps(_mm512_load_ps(out + i * kWidth), _mm512_load_ps(queries.factor + i % kVecs * kWidth));
    });
    const std::uint32_t* value = static_cast<const std::uint32_t*>(queries.values) + d;
    const __m512i* weight = weights;
    for (int n = 0; n < n_tokens; n += 2, value += queries.head_dim, weight += kVecs) {
      __m512i w[kVecs];
      unroll<kVecs>([&](auto v) MNEME_INLINE { w[v] = _mm512_load_si512(weight + v); });
      unroll<kD>([&](auto i) MNEME_INLINE {
        const __m512i pair = broadcast_pair(value + i);
        unroll<kVecs>([&](auto v) MNEME_INLINE {
          constexpr int kI = i * kVecs + v;
          acc[kI] = dot_pairs(acc[kI], w[v], pair);
        });
      });
    }
    unroll<kD * kVecs>([&](auto i) MNEME_INLINE { _mm512_store_ps(out + i * kWidth, acc[i]); });
  }
}

// Checks all memory that score() and weigh() access.
template <int kVecs>
void expect_addressable_tile(const KeyTile& tile, const QueryTile& queries) {
  constexpr std::size_t kLaneBytes = kVecs * kWidth * 4;
  constexpr int kKeys = 16 / kVecs;
  const std::size_t n = tile.n, head_dim = queries.head_dim;
  const std::size_t n_rows = (n + kKeys - 1) / kKeys * kKeys, pairs = (n + 1) / 2;
  for (std::size_t r = 0; r < n_rows; ++r) expect_addressable(tile.rows[r], 2 * head_dim);
  expect_addressable(queries.q, head_dim / 2 * kLaneBytes);
  expect_addressable(queries.scores, n_rows * kLaneBytes);
  if (tile.masked)
    for (const std::int32_t* lanes : {queries.first, queries.last}) expect_addressable(lanes, kLaneBytes);
  expect_addressable(queries.weights, pairs * kLaneBytes);
  expect_addressable(queries.values, pairs * head_dim * 4);
  expect_addressable(queries.factor, kLaneBytes);
  expect_addressable(queries.out, head_dim * kLaneBytes);
}

template <int kVecs>
void attend(const KeyTile& tile, const KeyTile& following, const QueryTile& queries) {
  expect_addressable_tile<kVecs>(tile, queries);
  alignas(64) float high[kVecs * kWidth];
  auto* values = static_cast<std::uint32_t*>(queries.values);
  if (tile.masked)
    score<kVecs, true>(tile, following, queries, high);
  else
    score<kVecs, false>(tile, following, queries, high);
  softmax<kVecs>(tile.n, high, queries);
  if (tile.masked && interleave_values<true>(tile, queries.head_dim, values)) {
    const std::vector<BadValue> bad = take_bad_values(tile, queries.head_dim, values);
    weigh<kVecs>(tile.n, queries);
    add_bad_values(tile, bad, queries);
    return;
  }
  if (!tile.masked) interleave_values<false>(tile, queries.head_dim, values);
  weigh<kVecs>(tile.n, queries);
}

}  // namespace

void attend_key_tile_bf16(const KeyTile& tile, const KeyTile& following, const QueryTile& queries) {
  switch (queries.n_lanes) {
    case 16:
      return attend<1>(tile, following, queries);
    case 32:
      return attend<2>(tile, following, queries);
    default:
      return attend<4>(tile, following, queries);
  }
}

}  // namespace mneme

#else

namespace mneme {
bool has_avx512_bf16() {
  return false;
}
void attend_key_tile_bf16(const KeyTile& tile, const KeyTile& following, const QueryTile& queries) {
  attend_key_tile_f32(tile, following, queries);
}
}  // namespace mneme

#endif
