// Quantising of blocks of 256: levels, scales and minima that make a weighted error small, as ggml searches for them.
//
// Source  quantize_row_q*_K_ref of llama.cpp's ggml-quants.c, in the same order of operations: same bits.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "src/ops/gemm/block_codec.h"

namespace mneme {
namespace {

// Groups whose largest value is below this are zero.
constexpr float kTinyGroup = 1e-15f;

using Level = std::int16_t;  // a float without loss
using Levels = std::array<Level, kSuperBlock>;

bool all_finite(const float* x) {
  return std::all_of(x, x + kSuperBlock, [](float v) { return std::isfinite(v); });
}

// Rounds to nearest even, by the mantissa of a number whose last bit is 1. Exact below 2^22; larger arguments come from
// scales that rounded to almost nothing, and the clamp keeps them defined.
int nearest(float v) {
  const float shifted = std::clamp(v, -4194303.0f, 4194303.0f) + 12582912.0f;
  return static_cast<int>(std::bit_cast<std::uint32_t>(shifted) & 0x7fffff) - 0x400000;
}

// The nearest level between `least` and `most`, counted from `origin`.
Level nearest_level(float v, int least, int most, int origin = 0) {
  return static_cast<Level>(std::clamp(nearest(v), least, most) - origin);
}

float signed_largest(std::span<const float> x) {
  float largest = 0.0f, value = 0.0f;
  for (const float v : x) {
    if (std::fabs(v) <= largest) continue;
    largest = std::fabs(v);
    value = v;
  }
  return value;
}

// ---- x = scale * level

// Scale of levels -n to n - 1 that minimises the error weighted with x^2, over 19 roundings (q6_k).
float search_scale(std::span<const float> x, Level n, Level* levels) {
  const float largest = signed_largest(x);
  if (std::fabs(largest) < kTinyGroup) {
    std::fill_n(levels, x.size(), 0);
    return 0.0f;
  }
  float scale = 0.0f, best = 0.0f;
  // The rounding by the largest value itself comes first and is kept unless another is better.
  const auto attempt = [&](float inverse, bool first) {
    float sum_lx = 0.0f, sum_l2 = 0.0f;
    for (const float v : x) {
      const Level l = nearest_level(inverse * v, -n, n - 1);
      const float w = v * v;
      sum_lx += w * v * l;
      sum_l2 += w * l * l;
    }
    if (!first && !(sum_l2 > 0.0f && sum_lx * sum_lx > best * sum_l2)) return;
    for (std::size_t i = 0; i < x.size(); ++i) levels[i] = nearest_level(inverse * x[i], -n, n - 1, -n);
    scale = sum_l2 != 0.0f ? sum_lx / sum_l2 : 0.0f;
    best = scale * sum_lx;
  };
  attempt(-n / largest, true);
  for (Level step = -9; step <= 9; ++step)
    if (step != 0) attempt(-(n + 0.1f * step) / largest, false);
  return scale;
}

// Scale of levels -n to n - 1, which are moved one by one while that lowers the error weighted with x^2 (q3_k).
float refine_scale(std::span<const float> x, Level n, Level* levels) {
  const float largest = signed_largest(x);
  if (std::fabs(largest) < kTinyGroup) {
    std::fill_n(levels, x.size(), 0);
    return 0.0f;
  }
  const float inverse = -n / largest;
  float sum_lx = 0.0f, sum_l2 = 0.0f;
  for (std::size_t i = 0; i < x.size(); ++i) {
    levels[i] = nearest_level(inverse * x[i], -n, n - 1);
    const float l = levels[i];
    const float w = x[i] * x[i];
    sum_lx += w * x[i] * l;
    sum_l2 += w * l * l;
  }
  bool changed = true;
  for (int round = 0; round < 5 && changed; ++round) {
    changed = false;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float l = levels[i];
      const float w = x[i] * x[i];
      float lx = sum_lx - w * x[i] * l;
      if (!(lx > 0.0f)) continue;
      float l2 = sum_l2 - w * l * l;
      const Level moved = nearest_level(x[i] * l2 / lx, -n, n - 1);
      if (moved == levels[i]) continue;
      lx += w * x[i] * moved;
      l2 += w * moved * moved;
      if (!(l2 > 0.0f && lx * lx * sum_l2 > sum_lx * sum_lx * l2)) continue;
      levels[i] = moved;
      sum_lx = lx;
      sum_l2 = l2;
      changed = true;
    }
  }
  for (Level& l : std::span(levels, x.size())) l = static_cast<Level>(l + n);
  return sum_l2 > 0.0f ? sum_lx / sum_l2 : 0.0f;
}

// ---- x = scale * level - minimum

enum class Penalty { kSquare, kMagnitude };
struct RangeSearch {
  Level levels;       // 0 to this
  float first, step;  // divisors tried: levels + first + step * i
  Level steps;        // for 0 <= i <= this
  Penalty penalty;
};
struct Range {
  float scale, minimum;
};

float weighted_error(std::span<const float> x, const float* weights, const Level* levels, float scale, float least,
                     Penalty penalty) {
  float error = 0.0f;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float difference = scale * levels[i] + least - x[i];
    error += weights[i] * (penalty == Penalty::kMagnitude ? std::fabs(difference) : difference * difference);
  }
  return error;
}

