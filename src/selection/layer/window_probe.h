// How the queries of a window of prefill become the one that is scored: a weighted sum.
// Source  ActQKV (Xiao et al. 2025), equations 6 to 9.
#pragma once

#include <cstdint>
#include <span>

namespace mneme {

enum class WindowProbe : std::uint8_t {
  kActivation,  // by how far each query lies from the mean of all that the layer has seen
  kMean,        // all alike
  kReversed,    // by the inverse of that distance: the ablation
};

// Weights of the window's rows from their biases: each at least 0, together 1.
// Rows that do not differ, and biases that are no numbers, weigh alike.
void window_weights(WindowProbe probe, std::span<const float> bias, std::span<float> weights);

}  // namespace mneme
