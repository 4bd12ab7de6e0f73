// The gate of an attention layer's output. `_ref` is the specification.
#pragma once

#include "src/ops/simd/cpu_context.h"
#include "src/tensor/view.h"

namespace mneme {

// out = x * sigmoid(gate).   x, gate [n, width] f32; out [n, width] f32 or bf16, may alias x
void sigmoid_gate_ref(const ConstTensorView& x, const ConstTensorView& gate, const TensorView& out);
void sigmoid_gate_cpu(const ConstTensorView& x, const ConstTensorView& gate, const TensorView& out,
                      const CpuContext& context);

}  // namespace mneme
