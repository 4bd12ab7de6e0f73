// Every architecture as the list of its layer's parts, one file each. The embedding before the layers, and norm and head
// behind them, are the same for all (src/model/forward.cc).
//
// A new architecture is a file here, its row in parts_of(), and the parts that it has and others lack.
#pragma once

#include <span>

#include "src/model/layer_pass.h"

namespace mneme {

std::span<const Part> llama_parts();
std::span<const Part> qwen3_parts();
std::span<const Part> qwen3moe_parts();
std::span<const Part> mistral3_parts();
std::span<const Part> gpt_oss_parts();

std::span<const Part> parts_of(Architecture architecture);

}  // namespace mneme
