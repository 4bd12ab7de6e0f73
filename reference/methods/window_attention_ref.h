// Specification of windowed prefill: row by row, token by token, in f64.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/methods/positions_ref.h"
#include "src/methods/window_attention.h"

namespace mneme {

// Tokens that the row at position p attends, ascending. p belongs to the window [begin, end), which selected `units`.
std::vector<std::int32_t> window_tokens(const Plan& plan, std::int32_t layer, std::int32_t p, std::int32_t begin,
                                        std::int32_t end, std::span<const std::int32_t> units);

// Attention of rows [first, cache.length()) whose windows select nothing.
//   q, out  [rows, n_heads, D]
void attend_windows_ref(const Plan& plan, const RopeTable& rope, std::int32_t layer, const SequenceCache& cache,
                        std::int32_t first, const float* q, float* out);

}  // namespace mneme
