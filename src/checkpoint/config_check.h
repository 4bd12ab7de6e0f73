// The rules that every model's configuration must keep, whatever file it came from.
#pragma once

#include <string_view>

#include "src/checkpoint/model_config.h"

namespace mneme {

// Errors  kFormat: a size that is zero, negative, absurd or contradicts another one; a number that is not finite
// (named).
void check_config(const ModelConfig& config, std::string_view file);

}  // namespace mneme
