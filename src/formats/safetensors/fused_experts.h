// Experts as folders stack them: gate and up are the even and odd rows of one tensor (gpt-oss), or its two halves
// (qwen3_vl_moe).
//
//   X_blocks  U8 [E, N, K / 32, 16]   MXFP4: value 2j is the low nibble of byte j, 2j + 1 the high one
//   X_scales  U8 [E, N, K / 32]       2^(scale - 127)
//   X         BF16, F16, F32 [E, K, N] unquantised, input by output
//   X_bias    BF16, F16, F32 [E, N]
#pragma once

#include <string_view>

#include "src/formats/safetensors/quantised.h"

namespace mneme {

// Repacks a stack to [E n_out, n_in], in MXFP4 blocks or in the tensor's own type; a matrix of biases [n_out, n_in]
// (n_out experts) to f32.
// Requires  weight.fused is kAll, kEven, kOdd, kFirstHalf or kSecondHalf.
//
// Errors  kFormat: a tensor missing, or of another shape or type than expected (named); rows that do not fill blocks
RepackedMatrix repack_fused(const WeightSpec& weight, FindTensor find, std::string_view file, ThreadPool& pool);

}  // namespace mneme
