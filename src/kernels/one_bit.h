// Keys in one bit a channel: groups of g consecutive tokens share a zero point and a step per channel.
//
// Token t of a group has k~[c] = z[c] + s[c] * b[t, c], b = +1 where k[c] >= z[c], else -1.
//   minmax   z = (max + min) / 2, s = (max - min) / 2: k~ is the group's largest or smallest value    (FIER's round to
//   nearest) meanabs  z = mean, s = mean |k - z|: least squared error of a sign code around z
// z and s are stored in f16-like precision of their own (bf16 here, so that the range of keys is kept); bits are those
// of the exact keys against the stored z.
//
// Layout of one group (one_bit_group_bytes): z [D] bf16, s [D] bf16, then bits channel by channel, [D] x g bits (a
// g-bit word, token 0 lowest), so that a scan adds one channel's weight to all tokens of the group under a mask.
//
// NaN  a channel with a key that is not finite has NaN for z and s and no bit set: its group's scores are NaN.
//
// Source  FIER (section 3.2 of the specification); Differs  scale and zero in bf16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/kernels/attention.h"

namespace mneme {

enum class OneBitLevels : std::uint8_t { kMinMax, kMeanAbs };

// g: tokens a group, 32, 64, 128 or 256.
std::size_t one_bit_group_bytes(std::int32_t head_dim, std::int32_t g);

// Quantises the keys of exactly g tokens.   out [one_bit_group_bytes]
// Rounding  minmax is the same on every backend; the means of meanabs are summed in f32, so their bf16 may differ by
// one place.
void one_bit_build_ref(std::span<const KvRun> runs, const AttentionShape& shape, std::int32_t g, OneBitLevels levels,
                       std::byte* out);
void one_bit_build_cpu(std::span<const KvRun> runs, const AttentionShape& shape, std::int32_t g, OneBitLevels levels,
                       std::byte* out);

// k~ of token t of a group, [D] f32: the definition, for tests and for averages over a unit.
void one_bit_dequantise(const std::byte* group, std::int32_t head_dim, std::int32_t g, std::int32_t t, float* k);

// scores[h, t] = q[h] . k~[t] for n_groups groups that follow one another.
//   q       [G, D]               f32
//   groups  [n_groups, one_bit_group_bytes]
//   scores  [G, n_groups * g]    f32 out, rows `score_stride` floats apart
// Equal tokens of equal groups score equal, bit for bit, wherever they stand.
void one_bit_score_ref(const float* q, const AttentionShape& shape, const std::byte* groups, std::int64_t n_groups,
                       std::int32_t g, float* scores, std::int64_t score_stride);
void one_bit_score_cpu(const float* q, const AttentionShape& shape, const std::byte* groups, std::int64_t n_groups,
                       std::int32_t g, float* scores, std::int64_t score_stride);

}  // namespace mneme
