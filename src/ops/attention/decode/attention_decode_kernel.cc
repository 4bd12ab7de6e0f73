// Decode attention over one KV split, in tiles of 32 tokens.
//
// A vector of scores has one group of 4 lanes for each of H query heads (H = lanes / 4: 4 with AVX-512, 2 with AVX2);
// such H heads are a set. Within a group the lanes are first 4 partial sums over d, and 4 tokens after a transposing
// reduction:
//
//   scores  [32 / 4 tokens][set][H heads][4 tokens]
//   queries [set][D / 4][H heads][4 of D]
//
// So a key is loaded once for H heads (16 bytes, broadcast to every group), and neither softmax nor reduction needs a
// horizontal sum over the whole vector.
#include "src/ops/attention/decode/attention_decode_kernel.h"

#include "src/ops/simd/fixed_width_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/attention/decode/attention_decode_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "src/kv/widen-inl.h"
#include "src/ops/attention/attention_simd-inl.h"

#ifndef MNEME_ATTENTION_DECODE_RANGE_ONCE
#define MNEME_ATTENTION_DECODE_RANGE_ONCE
#include <algorithm>
#include <cstring>
#include <limits>

namespace mneme {
namespace {

constexpr int kTile = 32;  // tokens: a page
constexpr float kLog2e = 1.44269504f;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Rows of up to kTile tokens, and the rows after them.
struct TokenTile {
  const std::byte* rows[kTile] = {};
  int n = 0;
};

// Reads tokens in sequence from the runs of a part.
struct TokenReader {
  std::span<const KvRun> runs;
  std::size_t run = 0;
  std::int32_t offset = 0;
  std::size_t token_bytes = 0;

  // Fills the tile with the next tokens, at most `limit`; pads to a multiple of 4 rows by repeating the last.
  void next(TokenTile& tile, std::int64_t limit) {
    const int want = static_cast<int>(std::min<std::int64_t>(limit, kTile));
    int n = 0;
    while (n < want) {
      const int take = std::min(want - n, runs[run].n_tokens - offset);
      const std::byte* row = runs[run].kv + offset * token_bytes;
      for (int i = 0; i < take; ++i, row += token_bytes) tile.rows[n + i] = row;
      n += take;
      offset += take;
      if (offset == runs[run].n_tokens) {
        ++run;
        offset = 0;
      }
    }
    tile.n = n;
    for (; n % 4 != 0; ++n) tile.rows[n] = tile.rows[n - 1];
  }
};

// Prefetches the rows of the next tile: two rows, half a tile apart, for every four tokens scored and again for every
// four weighted. Pages are scattered, so the hardware prefetcher does not help; an even stream from two 4 KiB pages at
// once keeps the bus busy (Zen 5: 31 GB/s per core, against 15 in bursts of four rows and 6 without).
struct Prefetcher {
  const TokenTile& tile;
  std::size_t token_bytes;
  int row = 0;

  void step() {
    fetch(row);
    fetch(row + kTile / 2);
    ++row;
  }
  void fetch(int r) const {
    if (r >= tile.n) return;
    for (std::size_t b = 0; b < token_bytes; b += 64) hwy::Prefetch(tile.rows[r] + b);
  }
};

}  // namespace
}  // namespace mneme
#endif

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR  // one lane has no groups

std::size_t scratch_bytes_simd(const AttentionShape& /*shape*/) {
  return 64;
}
void attend_range_simd(std::span<const DecodePart> parts, const DecodeCursor& begin, std::int64_t n_tokens,
                       const AttentionShape& shape, std::byte* /*scratch*/, const DecodePartial& partial) {
  attend_range_plain(parts, begin, n_tokens, shape, partial);
}

#else

