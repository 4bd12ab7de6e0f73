// Samples tokens on the device. src/sampler/truncated_distribution.h has the definitions; truncated_distribution_ref is
// the specification.
#pragma once

#include <cstdint>

#include "src/cuda/context.h"

namespace mneme {

struct SamplingRule {
  float temperature = 0;  // 0: the row is not sampled
  std::int32_t top_k = 0;
  float top_p = 1, min_p = 0;
  double u = 0;  // [0, 1): selects from the truncated distribution, cumulative weights in order of id
};

// Rows with a temperature above 0.
//
//   logits   [n, vocab] f32; rules [n]
//   token    [n] i32, logprob [n] f32   in: from argmax_cuda; out: the sampled token, and its log-probability under the
//                                       logits before truncation. A row without a possible token is unchanged.
//
// Numerics  weights are exp in f32, summed in fixed point as multiples of 2^-40, the same in any order. The token
// differs from the CPU sampler's only where u, or a share, is within that rounding of a boundary.
// Async     enqueues.
void sample_cuda(const float* logits, const SamplingRule* rules, std::int32_t n, std::int32_t vocab,
                 std::int32_t* token, float* logprob, const CudaContext& context);

// Sets logits of ids that must not be sampled to -inf.
//
//   logits [n, vocab] f32; ids [n_ids] i32, each below vocab
//
// Async     enqueues.
void forbid_tokens_cuda(float* logits, const std::int32_t* ids, std::int32_t n_ids, std::int32_t n, std::int32_t vocab,
                        const CudaContext& context);

// logits = cap tanh(logits / cap), in place.
//
//   logits [n, vocab] f32
//
// Async     enqueues.
void soft_cap_cuda(float* logits, float cap, std::int32_t n, std::int32_t vocab, const CudaContext& context);

}  // namespace mneme
