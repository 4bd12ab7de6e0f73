// Keys that were stored before RoPE, turned for the parts of attention that see them at their positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/kernels/attention.h"
#include "src/kernels/rope.h"

namespace mneme {

// Copies the [K | V] pairs of `runs` one after the other, token t's key turned by row first_row + t of `angles`.
//   to  [tokens, 2, D] of shape.kv_dtype out
// Requires  angles has these rows, of D / 2 pairs.
// Rounding  turned in f32, rounded to nearest even once more; values are copied. NaN and infinities go through.
void turn_keys_ref(std::span<const KvRun> runs, const AttentionShape& shape, const RopeAngles& angles,
                   std::int64_t first_row, std::byte* to);
void turn_keys_cpu(std::span<const KvRun> runs, const AttentionShape& shape, const RopeAngles& angles,
                   std::int64_t first_row, std::byte* to);

}  // namespace mneme
