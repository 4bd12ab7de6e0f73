// Attention of a prompt by itself, on a device.
#pragma once

#include <cstdint>

#include "src/checkpoint/model_config.h"

namespace mneme {

struct AttentionResult {
  double seconds = 0;  // median
  double flops = 0;    // of what is not masked
  double flops_a_second = 0;
  bool by_library = false;  // else by the project's own kernel
};

// Causal attention of n_tokens in one layer, random bf16, keys and values in one piece: with the kernel that prompts
// get here.
//
// Errors  kDevice: no device. kUnsupported: the shape. kResource.
AttentionResult measure_attention_cuda(const ModelConfig& config, std::int32_t n_tokens, std::int32_t times);

}  // namespace mneme
