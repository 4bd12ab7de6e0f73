// Checks a configuration against the kernels' limits.
#pragma once

#include <cstdint>

#include "src/formats/model_config.h"

namespace mneme {

// Returns the longest sequence that will be run: `context`, or the model's own limit if that is 0. Removes a sliding
// window that no such sequence exceeds from the configuration.
//
// Errors  kUnsupported  head_dim or group outside what src/ops/attention/attention.h takes
//         kOption       context out of range
std::int64_t apply_limits(ModelConfig& config, std::int64_t context);

}  // namespace mneme
