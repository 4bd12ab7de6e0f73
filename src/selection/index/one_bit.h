// 1-bit keys: one bit per channel; groups of g consecutive tokens share a zero point and a step per channel.
//
// Token t of a group has k~[c] = z[c] + s[c] * b[t, c], b = +1 where k[c] >= z[c], else -1.
//
//   minmax   z = (max + min) / 2, s = (max - min) / 2: k~ is the group's maximum or minimum (FIER's round to nearest)
//   meanabs  z = mean, s = mean |k - z|: the least squared error of a sign code around z
//
// z is stored in bf16. s is stored in bf16 as an integer, 0 to 255, times a power of two per group, so that a scan
// multiplies bytes: the error of s is at most 1/256 of the group's largest step. Bits compare the exact keys with the
// stored z.
//
// Layout of a group (one_bit_group_bytes): z [D] bf16, s [D] bf16, then bits by four channels, [D / 4][g] nibbles:
// token t of channels 4i..4i + 3 is nibble t of row i, channel 4i lowest, token 0 in the lower half of byte 0. So 64
// bits are 16 tokens of four channels: a vector of bytes whose sums by four are tokens.
//
// NaN     a channel with a key that is not finite has NaN for z and s and no bit set: its group's scores are NaN.
// Source  FIER (section 3.2 of the specification). Differs  zero point in bf16, step in 8 bits relative to the group's
//         largest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "mneme/recipe.h"
#include "src/kv/kv_run.h"

namespace mneme {

// Bytes of a group.   g: tokens per group, 32, 64, 128 or 256
std::size_t one_bit_group_bytes(std::int32_t head_dim, std::int32_t g);

// Quantises the keys of exactly g tokens.   out [one_bit_group_bytes]
// Rounding  minmax is identical on every backend. The means of meanabs are summed in f32, so their bf16 values may
// differ by one ulp between backends, and steps by one unit of the largest's.
void one_bit_build_ref(std::span<const KvRun> runs, const AttentionShape& shape, std::int32_t g, OneBitLevels levels,
                       std::byte* out);
void one_bit_build_cpu(std::span<const KvRun> runs, const AttentionShape& shape, std::int32_t g, OneBitLevels levels,
                       std::byte* out);

// The last step of building: rounds the steps of a group, [D] bf16, to integer multiples of the group's power of two,
// ties to even. NaN stays.
void one_bit_round_steps(std::byte* steps, std::int32_t head_dim);

// k~ of token t of a group, [D] f32: the definition, used by tests and for averages over a unit.
void one_bit_dequantise(const std::byte* group, std::int32_t head_dim, std::int32_t g, std::int32_t t, float* k);

// scores[h, t] = q[h] . k~[t] for n_groups contiguous groups.
//   q       [G, D]               f32
//   groups  [n_groups, one_bit_group_bytes]
//   scores  [G, n_groups * g]    f32 out, row stride `score_stride` floats
// Ties      equal tokens of equal groups score equal, bit for bit, at any index; small integers score exactly.
// Error     one_bit_score_cpu: at most D * 2^-13 * max|q[h]| * max s of the group, plus rounding in f32: where the CPU
// multiplies bytes, a query's values have 15 bits and a sign. On normal values 1e-5 of the sum of |q k~|.
// NaN       a query or group that is not finite scores NaN.
// Requires  steps as the builders leave them.
void one_bit_score_ref(const float* q, const AttentionShape& shape, const std::byte* groups, std::int64_t n_groups,
                       std::int32_t g, float* scores, std::int64_t score_stride);
void one_bit_score_cpu(const float* q, const AttentionShape& shape, const std::byte* groups, std::int64_t n_groups,
                       std::int32_t g, float* scores, std::int64_t score_stride);

}  // namespace mneme