namespace {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
constexpr int kLanes = hn::MaxLanes(DF());
constexpr int kHeadsPerSet = kLanes / 4;
constexpr int kWide =
    kLanes == 16 ? 4 : 2;  // vectors of a value at once: with 4 heads 16 or 8 accumulators; AVX2 has 16 registers
static_assert(kLanes >= 4, "a block is four lanes");

struct Pointers {
  float* q;       // [sets][D / 4][kLanes]
  float* scores;  // [kTile / 4][sets][kLanes]; probabilities after the softmax
  float* keys;    // [kTile][D], f16: keys as f32; 8 bits: [kTile][2][D] keys and values in bf16
  float* top;     // [sets][kLanes], equal in the 4 lanes of a head
  float* sum;     // [sets][kLanes], partial sums by token modulo 4
  float* factor;  // [sets][kLanes], rescales earlier sums to the new top
  std::uintptr_t end;
};

Pointers layout(const AttentionShape& shape, std::uintptr_t scratch) {
  const std::size_t sets = (shape.group + kHeadsPerSet - 1) / kHeadsPerSet;
  const std::size_t d_head = shape.head_dim;
  const auto take = [&](std::size_t floats) {
    auto* p = reinterpret_cast<float*>(scratch);  // NOLINT(performance-no-int-to-ptr): of no base, its size is counted
    scratch += (floats * sizeof(float) + 63) & ~std::size_t{63};
    return p;
  };
  const std::size_t row = sets * kLanes;
  Pointers s{};
  s.q = take(row * d_head / 4);
  s.scores = take(row * kTile / 4);
  s.keys = take(kTile * d_head);
  s.top = take(row);
  s.sum = take(row);
  s.factor = take(row);
  s.end = scratch;
  return s;
}

// Which of the 8 elements at `8 * k` is in lane `lane` of vector `half`: bf16 keys are split by parity, which costs a
// shift and a mask; f16 keys are converted in order.
template <DType kDType>
int element_of(int half, int lane) {
  return kDType == DType::kBF16 ? 2 * lane + half : 4 * half + lane;
}

template <DType kDType>
void arrange_queries(const float* q, const AttentionShape& shape, const Pointers& s) {
  const float scale = shape.scale * kLog2e;
  const int n_sets = (shape.group + kHeadsPerSet - 1) / kHeadsPerSet;
  float* to = s.q;
  for (int set = 0; set < n_sets; ++set)
    for (int k = 0; k < shape.head_dim; k += 8)
      for (int half = 0; half < 2; ++half)
        for (int h = 0; h < kHeadsPerSet; ++h)
          for (int lane = 0; lane < 4; ++lane) {
            const int g = set * kHeadsPerSet + h;
            *to++ = g < shape.group ? q[g * shape.head_dim + k + element_of<kDType>(half, lane)] * scale : 0.0f;
          }
}

// f16 keys as f32, in order.
void expand_keys(const TokenTile& tile, int head_dim, float* keys) {
  const hn::CappedTag<float, 8> df;
  const int n_padded = (tile.n + 3) & ~3;
  for (int n = 0; n < n_padded; ++n)
    for (int d = 0; d < head_dim; d += static_cast<int>(hn::Lanes(df)))
      hn::StoreU(load_f16(df, tile.rows[n] + 2 * d), df, keys + n * head_dim + d);
}

// Sums each group of a0..a3 into lanes 0..3 of that group.
HWY_INLINE VF transposing_sum(VF a0, VF a1, VF a2, VF a3) {
  const DF df;
  const hn::RepartitionToWide<DF> dw;
  const VF s01 = hn::Add(hn::InterleaveLower(df, a0, a1), hn::InterleaveUpper(df, a0, a1));
  const VF s23 = hn::Add(hn::InterleaveLower(df, a2, a3), hn::InterleaveUpper(df, a2, a3));
  const auto w01 = hn::BitCast(dw, s01);
  const auto w23 = hn::BitCast(dw, s23);
  return hn::Add(hn::BitCast(df, hn::InterleaveLower(dw, w01, w23)),
                 hn::BitCast(df, hn::InterleaveUpper(dw, w01, w23)));
}

// Eight elements of a key as two vectors, each element broadcast to every group.
template <DType kDType>
HWY_INLINE void load_key(const void* key, std::ptrdiff_t k, VF& v0, VF& v1) {
  const DF df;
  if constexpr (kDType == DType::kBF16) {
    const hn::Repartition<std::uint16_t, DF> d16;
    const hn::RebindToUnsigned<DF> d32;
    const auto pairs = hn::BitCast(d32, hn::LoadDup128(d16, static_cast<const std::uint16_t*>(key) + k));
    v0 = hn::BitCast(df, hn::ShiftLeft<16>(pairs));
    v1 = hn::BitCast(df, hn::And(pairs, hn::Set(d32, 0xffff0000u)));
  } else {
    v0 = hn::LoadDup128(df, static_cast<const float*>(key) + k);
    v1 = hn::LoadDup128(df, static_cast<const float*>(key) + k + 4);
  }
}

// Scores of 4 tokens for kSets sets: to[set * kLanes].
template <DType kDType, int kSets>
HWY_INLINE void score_four(const void* const* keys, const float* HWY_RESTRICT q, int head_dim, float* HWY_RESTRICT to) {
  const DF df;
  // With one set the two halves have separate sums: eight chains hide the FMA latency.
  constexpr int kChains = kSets == 1 ? 2 : kSets;
  VF acc[4 * kChains];
  unroll<4 * kChains>([&](auto i) MNEME_INLINED { acc[i] = hn::Zero(df); });
  const std::ptrdiff_t set_stride = std::ptrdiff_t{head_dim} / 4 * kLanes;
  for (std::ptrdiff_t k = 0; k < head_dim; k += 8, q += 2 * kLanes) {
    unroll<4>([&](auto t) MNEME_INLINED {
      VF k0, k1;
      load_key<kDType>(keys[t], k, k0, k1);
      unroll<kSets>([&](auto s) MNEME_INLINED {
        constexpr int kFirst = t * kChains + s;
        constexpr int kSecond = kSets == 1 ? kFirst + 1 : kFirst;
        acc[kFirst] = hn::MulAdd(k0, hn::Load(df, q + s * set_stride), acc[kFirst]);
        acc[kSecond] = hn::MulAdd(k1, hn::Load(df, q + s * set_stride + kLanes), acc[kSecond]);
      });
    });
  }
  if constexpr (kSets == 1) unroll<4>([&](auto t) MNEME_INLINED { acc[2 * t] = hn::Add(acc[2 * t], acc[2 * t + 1]); });
  unroll<kSets>([&](auto s) MNEME_INLINED {
    hn::Store(transposing_sum(acc[s], acc[kChains + s], acc[2 * kChains + s], acc[3 * kChains + s]), df,
              to + s * kLanes);
  });
}

template <DType kDType>
HWY_NOINLINE void score_tile(const TokenTile& tile, const AttentionShape& shape, int n_sets, const Pointers& s,
                             Prefetcher& prefetch) {
  if constexpr (kDType == DType::kF16) expand_keys(tile, shape.head_dim, s.keys);
  const std::ptrdiff_t set_stride = std::ptrdiff_t{shape.head_dim} / 4 * kLanes;
  for (int n = 0; n < tile.n; n += 4) {
    const void* keys[4];
    for (int t = 0; t < 4; ++t)
      keys[t] = kDType == DType::kF16 ? static_cast<const void*>(s.keys + (n + t) * shape.head_dim)
                                      : static_cast<const void*>(tile.rows[n + t]);
    prefetch.step();
    float* to = s.scores + std::ptrdiff_t{n} / 4 * n_sets * kLanes;
    int set = 0;
    for (; set + 2 <= n_sets; set += 2)
      score_four<kDType, 2>(keys, s.q + set * set_stride, shape.head_dim, to + set * kLanes);
    if (set < n_sets) score_four<kDType, 1>(keys, s.q + set * set_stride, shape.head_dim, to + set * kLanes);
  }
}

// Converts scores to probabilities relative to the running top.   bias [kTile] or null
HWY_NOINLINE void softmax_tile(int n_tokens, const float* bias, int n_sets, const Pointers& s) {
  const DF df;
  const int n_quads = (n_tokens + 3) / 4;
  for (int set = 0; set < n_sets; ++set) {
    float* scores = s.scores + set * kLanes;
    const std::ptrdiff_t stride = std::ptrdiff_t{n_sets} * kLanes;
    VF high = hn::Set(df, kMinusInf);
    for (int i = 0; i < n_quads; ++i) {
      VF v = hn::Load(df, scores + i * stride);
      if (bias != nullptr) {
        v = hn::Add(v, hn::LoadDup128(df, bias + 4 * i));
        hn::Store(v, df, scores + i * stride);
      }
      high = hn::Max(high, v);
    }
    high = hn::Max(high, hn::Shuffle1032(high));
    high = hn::Max(high, hn::Shuffle2301(high));
    const VF before = hn::Load(df, s.top + set * kLanes);
    const VF top = hn::Max(before, high);
    const VF base = hn::IfThenZeroElse(hn::Eq(top, hn::Set(df, kMinusInf)), top);
    const VF factor = exp2_nonpositive(df, hn::Sub(before, base));
    VF sum = hn::Mul(hn::Load(df, s.sum + set * kLanes), factor);
    for (int i = 0; i < n_quads; ++i) {
      const VF p = exp2_nonpositive(df, hn::Sub(hn::Load(df, scores + i * stride), base));
      hn::Store(p, df, scores + i * stride);
      sum = hn::Add(sum, p);
    }
    hn::Store(top, df, s.top + set * kLanes);
    hn::Store(sum, df, s.sum + set * kLanes);
    hn::Store(factor, df, s.factor + set * kLanes);
  }
}

// The passes over one tile, and the current one.
struct Pass {
  int i;
  int n;
};

// out[heads g0.., d0..] = out * factor + sum of probability * value. kHeads x kVecs accumulators stay in registers
// because this is not inlined.
template <DType kDType, int kHeads, int kVecs, class D>
HWY_NOINLINE void weigh_block(D df, const TokenTile& tile, int head_dim, int n_sets, int g0, int d0, const Pointers& s,
                              float* HWY_RESTRICT out, Pass pass, Prefetcher& prefetch) {
  constexpr int kAccs = kHeads * kVecs;
  constexpr std::ptrdiff_t kN = hn::MaxLanes(D());
  out += g0 * head_dim + d0;
  std::ptrdiff_t at[kHeads];  // offset of a head's group in the scores of 4 tokens
  hn::Vec<D> acc[kAccs];
  unroll<kHeads>([&](auto h) MNEME_INLINED { at[h] = (g0 + h) / kHeadsPerSet * kLanes + (g0 + h) % kHeadsPerSet * 4; });
  unroll<kAccs>([&](auto i) MNEME_INLINED {
    const float* from = out + i / kVecs * head_dim + i % kVecs * kN;
    acc[i] = hn::Mul(hn::Set(df, s.factor[at[i / kVecs]]), hn::LoadU(df, from));
  });
  const std::size_t value_bytes = 2 * static_cast<std::size_t>(head_dim + d0);
  const float* quad = s.scores;
  for (int n = 0; n < tile.n; n += 4, quad += n_sets * kLanes) {
    if (n / 4 % pass.n == pass.i) prefetch.step();
    const float* p = quad;
    for (int t = n; t < std::min(n + 4, tile.n); ++t, ++p) {
      const std::byte* row = tile.rows[t] + value_bytes;
      hn::Vec<D> value[kVecs];
      unroll<kVecs>([&](auto v) MNEME_INLINED {
        value[v] = kDType == DType::kBF16 ? load_bf16(df, row + 2 * v * kN) : load_f16(df, row + 2 * v * kN);
      });
      unroll<kHeads>([&](auto h) MNEME_INLINED {
        const auto weight = hn::Set(df, p[at[h]]);
        unroll<kVecs>([&](auto v) MNEME_INLINED {
          constexpr int kI = h * kVecs + v;
          acc[kI] = hn::MulAdd(weight, value[v], acc[kI]);
        });
      });
    }
  }
  unroll<kAccs>([&](auto i) MNEME_INLINED { hn::StoreU(acc[i], df, out + i / kVecs * head_dim + i % kVecs * kN); });
}

template <DType kDType, int kHeads>
void weigh_heads(const TokenTile& tile, int head_dim, int n_sets, int g0, const Pointers& s, float* out, Pass& pass,
                 Prefetcher& prefetch) {
  const hn::CappedTag<float, 8> d8;
  int d = 0;
  for (; d + kWide * kLanes <= head_dim; d += kWide * kLanes, ++pass.i)
    weigh_block<kDType, kHeads, kWide>(DF(), tile, head_dim, n_sets, g0, d, s, out, pass, prefetch);
  for (; d + kLanes <= head_dim; d += kLanes, ++pass.i)
    weigh_block<kDType, kHeads, 1>(DF(), tile, head_dim, n_sets, g0, d, s, out, pass, prefetch);
  for (; d < head_dim; d += static_cast<int>(hn::Lanes(d8)), ++pass.i)
    weigh_block<kDType, kHeads, 1>(d8, tile, head_dim, n_sets, g0, d, s, out, pass, prefetch);
}

template <DType kDType>
void weigh_tile(const TokenTile& tile, const AttentionShape& shape, int n_sets, const Pointers& s, float* out,
                Prefetcher& prefetch) {
  // At least one pass per kWide vectors; where D leaves a remainder there are more passes, which prefetch nothing.
  Pass pass{0, (shape.group + 3) / 4 * std::max(1, shape.head_dim / (kWide * kLanes))};
  int g = 0;
  for (; g + 4 <= shape.group; g += 4) weigh_heads<kDType, 4>(tile, shape.head_dim, n_sets, g, s, out, pass, prefetch);
  if (shape.group - g == 3) weigh_heads<kDType, 3>(tile, shape.head_dim, n_sets, g, s, out, pass, prefetch);
  if (shape.group - g == 2) weigh_heads<kDType, 2>(tile, shape.head_dim, n_sets, g, s, out, pass, prefetch);
  if (shape.group - g == 1) weigh_heads<kDType, 1>(tile, shape.head_dim, n_sets, g, s, out, pass, prefetch);
}

// log_weight (or null) of a tile's tokens in base 2; padding tokens get weight 0.
const float* bias_of(const TokenTile& tile, const float* log_weight, float* bias) {
  if (log_weight == nullptr && tile.n % 4 == 0) return nullptr;
  for (int n = 0; n < kTile; ++n)
    bias[n] = n >= tile.n ? kMinusInf : log_weight == nullptr ? 0.0f : log_weight[n] * kLog2e;
  return bias;
}

// The tile as the kernel reads it: itself, or a copy of its tokens in bf16.
template <DType kStored>
const TokenTile& widened(const TokenTile& tile, const AttentionShape& shape, const Pointers& s, TokenTile& copy) {
  if constexpr (kStored != DType::kInt8 && kStored != DType::kFp8) {
    return tile;
  } else {
    auto* to = reinterpret_cast<bf16*>(s.keys);
    copy.n = tile.n;
    for (int n = 0; n < tile.n; ++n, to += 2 * shape.head_dim) {
      widen_token<kStored>(tile.rows[n], shape.head_dim, true, to);
      copy.rows[n] = reinterpret_cast<const std::byte*>(to);
    }
    for (int n = tile.n; n % 4 != 0; ++n) copy.rows[n] = copy.rows[n - 1];
    return copy;
  }
}

// kStored: the type in the pages.
template <DType kStored>
void attend_part(const DecodePart& part, const DecodeCursor& begin, std::int64_t n_tokens, const AttentionShape& shape,
                 const Pointers& s, float* out) {
  const int n_sets = (shape.group + kHeadsPerSet - 1) / kHeadsPerSet;
  constexpr DType kDType = kStored == DType::kF16 ? DType::kF16 : DType::kBF16;
  arrange_queries<kDType>(part.q, shape, s);
  TokenReader reader{part.runs, static_cast<std::size_t>(begin.run), begin.offset, shape.token_bytes()};
  TokenTile tiles[2], copy;
  HWY_ALIGN float bias[kTile];
  std::int64_t token = begin.token;
  reader.next(tiles[0], n_tokens);
  for (Prefetcher first{tiles[0], shape.token_bytes()}; first.row < kTile / 2;) first.step();
  for (int i = 0; n_tokens > 0; i ^= 1) {
    n_tokens -= tiles[i].n;
    tiles[i ^ 1].n = 0;
    if (n_tokens > 0) reader.next(tiles[i ^ 1], n_tokens);
    const TokenTile& tile = widened<kStored>(tiles[i], shape, s, copy);
    Prefetcher prefetch{tiles[i ^ 1], shape.token_bytes()};
    score_tile<kDType>(tile, shape, n_sets, s, prefetch);
    softmax_tile(tile.n, bias_of(tile, part.log_weight == nullptr ? nullptr : part.log_weight + token, bias), n_sets,
                 s);
    weigh_tile<kDType>(tile, shape, n_sets, s, out, prefetch);
    token += tile.n;
  }
}

void attend_stored(const DecodePart& part, const DecodeCursor& begin, std::int64_t n_tokens,
                   const AttentionShape& shape, const Pointers& s, float* out) {
  switch (shape.kv_dtype) {
    case DType::kBF16:
      return attend_part<DType::kBF16>(part, begin, n_tokens, shape, s, out);
    case DType::kF16:
      return attend_part<DType::kF16>(part, begin, n_tokens, shape, s, out);
    case DType::kInt8:
      return attend_part<DType::kInt8>(part, begin, n_tokens, shape, s, out);
    default:
      return attend_part<DType::kFp8>(part, begin, n_tokens, shape, s, out);
  }
}

}  // namespace

