// The small kernels between the products, on the device. pointwise.h, rope.h and attention.h (store_kv) are the
// specifications; every pointer here is device memory.
#pragma once

#include <cstdint>

#include "src/kernels/cuda_context.h"
#include "src/kernels/kv_slots_cuda.h"
#include "src/kernels/kv_tables_cuda.h"
#include "src/kernels/matvec_cuda.h"

namespace mneme {

// residual [n, hidden] f32 = the table's rows ids[i]. With x_next, as MatvecResidual has it, the first norm begins too:
// n <= 8, and `sums` [1, 8] is DeferredNorm's with one part.
struct EmbedOutput {
  float* residual = nullptr;
  const float* norm_weight = nullptr;
  void* x_next = nullptr;  // bf16, or null
  float* sums = nullptr;
};
void embed_cuda(const std::int32_t* ids, std::int32_t n, const DeviceMatrix& table, const EmbedOutput& out,
                const CudaContext& context);

// out = x / sqrt(mean(x^2) + eps) * weight.   x [., h] f32; rows [n] i32 picks rows of x, null: the first n. out [n, h]
// bf16. Requires  h a multiple of 4.
void rms_norm_cuda(const float* x, const std::int32_t* rows, std::int32_t n, std::int32_t h, const float* weight,
                   float eps, void* out, const CudaContext& context);

// out [n, ffn] bf16 = silu(gate) * up.   gate_up [n, 2 ffn] bf16, ffn a multiple of 8.
void swiglu_cuda(const void* gate_up, std::int32_t n, std::int32_t ffn, void* out, const CudaContext& context);

// cos and sin of every pair of every row, times `scale`; angles in f64.   positions [n], inv_freq [half] f64, out [n,
// half] of (cos, sin) f32.
void rope_angles_cuda(const std::int32_t* positions, std::int32_t n, const double* inv_freq, std::int32_t half,
                      double scale, float* out, const CudaContext& context);

// The last tokens of every sequence beside their pages: page p of one in layer `layer` of place i is entry p % pages.
struct KeyRing {
  KvTables tables;
  const std::int32_t* places = nullptr;  // [n] of rows; -1: none
  std::int32_t layer = 0, pages = 0;
};

// Rows of q, k and v on their way into attention: bias, norm of each head (qwen3), RoPE; q goes to q_out, k and v into
// the pages of their sequence, or where `store` says. With slots the box of the open page (if there are boxes) takes
// the key in, and the cosine of each head's query with the one of the step before is written.
//
//   qkv [n, (heads + 2 KV heads) * D] f32 or bf16; q_out [n, heads * D] bf16
//   positions [n]; slots [n]: sequences of `tables`, -1: the row stores nothing; null: all are of the first one
struct QkvRows {
  const void* qkv = nullptr;
  bool qkv_bf16 = false;
  const float* bias = nullptr;                       // [(heads + 2 KV heads) * D], or null
  const float *q_norm = nullptr, *k_norm = nullptr;  // [D], or null
  float norm_eps = 0;
  const float* angles = nullptr;  // [n, D / 2] of (cos, sin)
  bool neighbours = false;        // RopePairs::kNeighbours
  const std::int32_t *positions = nullptr, *slots = nullptr;
  std::int32_t n = 0, n_heads = 0;
  SlotStore store;
  // Of sequences that see what is far from elsewhere: far_q [n, heads * D] bf16 is q turned by these angles.
  const float* far_angles = nullptr;
  void* far_q = nullptr;
  // Keys are stored before RoPE, times key_scale (what RopeTable::scale makes of position 0), and turned in `near`.
  bool raw_keys = false;
  float key_scale = 1;
  KeyRing near;  // if it has pages: the row's key and value go there too
};
void store_qkv_cuda(const QkvRows& rows, const KvTables& tables, std::int32_t layer, void* q_out,
                    const CudaContext& context);

// The largest logit of each row and its log-probability.   logits [n, vocab] f32; token [n] i32, logprob [n] f32.
// Ties  the smaller id.   NaN  counts as -inf; a row of nothing else gives token 0, -inf.
void argmax_cuda(const float* logits, std::int32_t n, std::int32_t vocab, std::int32_t* token, float* logprob,
                 const CudaContext& context);

// Does nothing for so long. For tests, of what must not depend on how long things take.
void wait_cuda(std::int32_t microseconds, const CudaContext& context);

// Standard normal 16-bit numbers, a pure function of seed and place: keys and values for measuring.
void random_kv_cuda(void* out, std::int64_t n, bool f16, std::uint64_t seed, const CudaContext& context);

}  // namespace mneme
