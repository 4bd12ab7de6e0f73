// What of a folder Gemma's models alone have: keys of config.json, and the arithmetic of its weights.
#pragma once

#include "src/formats/json.h"
#include "src/formats/model_config.h"
#include "src/tensor/dtype.h"

namespace mneme {

// Sets the scale of attention, the cap of logits and the base of RoPE in layers with a window.
//
// Errors  kUnsupported: an activation other than GELU in its tanh form, capped attention, attention to both sides
void read_gemma3(const JsonRef& config, ModelConfig& c);

// A number in the type of the weights.   Requires  dtype bf16, f16 or f32
double rounded_to(DType dtype, double value);

}  // namespace mneme
