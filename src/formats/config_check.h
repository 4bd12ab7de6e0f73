// Validates a model configuration, whatever file it came from.
#pragma once

#include <string_view>
#include <vector>

#include "src/formats/model_config.h"

namespace mneme {

// Errors  kFormat: a size that is zero, negative, too large or inconsistent with another; a number that is not finite.
//         The message names the field.
void check_config(const ModelConfig& config, std::string_view file);

// Where a file does not say: which layers have a window (empty: no rule), and which have no RoPE (empty: all have it).
std::vector<bool> windows_by_layer(Architecture architecture, std::int64_t n_layers);
std::vector<bool> unrotated_by_layer(Architecture architecture, std::int64_t n_layers);
// Which layers have a state in place of keys and values, where all but every interval-th have.   Requires  interval > 0
std::vector<bool> states_by_layer(std::int64_t n_layers, std::int64_t interval);
// gpt-oss, where a file does not say: where an expert's gate is cut off.
inline constexpr double kGptOssLimit = 7.0;
// Where a GGUF file does not say: RopeConfig::truncate, which follows from the model's own code.
bool truncates_yarn(Architecture architecture);

}  // namespace mneme
