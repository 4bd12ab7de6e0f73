// Validates a model configuration, whatever file it came from.
#pragma once

#include <string_view>
#include <vector>

#include "src/formats/model_config.h"

namespace mneme {

// Errors  kFormat: a size that is zero, negative, too large or inconsistent with another; a number that is not finite.
//         The message names the field.
void check_config(const ModelConfig& config, std::string_view file);

// gpt-oss, where a file does not say: windows in layers 0, 2, ...; where an expert's gate is cut off.
std::vector<bool> alternating_windows(std::int64_t n_layers);
inline constexpr double kGptOssLimit = 7.0;
// Where a GGUF file does not say: RopeConfig::truncate, which follows from the model's own code.
bool truncates_yarn(Architecture architecture);

}  // namespace mneme
