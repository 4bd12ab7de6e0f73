// The scan over 1-bit keys: score = base + 2 * (sum of w over the channels whose bit is set), with w[c] = q[c] s[c] and
// base = sum of q z - w, both by group and head. Lanes are tokens: a word of 32 bits of a channel becomes masks, under
// which the channel's weight is added for every head while the masks are in registers.
#include "src/kernels/one_bit.h"

// Arrays of vectors need a width known to the compiler.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/one_bit_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/kernels/load_half-inl.h"

#ifndef MNEME_KERNELS_ONE_BIT_CPU_ONCE_
#define MNEME_KERNELS_ONE_BIT_CPU_ONCE_
#include <algorithm>
#include <array>
#include <cstring>

#include "src/base/check.h"

namespace mneme {
namespace {

constexpr std::int32_t kMaxGroup = 16;
constexpr std::int32_t kMaxDim = 256;

constexpr auto kBitOfToken = [] {
  std::array<std::uint32_t, 32> bits{};
  for (std::size_t t = 0; t < 32; ++t) bits[t] = std::uint32_t{1} << t;
  return bits;
}();

// One group's weights, [heads, D], and bases, [heads].
struct GroupWeights {
  alignas(64) float w[kMaxGroup * kMaxDim];
  float base[kMaxGroup];
};

// The words of 32 tokens: that of channel c at words + c * stride bytes.
struct WordColumn {
  const std::byte* words = nullptr;
  std::size_t stride = 0;
  std::size_t dim = 0;
};

}  // namespace
}  // namespace mneme
#endif

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::ScalableTag<std::uint32_t>;

// Vectors of tokens at once: 32 tokens with AVX-512 and AVX2, fewer where a vector is shorter.
inline constexpr std::size_t kVectors = hn::MaxLanes(Floats()) >= 16 ? 2 : 4;
// 8 accumulators either way: a head has kVectors, and a lone head as many partial sums as fill them.
inline constexpr int kHeadsAtOnce = hn::MaxLanes(Floats()) >= 16 ? 4 : 2;

template <class D>
HWY_INLINE void weigh(D d, const float* q, std::int32_t heads, std::size_t dim, const std::byte* group,
                      GroupWeights& out) {
  for (std::int32_t h = 0; h < heads; ++h) {
    const std::size_t row = static_cast<std::size_t>(h) * dim;
    auto base = hn::Zero(d);
    for (std::size_t c = 0; c < dim; c += hn::Lanes(d)) {
      const auto x = hn::LoadU(d, q + row + c);
      const auto w = hn::Mul(x, LoadBf16()(d, group + 2 * (dim + c)));
      hn::StoreU(w, d, out.w + row + c);
      base = hn::Add(base, hn::MulSub(x, LoadBf16()(d, group + 2 * c), w));
    }
    out.base[h] = hn::GetLane(hn::SumOfLanes(d, base));
  }
}

HWY_INLINE hn::Vec<Floats> add_where(hn::Mask<Floats> mask, hn::Vec<Floats> sum, hn::Vec<Floats> weight) {
#if HWY_TARGET <= HWY_AVX3  // one instruction there
  return hn::IfThenElse(mask, hn::Add(sum, weight), sum);
#else
  return hn::Add(sum, hn::IfThenElseZero(mask, weight));
#endif
}

