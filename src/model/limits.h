// What the kernels can do of what a configuration may ask for.
#pragma once

#include <cstdint>

#include "src/checkpoint/model_config.h"

namespace mneme {

// The longest sequence that will be run: `context`, or what the model was made for when that is 0.
//
// Errors  kUnsupported  head_dim or group outside what src/kernels/attention.h takes
//         kOption       context out of range
std::int64_t check_limits(const ModelConfig& config, std::int64_t context);

}  // namespace mneme
