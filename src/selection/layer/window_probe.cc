#include "src/selection/layer/window_probe.h"

#include <algorithm>
#include <cmath>

#include "src/base/check.h"

namespace mneme {

void window_weights(WindowProbe probe, std::span<const float> bias, std::span<float> weights) {
  MNEME_CHECK(bias.size() == weights.size(), "{} biases, {} weights", bias.size(), weights.size());
  const bool none = std::find(bias.begin(), bias.end(), 0.0f) != bias.end();
  double sum = 0;
  for (std::size_t i = 0; i < bias.size(); ++i) {
    double w = 1;
    if (probe == WindowProbe::kActivation) w = bias[i];
    // A row with bias 0 outweighs all others.
    if (probe == WindowProbe::kReversed) w = none ? (bias[i] == 0 ? 1 : 0) : 1 / double{bias[i]};
    weights[i] = static_cast<float>(w);
    sum += w;
  }
  const bool usable = sum > 0 && std::isfinite(sum);
  for (float& w : weights) w = usable ? static_cast<float>(w / sum) : 1 / static_cast<float>(weights.size());
}

}  // namespace mneme
