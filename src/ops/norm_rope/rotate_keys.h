// Rotates pre-RoPE keys, for attention that sees them at their own positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/kv/kv_run.h"
#include "src/ops/norm_rope/rope.h"

namespace mneme {

// Copies the [K | V] pairs of `runs` contiguously, token t's key rotated by row first_row + t of `angles`.
//   to  [tokens, 2, D] of shape.kv_dtype out; keys in 8 bits are quantised again
// Requires  `angles` has these rows, of D / 2 pairs.
// Rounding  rotation in f32, then round to nearest even; values are copied. NaN and infinities propagate.
void rotate_keys_ref(std::span<const KvRun> runs, const AttentionShape& shape, const RopeAngles& angles,
                     std::int64_t first_row, std::byte* to);
void rotate_keys_cpu(std::span<const KvRun> runs, const AttentionShape& shape, const RopeAngles& angles,
                     std::int64_t first_row, std::byte* to);

}  // namespace mneme