// Least squares of x over the levels that a divisor rounds to: scale and least value.
struct Fit {
  float sum_w, sum_x;  // of the weights, and of weight * x
  bool solve(std::span<const float> x, const float* weights, const Level* levels, float& scale, float& least) const {
    float sum_l = 0.0f, sum_l2 = 0.0f, sum_xl = 0.0f;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float l = levels[i];
      sum_l += weights[i] * l;
      sum_l2 += weights[i] * l * l;
      sum_xl += weights[i] * l * x[i];
    }
    const float determinant = sum_w * sum_l2 - sum_l * sum_l;
    if (!(determinant > 0.0f)) return false;
    scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    least = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
    if (least > 0.0f) {
      least = 0.0f;
      scale = sum_xl / sum_l2;
    }
    return true;
  }
};

Range search_range(std::span<const float> x, const float* weights, const RangeSearch& s, Level* levels) {
  const auto [lowest, highest] = std::minmax_element(x.begin(), x.end());
  Fit fit{weights[0], weights[0] * x[0]};
  for (std::size_t i = 1; i < x.size(); ++i) {
    fit.sum_w += weights[i];
    fit.sum_x += weights[i] * x[i];
  }
  float least = std::min(*lowest, 0.0f);
  const float most = *highest;
  if (most == least) {
    std::fill_n(levels, x.size(), 0);
    return {0.0f, -least};
  }
  // Each attempt starts from the least value of the best one so far.
  const auto round = [&](float inverse, Level* out) {
    for (std::size_t i = 0; i < x.size(); ++i) out[i] = nearest_level(inverse * (x[i] - least), 0, s.levels);
  };
  float inverse = s.levels / (most - least), scale = 1.0f / inverse;
  round(inverse, levels);
  float best = weighted_error(x, weights, levels, scale, least, s.penalty);
  Level attempt[kQuantBlock];
  for (Level i = 0; i <= s.steps; ++i) {
    inverse = (s.first + s.step * i + s.levels) / (most - least);
    round(inverse, attempt);
    float new_scale = 0.0f, new_least = 0.0f;
    if (!fit.solve(x, weights, attempt, new_scale, new_least)) continue;
    const float error = weighted_error(x, weights, attempt, new_scale, new_least, s.penalty);
    if (!(error < best)) continue;
    std::copy_n(attempt, x.size(), levels);
    best = error;
    scale = new_scale;
    least = new_least;
  }
  return {scale, -least};
}

// ---- packing

void pack_two_bits(const Levels& levels, std::uint8_t (&q)[64]) {
  for (int j = 0; j < kSuperBlock; j += 128)
    for (int i = 0; i < 32; ++i) {
      unsigned byte = 0;
      for (int part = 0; part < 4; ++part) byte |= (levels[j + 32 * part + i] & 3u) << (2 * part);
      q[j / 4 + i] = byte & 255;
    }
}

void pack_four_bits(const Levels& levels, std::uint8_t (&q)[128]) {
  for (std::size_t i = 0; i < 128; ++i) {
    const std::size_t at = 64 * (i / 32) + i % 32;
    q[i] = two_nibbles(levels[at], levels[at + 32]);
  }
}

// Bit `bit` of value i becomes bit i / 32 of h[i % 32].
void pack_high_bits(const Levels& levels, int bit, std::uint8_t (&h)[32]) {
  std::memset(h, 0, sizeof(h));
  for (std::size_t i = 0; i < kSuperBlock; ++i) h[i % 32] |= low_byte((levels[i] >> bit & 1) << (i / 32));
}

