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
std::vector<bool> windows_by_period(std::int64_t n_layers, std::size_t full_period);
std::vector<bool> unrotated_by_layer(Architecture architecture, std::int64_t n_layers);
// Which layers have a state in place of keys and values, where all but every interval-th have.   Requires  interval > 0
std::vector<bool> states_by_layer(std::int64_t n_layers, std::int64_t interval);
// Sets the scales of embeddings and of attention that follow from the architecture and sizes, where a file has none.
void set_usual_scales(ModelConfig& config);
// gpt-oss, where a file does not say: where an expert's gate is cut off.
inline constexpr double kGptOssLimit = 7.0;
// Where a GGUF file does not say: RopeConfig::truncate, which follows from the model's own code.
bool truncates_yarn(Architecture architecture);

}  // namespace mneme
