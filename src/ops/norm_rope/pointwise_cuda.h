// Pointwise kernels between the GEMMs, on the device: embedding, RMSNorm, SwiGLU, the angles of RoPE, argmax.
// pointwise.h and rope.h are the specifications. All pointers are device memory. Async: all enqueue.
#pragma once

#include <cstdint>

#include "src/cuda/context.h"
#include "src/kv/kv_tables_cuda.h"
#include "src/ops/gemm/device/skinny_gemm_cuda.h"

namespace mneme {

// residual [n, hidden] f32 = rows ids[i] of the table, times `scale`. With x_next the first norm starts here, as in
// SkinnyGemmResidual: n <= kSkinnyRows, and `sums` [n, 1] is DeferredNorm::sums with one part.
struct EmbedOutput {
  float* residual = nullptr;
  const float* norm_weight = nullptr;
  void* x_next = nullptr;  // bf16, or null
  float* sums = nullptr;
  float scale = 1;
};
void embed_cuda(const std::int32_t* ids, std::int32_t n, const DeviceMatrix& table, const EmbedOutput& out,
                const CudaContext& context);

// out = x / sqrt(mean(x^2) + eps) * weight.   x [., h] f32; rows [n] i32 selects rows of x, null: the first n; out [n,
// h] bf16.
// Requires  h a multiple of 4.
void rms_norm_cuda(const float* x, const std::int32_t* rows, std::int32_t n, std::int32_t h, const float* weight,
                   float eps, void* out, const CudaContext& context);

// residual [n, h] f32 += x / sqrt(mean(x^2) + eps) * weight.   x [n, h] f32
void add_normed_cuda(float* residual, const float* x, std::int32_t n, std::int32_t h, const float* weight, float eps,
                     const CudaContext& context);

// x = x / sqrt(mean(x^2) + eps) * weight, in place.   x n rows of h bf16, `stride` apart
void norm_in_place_cuda(void* x, std::int32_t n, std::int32_t h, std::int64_t stride, const float* weight, float eps,
                        const CudaContext& context);

// out [n, ffn] bf16 = silu(gate) * up.   gate_up [n, 2 ffn] bf16, ffn a multiple of 8.
void swiglu_cuda(const void* gate_up, std::int32_t n, std::int32_t ffn, void* out, const CudaContext& context);
// The same of gelu(gate) * up, GELU in its tanh form.
void geglu_cuda(const void* gate_up, std::int32_t n, std::int32_t ffn, void* out, const CudaContext& context);

// x [n, width] f32 += bias [width].
void add_bias_cuda(float* x, const float* bias, std::int32_t n, std::int32_t width, const CudaContext& context);

// cos and sin of every pair of every row, times `scale`; angles in f64. Pairs of frequency 0 are neither rotated nor
// scaled.
//   positions [n], inv_freq [half] f64, out [n, half] of (cos, sin) f32
void rope_angles_cuda(const std::int32_t* positions, std::int32_t n, const double* inv_freq, std::int32_t half,
                      double scale, float* out, const CudaContext& context);

// The largest logit of each row and its log-probability.   logits [n, vocab] f32; token [n] i32, logprob [n] f32
// Ties  the smaller id.   NaN  counts as -inf; a row of only NaN and -inf gives token 0, -inf.
void argmax_cuda(const float* logits, std::int32_t n, std::int32_t vocab, std::int32_t* token, float* logprob,
                 const CudaContext& context);

// Standard normal 16-bit values, a pure function of seed and index: keys and values for benchmarks.
void random_kv_cuda(void* out, std::int64_t n, bool f16, std::uint64_t seed, const CudaContext& context);
// The same quantised: n tokens of keys and values in 8 bits.
void random_codes_cuda(void* out, std::int64_t n_tokens, KvCodes codes, std::int32_t head_dim, std::uint64_t seed,
                       const CudaContext& context);

}  // namespace mneme
