// The expert that all rows have, on the device: its output joins the residual stream by the sigmoid of a row's gate.
#pragma once

#include <cstdint>

#include "src/cuda/context.h"

namespace mneme {

// residual [n, hidden] f32 += sigmoid(x gate) * y.   x [n, hidden] bf16: the expert's input; gate [hidden] f32; y [n,
// hidden] f32.   Async  enqueues.
void add_shared_expert_cuda(float* residual, const void* x, const float* gate, const float* y, std::int32_t n,
                            std::int32_t hidden, const CudaContext& context);

}  // namespace mneme