// Levels again, by the scales and minima that the block has after their own rounding.
void round_levels(std::span<const float> x, float scale, float minimum, int least, int most, Level* levels) {
  if (scale == 0.0f) return;
  for (std::size_t i = 0; i < x.size(); ++i) levels[i] = nearest_level((x[i] + minimum) / scale, least, most, least);
}

// Scales and minima of six bits, and the levels, of q4_k and q5_k.
template <typename Block>
void quantise_by_ranges(const float* x, const RangeSearch& search, Block& b, Levels& levels) {
  constexpr int kGroups = kSuperBlock / kQuantBlock;
  float scales[kGroups], minima[kGroups], weights[kQuantBlock];
  for (int j = 0; j < kGroups; ++j) {
    const std::span group(x + kQuantBlock * j, kQuantBlock);
    float squares = 0.0f;
    for (const float v : group) squares += v * v;
    const float mean = std::sqrt(squares / kQuantBlock);
    for (std::size_t i = 0; i < kQuantBlock; ++i) weights[i] = mean + std::fabs(group[i]);
    const Range range = search_range(group, weights, search, levels.data() + kQuantBlock * j);
    scales[j] = range.scale;
    minima[j] = range.minimum;
  }
  const float largest_scale = std::max(0.0f, *std::max_element(scales, scales + kGroups));
  const float largest_minimum = std::max(0.0f, *std::max_element(minima, minima + kGroups));
  const float inverse = largest_scale > 0.0f ? 63.0f / largest_scale : 0.0f,
              inverse_min = largest_minimum > 0.0f ? 63.0f / largest_minimum : 0.0f;
  std::memset(b.s, 0, sizeof(b.s));
  for (int j = 0; j < kGroups; ++j) {
    const std::uint8_t s = low_byte(std::min(63, nearest(inverse * scales[j]) & 255));
    const std::uint8_t m = low_byte(std::min(63, nearest(inverse_min * minima[j]) & 255));
    if (j < 4) {
      b.s[j] = s;
      b.s[j + 4] = m;
    } else {
      b.s[j + 4] = two_nibbles(s, m);
      b.s[j - 4] |= low_byte(s >> 4 << 6);
      b.s[j] |= low_byte(m >> 4 << 6);
    }
  }
  b.d = f16(largest_scale / 63.0f);
  b.dmin = f16(largest_minimum / 63.0f);
  for (int j = 0; j < kGroups; ++j) {
    const auto [s, m] = scale_and_minimum(b.s, j);
    const float scale = b.d * static_cast<float>(s);
    const float minimum = b.dmin * static_cast<float>(m);
    round_levels({x + kQuantBlock * j, kQuantBlock}, scale, minimum, 0, search.levels, levels.data() + kQuantBlock * j);
  }
}

template <typename Block>
bool make_nan_unless_finite(const float* x, Block& b) {
  if (all_finite(x)) return false;
  b = Block{};
  b.d = f16(std::numeric_limits<float>::quiet_NaN());
  return true;
}

}  // namespace

void quantise_block(const float* x, BlockQ2_K& b) {
  if (make_nan_unless_finite(x, b)) return;
  constexpr RangeSearch kSearch{.levels = 3, .first = -0.5f, .step = 0.1f, .steps = 15, .penalty = Penalty::kMagnitude};
  Levels levels{};
  float scales[16], minima[16], weights[16];
  for (int j = 0; j < 16; ++j) {
    for (int i = 0; i < 16; ++i) weights[i] = std::fabs(x[16 * j + i]);
    const Range range = search_range({x + 16 * j, 16}, weights, kSearch, levels.data() + 16 * j);
    scales[j] = range.scale;
    minima[j] = range.minimum;
  }
  const float largest_scale = std::max(0.0f, *std::max_element(scales, scales + 16));
  const float largest_minimum = std::max(0.0f, *std::max_element(minima, minima + 16));
  const float inverse = largest_scale > 0.0f ? 15.0f / largest_scale : 0.0f,
              inverse_min = largest_minimum > 0.0f ? 15.0f / largest_minimum : 0.0f;
  for (int j = 0; j < 16; ++j)
    b.s[j] = low_byte((nearest(inverse * scales[j]) & 255) | (nearest(inverse_min * minima[j]) << 4));
  b.d = f16(largest_scale / 15.0f);
  b.dmin = f16(largest_minimum / 15.0f);
  for (int j = 0; j < 16; ++j) {
    const float scale = b.d * (b.s[j] & 15);
    const float minimum = b.dmin * (b.s[j] >> 4);
    round_levels({x + 16 * j, 16}, scale, minimum, 0, 3, levels.data() + 16 * j);
  }
  pack_two_bits(levels, b.q);
}

