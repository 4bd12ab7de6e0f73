// Probe of a prefill window: the weighted sum of its queries that is scored.
// Source  ActQKV (Xiao et al. 2025), equations 6 to 9.
#pragma once

#include <cstdint>
#include <span>

#include "mneme/recipe.h"

namespace mneme {

// Weights of the window's rows from their biases: each at least 0, sum 1. Equal weights where rows do not differ or
// biases are not finite.
void window_weights(WindowProbe probe, std::span<const float> bias, std::span<float> weights);

}  // namespace mneme
