// Shapes of known models by name, for benchmarks with random weights.
#pragma once

#include <span>
#include <string_view>

#include "src/formats/model_config.h"

namespace mneme {

// Source  the config.json files that the models' authors published. tiny-16l is ours.
std::span<const ModelConfig> bench_shapes();
// Errors  kOption: no such shape (the known ones are named).
const ModelConfig& bench_shape(std::string_view name);

}  // namespace mneme
