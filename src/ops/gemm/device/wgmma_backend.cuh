// The skinny GEMM kernel of wgmma/, which is compiled for sm_90a alone.
#pragma once

#include "src/base/backend.h"
#include "src/ops/gemm/device/skinny_kernel.cuh"

namespace mneme::cuda {

struct WgmmaGemm {
  bool (*loaded)();  // whether the device runs it
  // Requires  17 to 32 rows of bf16, or 9 to 64 of a quantised type and p.permuted.
  void (*launch)(DType weights, const SkinnyProblem& p, const CudaContext& context);
};

}  // namespace mneme::cuda