void quantise_block(const float* x, BlockQ3_K& b) {
  if (make_nan_unless_finite(x, b)) return;
  Levels levels{};
  std::array<float, 16> scales;
  for (std::size_t j = 0; j < 16; ++j) scales[j] = refine_scale({x + 16 * j, 16}, 4, levels.data() + 16 * j);
  std::memset(b.s, 0, sizeof(b.s));
  b.d = f16(0.0f);
  if (const float largest = signed_largest(scales); largest != 0.0f) {
    const float inverse = -32.0f / largest;
    for (int j = 0; j < 16; ++j) {
      const int l = std::clamp(nearest(inverse * scales[j]), -32, 31) + 32;
      b.s[j % 8] |= low_byte((l & 15) << (j < 8 ? 0 : 4));
      b.s[8 + j % 4] |= low_byte(l >> 4 << (2 * (j / 4)));
    }
    b.d = f16(1.0f / inverse);
  }
  for (int j = 0; j < 16; ++j) {
    const int low = j < 8 ? b.s[j] & 15 : b.s[j - 8] >> 4;
    const int s = low + 16 * (b.s[8 + j % 4] >> (2 * (j / 4)) & 3) - 32;
    round_levels({x + 16 * j, 16}, b.d * static_cast<float>(s), 0.0f, -4, 3, levels.data() + 16 * j);
  }
  pack_two_bits(levels, b.q);
  pack_high_bits(levels, 2, b.h);
}

void quantise_block(const float* x, BlockQ4_K& b) {
  if (make_nan_unless_finite(x, b)) return;
  constexpr RangeSearch kSearch{.levels = 15, .first = -1.0f, .step = 0.1f, .steps = 20, .penalty = Penalty::kSquare};
  Levels levels{};
  quantise_by_ranges(x, kSearch, b, levels);
  pack_four_bits(levels, b.q);
}

void quantise_block(const float* x, BlockQ5_K& b) {
  if (make_nan_unless_finite(x, b)) return;
  constexpr RangeSearch kSearch{.levels = 31, .first = -0.5f, .step = 0.1f, .steps = 15, .penalty = Penalty::kSquare};
  Levels levels{};
  quantise_by_ranges(x, kSearch, b, levels);
  pack_four_bits(levels, b.q);
  pack_high_bits(levels, 4, b.h);
}

void quantise_block(const float* x, BlockQ6_K& b) {
  if (make_nan_unless_finite(x, b)) return;
  Levels levels{};
  std::array<float, 16> scales;
  for (std::size_t j = 0; j < 16; ++j) scales[j] = search_scale({x + 16 * j, 16}, 32, levels.data() + 16 * j);
  const float largest = signed_largest(scales);
  if (std::fabs(largest) < kTinyGroup) {
    b = BlockQ6_K{};
    return;
  }
  const float inverse = -128.0f / largest;
  b.d = f16(1.0f / inverse);
  for (int j = 0; j < 16; ++j) {
    b.s[j] = static_cast<std::int8_t>(std::min(127, nearest(inverse * scales[j])));
    round_levels({x + 16 * j, 16}, b.d * b.s[j], 0.0f, -32, 31, levels.data() + 16 * j);
  }
  for (std::size_t i = 0; i < 128; ++i) {
    const std::size_t at = 128 * (i / 64) + i % 64;
    b.l[i] = two_nibbles(levels[at], levels[at + 64]);
  }
  for (std::size_t i = 0; i < 64; ++i) {
    const std::size_t at = 128 * (i / 32) + i % 32;
    unsigned byte = 0;
    for (std::size_t part = 0; part < 4; ++part) byte |= (levels[at + 32 * part] >> 4 & 3u) << (2 * part);
    b.h[i] = byte & 255;
  }
}

}  // namespace mneme
