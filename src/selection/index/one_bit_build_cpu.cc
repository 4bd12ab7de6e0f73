// Quantises a group of keys to one bit per channel. Lanes are channels: a pass over the tokens for the levels, then
// each token sets its bit in the channels' words, which are converted to nibbles. Sums run over the tokens in order.
#include "src/selection/index/one_bit.h"

#include "src/ops/simd/fixed_width_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/selection/index/one_bit_build_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/simd/load_half-inl.h"

#ifndef MNEME_KERNELS_ONE_BIT_BUILD_CPU_ONCE_
#define MNEME_KERNELS_ONE_BIT_BUILD_CPU_ONCE_
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "src/base/check.h"
#include "src/kv/kv_quant.h"
#include "src/tensor/half.h"

namespace mneme {
namespace {

constexpr std::int32_t kMaxTokens = 256;
constexpr std::int32_t kMaxDim = 256;

// Keys of a group, by token, and the output.
struct GroupTask {
  const std::byte* rows[kMaxTokens];
  std::size_t n = 0;
  std::size_t dim = 0;
  OneBitLevels levels = OneBitLevels::kMinMax;
  std::byte* out = nullptr;
};

float store_bf16(float x, std::byte* at) {
  bf16 rounded(x);
  if (std::isnan(x)) rounded.bits = 0x7fc0;
  std::memcpy(at, &rounded, sizeof(rounded));
  return rounded;
}

// Spreads 16 bits, each to the lowest bit of its nibble.
std::uint64_t to_nibbles(std::uint64_t x) {
  x = (x | x << 24) & 0x000000ff000000ffu;
  x = (x | x << 12) & 0x000f000f000f000fu;
  x = (x | x << 6) & 0x0303030303030303u;
  return (x | x << 3) & 0x1111111111111111u;
}

// Stores the bits of channel c for 32 tokens from `first` on. Requires  channels in order: the first of four overwrites
// the nibbles.
void store_bits(const GroupTask& task, std::size_t c, std::size_t first, std::uint32_t word) {
  std::byte* at = task.out + 4 * task.dim + (c / 4 * task.n + first) / 2;
  for (std::size_t half = 0; half < 2; ++half, at += 8) {
    std::uint64_t nibbles = 0;
    if (c % 4 != 0) std::memcpy(&nibbles, at, sizeof(nibbles));
    nibbles |= to_nibbles(word >> (16 * half) & 0xffffu) << (c % 4);
    std::memcpy(at, &nibbles, sizeof(nibbles));
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

// (max + min) / 2 and (max - min) / 2 of a vector of channels.
template <class D, class Load>
HWY_INLINE void min_max_levels(D d, const GroupTask& task, std::size_t c, Load load, float* z, float* s) {
  auto most = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto least = hn::Neg(most);
  auto broken = hn::Zero(d);  // NaN once a key was not finite
  for (std::size_t t = 0; t < task.n; ++t) {
    const auto x = load(d, task.rows[t] + 2 * c);
    most = hn::Max(most, x);
    least = hn::Min(least, x);
    broken = hn::Add(broken, hn::Sub(x, x));
  }
  const auto half = hn::Set(d, 0.5f);
  const auto lower = hn::Mul(half, least);
  hn::StoreU(hn::Add(hn::MulAdd(half, most, lower), broken), d, z);
  hn::StoreU(hn::Add(hn::MulSub(half, most, lower), broken), d, s);
}

template <class D, class Load>
HWY_INLINE void mean_of_keys(D d, const GroupTask& task, std::size_t c, Load load, float* z) {
  auto sum = hn::Zero(d);
  for (std::size_t t = 0; t < task.n; ++t) sum = hn::Add(sum, load(d, task.rows[t] + 2 * c));
  sum = hn::Add(sum, hn::Sub(sum, sum));  // NaN unless finite
  hn::StoreU(hn::Mul(sum, hn::Set(d, 1.0f / static_cast<float>(task.n))), d, z);
}

template <class D, class Load>
HWY_INLINE void mean_distance(D d, const GroupTask& task, std::size_t c, Load load, const float* z, float* s) {
  const auto middle = hn::LoadU(d, z);
  auto sum = hn::Zero(d);
  for (std::size_t t = 0; t < task.n; ++t) sum = hn::Add(sum, hn::Abs(hn::Sub(load(d, task.rows[t] + 2 * c), middle)));
  hn::StoreU(hn::Mul(sum, hn::Set(d, 1.0f / static_cast<float>(task.n))), d, s);
}

template <class D, class Load>
HWY_INLINE void write_bits(D d, const GroupTask& task, std::size_t c, Load load, const float* z) {
  const hn::RebindToUnsigned<D> du;
  const std::size_t lanes = hn::Lanes(d);
  const auto middle = hn::LoadU(d, z);
  for (std::size_t first = 0; first < task.n; first += 32) {
    auto word = hn::Zero(du);
    for (std::size_t t = 0; t < 32; ++t) {
      const auto set = hn::RebindMask(du, hn::Ge(load(d, task.rows[first + t] + 2 * c), middle));
      word = hn::Or(word, hn::IfThenElseZero(set, hn::Set(du, std::uint32_t{1} << t)));
    }
    HWY_ALIGN std::uint32_t channel_words[HWY_MAX_BYTES / 4];
    hn::StoreU(word, du, channel_words);
    for (std::size_t i = 0; i < lanes; ++i) store_bits(task, c + i, first, channel_words[i]);
  }
}

template <class D, class Load>
HWY_INLINE void build_in(D d, const GroupTask& task, Load load) {
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t dim = task.dim;
  for (std::size_t c = 0; c < dim; c += lanes) {
    HWY_ALIGN float z[HWY_MAX_BYTES / 4];
    HWY_ALIGN float s[HWY_MAX_BYTES / 4] = {};
    if (task.levels == OneBitLevels::kMinMax)
      min_max_levels(d, task, c, load, z, s);
    else
      mean_of_keys(d, task, c, load, z);
    for (std::size_t i = 0; i < lanes; ++i) z[i] = store_bf16(z[i], task.out + 2 * (c + i));
    if (task.levels == OneBitLevels::kMeanAbs) mean_distance(d, task, c, load, z, s);
    for (std::size_t i = 0; i < lanes; ++i) store_bf16(s[i], task.out + 2 * (dim + c + i));
    write_bits(d, task, c, load, z);
  }
  one_bit_round_steps(task.out + 2 * dim, static_cast<std::int32_t>(dim));
}

template <class Load>
HWY_INLINE void build_any(const GroupTask& task, Load load) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 8> d8;
  if (task.dim % hn::Lanes(d) == 0)
    build_in(d, task, load);
  else
    build_in(d8, task, load);
}

void build(const GroupTask& task, DType dtype) {
  if (dtype == DType::kBF16)
    build_any(task, LoadBf16());
  else
    build_any(task, LoadF16());
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(build);

}  // namespace

void one_bit_build_cpu(std::span<const KvRun> tokens, const AttentionShape& stored, std::int32_t g, OneBitLevels levels,
                       std::byte* out) {
  static thread_local Buffer t_wide;
  const WideTokens wide(tokens, stored, t_wide, KvPart::kKeys);
  const std::span<const KvRun> runs = wide.runs();
  const AttentionShape& shape = wide.shape();
  MNEME_CHECK(shape.head_dim % 8 == 0 && shape.head_dim >= 8 && shape.head_dim <= kMaxDim, "D {}", shape.head_dim);
  MNEME_CHECK(g == 32 || g == 64 || g == 128 || g == 256, "{} tokens a group", g);
  GroupTask task;
  task.dim = shape.head_dim;
  task.levels = levels;
  task.out = out;
  for (const KvRun& run : runs) {
    MNEME_CHECK(std::cmp_less_equal(task.n + run.n_tokens, g), "more than {} tokens", g);
    for (std::int32_t t = 0; t < run.n_tokens; ++t) task.rows[task.n++] = run.kv + t * shape.token_bytes();
  }
  MNEME_CHECK(std::cmp_equal(task.n, g), "{} tokens for a group of {}", task.n, g);
  HWY_DYNAMIC_DISPATCH(build)(task, shape.kv_dtype);
}

}  // namespace mneme
#endif