// Scores of kVectors vectors of tokens from the bit `first` of each word on, for kHeads heads; kParts partial sums by
// channel mod kParts.
template <int kHeads, int kParts>
HWY_INLINE void scan_words(const WordColumn& column, std::size_t first, const float* w, const float* base,
                           float* scores, std::int64_t score_stride) {
  const Floats d;
  const Words du;
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<Words> bit[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) bit[v] = hn::LoadU(du, kBitOfToken.data() + first + v * lanes);
  hn::Vec<Floats> sum[kParts][kHeads][kVectors];
  for (auto& part : sum)
    for (auto& head : part)
      for (auto& x : head) x = hn::Zero(d);
  for (std::size_t c = 0; c < column.dim; c += kParts)
    for (std::size_t p = 0; p < kParts; ++p) {
      std::uint32_t word;
      std::memcpy(&word, column.words + (c + p) * column.stride, sizeof(word));
      const auto words = hn::Set(du, word);
      hn::Mask<Floats> mask[kVectors];
      for (std::size_t v = 0; v < kVectors; ++v) mask[v] = hn::RebindMask(d, hn::TestBit(words, bit[v]));
      for (std::size_t h = 0; h < kHeads; ++h) {
        const auto weight = hn::Set(d, w[h * column.dim + c + p]);
        for (std::size_t v = 0; v < kVectors; ++v) sum[p][h][v] = add_where(mask[v], sum[p][h][v], weight);
      }
    }
  for (std::size_t h = 0; h < kHeads; ++h)
    for (std::size_t v = 0; v < kVectors; ++v) {
      auto total = sum[0][h][v];
      for (std::size_t p = 1; p < kParts; ++p) total = hn::Add(total, sum[p][h][v]);
      const auto score = hn::MulAdd(hn::Set(d, 2.0f), total, hn::Set(d, base[h]));
      hn::StoreU(score, d, scores + static_cast<std::int64_t>(h) * score_stride + v * lanes);
    }
}

void scan(const float* q, const AttentionShape& shape, const std::byte* groups, std::int64_t n_groups, std::int32_t g,
          float* scores, std::int64_t score_stride) {
  const Floats d;
  const hn::CappedTag<float, 8> d8;
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const std::size_t step = kVectors * hn::Lanes(d);
  const std::size_t word_bytes = static_cast<std::size_t>(g) / 8;
  GroupWeights weights;
  for (std::int64_t i = 0; i < n_groups; ++i) {
    const std::byte* group = groups + static_cast<std::size_t>(i) * dim * (4 + word_bytes);
    if (dim % hn::Lanes(d) == 0)
      weigh(d, q, shape.group, dim, group, weights);
    else
      weigh(d8, q, shape.group, dim, group, weights);
    for (std::size_t t = 0; t < static_cast<std::size_t>(g); t += step) {
      const WordColumn column{group + 4 * dim + t / 32 * 4, word_bytes, dim};
      float* at = scores + i * g + static_cast<std::int64_t>(t);
      for (std::int32_t h = 0; h < shape.group; h += kHeadsAtOnce) {
        const float* w = weights.w + static_cast<std::size_t>(h) * dim;
        const float* base = weights.base + h;
        float* out = at + h * score_stride;
        const int heads = std::min<int>(kHeadsAtOnce, shape.group - h);
        if (heads == 1) scan_words<1, kHeadsAtOnce>(column, t % 32, w, base, out, score_stride);
        if (heads == 2) scan_words<2, kHeadsAtOnce / 2>(column, t % 32, w, base, out, score_stride);
        if constexpr (kHeadsAtOnce > 2) {
          if (heads == 3) scan_words<3, 1>(column, t % 32, w, base, out, score_stride);
          if (heads == 4) scan_words<4, 1>(column, t % 32, w, base, out, score_stride);
        }
      }
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(scan);

}  // namespace

void one_bit_score_cpu(const float* q, const AttentionShape& shape, const std::byte* groups, std::int64_t n_groups,
                       std::int32_t g, float* scores, std::int64_t score_stride) {
  MNEME_CHECK(shape.group >= 1 && shape.group <= kMaxGroup, "group {}", shape.group);
  MNEME_CHECK(shape.head_dim % 8 == 0 && shape.head_dim >= 8 && shape.head_dim <= kMaxDim, "D {}", shape.head_dim);
  MNEME_CHECK(g == 32 || g == 64 || g == 128 || g == 256, "{} tokens a group", g);
  HWY_DYNAMIC_DISPATCH(scan)(q, shape, groups, n_groups, g, scores, score_stride);
}

}  // namespace mneme
#endif
