// The specification of a windowed prefill: row by row, token by token, in f64.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/attention/positions_ref.h"
#include "src/attention/window_attention.h"

namespace mneme {

// The tokens that the row at position p attends, ascending: p is one of the window that begins at `begin`, ends before
// `end`, and selected `units`.
std::vector<std::int32_t> window_tokens(const Plan& plan, std::int32_t layer, std::int32_t p, std::int32_t begin,
                                        std::int32_t end, std::span<const std::int32_t> units);

// Of rows [first, cache.length()) whose windows select nothing.
//   q, out  [rows, n_heads, D]
void attend_windows_ref(const Plan& plan, const RopeTable& rope, std::int32_t layer, const SequenceCache& cache,
                        std::int32_t first, const float* q, float* out);

}  // namespace mneme
