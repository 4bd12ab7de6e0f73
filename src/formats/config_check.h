// Validates a model configuration, whatever file it came from.
#pragma once

#include <string_view>

#include "src/formats/model_config.h"

namespace mneme {

// Errors  kFormat: a size that is zero, negative, too large or inconsistent with another; a number that is not finite.
//         The message names the field.
void check_config(const ModelConfig& config, std::string_view file);

}  // namespace mneme
