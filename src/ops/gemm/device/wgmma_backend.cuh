// The skinny GEMM kernel of wgmma/, which is compiled for sm_90a alone.
#pragma once

#include "src/base/backend.h"
#include "src/ops/gemm/device/skinny_kernel.cuh"

namespace mneme::cuda {

struct WgmmaGemm {
  bool (*loaded)();  // whether the device runs it
  // Requires  p.permuted, 9 to 64 rows, a quantised type.
  void (*launch)(DType weights, const SkinnyProblem& p, const CudaContext& context);
};

}  // namespace mneme::cuda
