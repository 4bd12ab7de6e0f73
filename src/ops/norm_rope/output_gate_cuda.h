// The gate of an attention layer's output, on the device. output_gate.h is the specification.
#pragma once

#include <cstdint>

#include "src/cuda/context.h"

namespace mneme {

// out = x * sigmoid(gate), `total` values.   x, out bf16, the same or apart; gate f32 or bf16
// Requires  total a multiple of 4.   Async  enqueues.
void sigmoid_gate_cuda(const void* x, const void* gate, bool gate_bf16, std::int64_t total, void* out,
                       const CudaContext& context);

}  // namespace mneme
