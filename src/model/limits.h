// What the kernels can do of what a configuration may ask for.
#pragma once

#include <cstdint>

#include "src/checkpoint/model_config.h"

namespace mneme {

// The longest sequence that will be run: `context`, or what the model was made for when that is 0. A sliding window
// that no such sequence outgrows is taken out of the configuration.
//
// Errors  kUnsupported  head_dim or group outside what src/kernels/attention.h takes
//         kOption       context out of range
std::int64_t apply_limits(ModelConfig& config, std::int64_t context);

}  // namespace mneme
