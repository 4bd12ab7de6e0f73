// Tokens drawn where the logits are: src/sampler/survivors.h has the definitions, its survivors_ref the specification.
#pragma once

#include <cstdint>

#include "src/kernels/cuda_context.h"

namespace mneme {

struct DrawRule {
  float temperature = 0;  // 0: the row is not drawn for
  std::int32_t top_k = 0;
  float top_p = 1, min_p = 0;
  double u = 0;  // [0, 1): which of the survivors, by their weights in order of id
};

// For rows whose temperature is above 0.
//
//   logits   [n, vocab] f32; rules [n]
//   token    [n] i32, logprob [n] f32   in: argmax_cuda's; out: the drawn token, and its log-probability under the
//                                       logits as they are. A row without a possible token stays as it is.
//
// Numerics  weights are exp in f32, and summed as multiples of 2^-40: in any order the same. So a token differs from
// the
//           one that Survivors::at finds only where u, or a share, is within such an error of a boundary.
void sample_cuda(const float* logits, const DrawRule* rules, std::int32_t n, std::int32_t vocab, std::int32_t* token,
                 float* logprob, const CudaContext& context);

}  // namespace mneme
