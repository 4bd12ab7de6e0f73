// 1-bit scan: score = base + 2 * (sum of w over the channels whose bit is set), with w[c] = q[c] s[c] and base = sum of
// q z - w, both per group and head. Lanes are tokens: a word of 8 tokens of four channels becomes masks, and a
// channel's weight is added under its mask for every head while the masks are in registers. With VNNI, one_bit_vnni.cc
// replaces this.
#include "src/selection/index/one_bit.h"

#include "src/ops/simd/fixed_width_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/selection/index/one_bit_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/simd/load_half-inl.h"

#ifndef MNEME_KERNELS_ONE_BIT_CPU_ONCE_
#define MNEME_KERNELS_ONE_BIT_CPU_ONCE_
#include <algorithm>
#include <array>
#include <cstring>

#include "src/base/check.h"
#include "src/selection/index/one_bit_vnni.h"

namespace mneme {
namespace {

// [channel of four][token of eight]
constexpr auto kBitOf = [] {
  std::array<std::array<std::uint32_t, 8>, 4> bits{};
  for (std::size_t c = 0; c < 4; ++c)
    for (std::size_t t = 0; t < 8; ++t) bits[c][t] = std::uint32_t{1} << (4 * t + c);
  return bits;
}();

// One group's weights, [heads, D], and bases, [heads].
struct GroupWeights {
  alignas(64) float w[kOneBitMaxGroup * kOneBitMaxDim];
  float base[kOneBitMaxGroup];
};

// Nibbles of a group: four channels' at words + c / 4 * stride.
struct GroupNibbles {
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

using Floats = hn::CappedTag<float, 8>;
using Words = hn::CappedTag<std::uint32_t, 8>;

// Vectors of tokens at a time: 32 tokens, fewer with short vectors.
inline constexpr std::size_t kVectors = 4;
// 8 accumulators: kVectors per head, and with one head as many partial sums as fill them.
inline constexpr int kHeadsAtOnce = 2;

HWY_INLINE void weigh(const float* q, std::int32_t heads, std::size_t dim, const std::byte* group, GroupWeights& out) {
  const Floats d;
  for (std::int32_t h = 0; h < heads; ++h) {
    const std::size_t row = h * dim;
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

// Scores of kVectors vectors of tokens, starting at token `first`, for kHeads heads; kParts partial sums by channel mod
// kParts.
template <int kHeads, int kParts>
HWY_INLINE void scan_nibbles(const GroupNibbles& rows, std::size_t first, const float* w, const float* base,
                             float* scores, std::int64_t score_stride) {
  const Floats d;
  const Words du;
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<Floats> sum[kParts][kHeads][kVectors];
  for (auto& part : sum)
    for (auto& head : part)
      for (auto& x : head) x = hn::Zero(d);
  for (std::size_t c = 0; c < rows.dim; c += 4) {
    hn::Vec<Words> words[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      std::uint32_t word;
      std::memcpy(&word, rows.words + c / 4 * rows.stride + (first + v * lanes) / 8 * 4, sizeof(word));
      words[v] = hn::Set(du, word);
    }
    for (std::size_t p = 0; p < 4; ++p) {
      hn::Mask<Floats> mask[kVectors];
      for (std::size_t v = 0; v < kVectors; ++v) {
        const auto bit = hn::LoadU(du, kBitOf[p].data() + (first + v * lanes) % 8);
        mask[v] = hn::RebindMask(d, hn::TestBit(words[v], bit));
      }
      for (std::size_t h = 0; h < kHeads; ++h) {
        const auto weight = hn::Set(d, w[h * rows.dim + c + p]);
        for (std::size_t v = 0; v < kVectors; ++v)
          sum[p % kParts][h][v] = add_where(mask[v], sum[p % kParts][h][v], weight);
      }
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
  const std::size_t dim = shape.head_dim;
  const std::size_t step = kVectors * hn::Lanes(d);
  const std::size_t bytes = one_bit_group_bytes(shape.head_dim, g);
  GroupWeights weights;
  for (std::int64_t i = 0; i < n_groups; ++i) {
    const std::byte* group = groups + i * bytes;
    weigh(q, shape.group, dim, group, weights);
    const GroupNibbles rows{group + 4 * dim, static_cast<std::size_t>(g) / 2, dim};
    for (std::size_t t = 0; t < static_cast<std::size_t>(g); t += step) {
      float* at = scores + i * g + static_cast<std::int64_t>(t);
      for (std::int32_t h = 0; h < shape.group; h += kHeadsAtOnce) {
        const float* w = weights.w + h * dim;
        const float* base = weights.base + h;
        float* out = at + h * score_stride;
        const int heads = std::min<int>(kHeadsAtOnce, shape.group - h);
        if (heads == 1)
          scan_nibbles<1, 2>(rows, t, w, base, out, score_stride);
        else
          scan_nibbles<2, 1>(rows, t, w, base, out, score_stride);
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
  MNEME_CHECK(shape.group >= 1 && shape.group <= kOneBitMaxGroup, "group {}", shape.group);
  MNEME_CHECK(shape.head_dim % 8 == 0 && shape.head_dim >= 8 && shape.head_dim <= kOneBitMaxDim, "D {}",
              shape.head_dim);
  MNEME_CHECK(g == 32 || g == 64 || g == 128 || g == 256, "{} tokens a group", g);
  OneBitScan* integers = one_bit_vnni_scan();
  (integers != nullptr ? integers : HWY_DYNAMIC_DISPATCH(scan))(q, shape, groups, n_groups, g, scores, score_stride);
}

}  // namespace mneme
#endif