void attend_range_simd(std::span<const DecodePart> parts, const DecodeCursor& begin, std::int64_t n_tokens,
                       const AttentionShape& shape, std::byte* scratch, const DecodePartial& partial) {
  const Pointers s = layout(shape, reinterpret_cast<std::uintptr_t>(scratch));
  const int n_sets = (shape.group + kHeadsPerSet - 1) / kHeadsPerSet;
  std::fill_n(s.top, n_sets * kLanes, kMinusInf);
  std::fill_n(s.sum, n_sets * kLanes, 0.0f);
  std::fill_n(partial.out, shape.group * shape.head_dim, 0.0f);
  DecodeCursor at = begin;
  while (n_tokens > 0) {
    const DecodePart& part = parts[at.part];
    std::int64_t in_part = -at.offset;
    for (std::size_t r = at.run; r < part.runs.size() && in_part < n_tokens; ++r) in_part += part.runs[r].n_tokens;
    in_part = std::min(in_part, n_tokens);
    if (in_part > 0) {
      attend_stored(part, at, in_part, shape, s, partial.out);
      n_tokens -= in_part;
    }
    at = {at.part + 1, 0, 0, 0};
  }
  for (int g = 0; g < shape.group; ++g) {
    const float* lane = s.sum + g / kHeadsPerSet * kLanes + g % kHeadsPerSet * 4;
    partial.top[g] = s.top[lane - s.sum];
    partial.sum[g] = (lane[0] + lane[1]) + (lane[2] + lane[3]);
  }
}

std::size_t scratch_bytes_simd(const AttentionShape& shape) {
  return layout(shape, 0).end;
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {

HWY_EXPORT(attend_range_simd);
HWY_EXPORT(scratch_bytes_simd);

std::size_t decode_scratch_bytes(const AttentionShape& shape) {
  return HWY_DYNAMIC_DISPATCH(scratch_bytes_simd)(shape);
}

void attend_range(std::span<const DecodePart> parts, const DecodeCursor& begin, std::int64_t n_tokens,
                  const AttentionShape& shape, std::byte* scratch, const DecodePartial& partial) {
  HWY_DYNAMIC_DISPATCH(attend_range_simd)(parts, begin, n_tokens, shape, scratch, partial);
}

}  // namespace mneme
#endif
