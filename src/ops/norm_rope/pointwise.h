// Pointwise operations between the GEMMs: embedding, RMSNorm, the gates of SwiGLU and GEGLU. `_ref` is the
// specification; `_cpu` splits rows over the pool.
#pragma once

#include <cstdint>
#include <span>

#include "src/ops/simd/cpu_context.h"
#include "src/tensor/view.h"

namespace mneme {

// out[i] = table[ids[i]].   ids [n] i32; table [vocab, hidden] any weight type; out [n, hidden] f32.
// Requires  0 <= ids[i] < vocab.
void embed_ref(std::span<const std::int32_t> ids, const ConstTensorView& table, const TensorView& out);
void embed_cpu(std::span<const std::int32_t> ids, const ConstTensorView& table, const TensorView& out,
               const CpuContext& context);

// out = x / sqrt(mean(x^2) + eps) * weight, row by row.   x [n, h] f32; weight [h] f32; out [n, h] f32 or bf16, may
// alias x
void rms_norm_ref(const ConstTensorView& x, const float* weight, double eps, const TensorView& out);
void rms_norm_cpu(const ConstTensorView& x, const float* weight, double eps, const TensorView& out,
                  const CpuContext& context);

// out = silu(gate) * up.   gate, up [n, ffn] f32 (rows may be strided); out [n, ffn] f32 or bf16.
void swiglu_ref(const ConstTensorView& gate, const ConstTensorView& up, const TensorView& out);
void swiglu_cpu(const ConstTensorView& gate, const ConstTensorView& up, const TensorView& out,
                const CpuContext& context);

// out = gelu(gate) * up, gelu(x) = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))); shapes as swiglu's.
// Source  gelu_pytorch_tanh of transformers
void geglu_ref(const ConstTensorView& gate, const ConstTensorView& up, const TensorView& out);
void geglu_cpu(const ConstTensorView& gate, const ConstTensorView& up, const TensorView& out,
               const CpuContext& context);

// x = cap tanh(x / cap), in place.   NaN: propagates.
void soft_cap_cpu(std::span<float> x, float cap, const CpuContext& context);

// out = (u + 1) g sigmoid(1.702 g) with g = min(gate, limit), u = min(max(up, -limit), limit).
// gate, up [n, ffn] f32 (rows may be strided); out [n, ffn] f32.   NaN: propagates.
// Source  GptOssExperts of transformers
void clamped_swiglu_ref(const ConstTensorView& gate, const ConstTensorView& up, float limit, const TensorView& out);
void clamped_swiglu_cpu(const ConstTensorView& gate, const ConstTensorView& up, float limit, const TensorView& out,
                        const CpuContext& context);

}  // namespace mneme
