#include "src/ops/gemm/device/wgmma/skinny_wgmma.cuh"
#include "src/ops/gemm/device/wgmma_backend.cuh"

namespace mneme::cuda {

MNEME_WGMMA_FORMAT(extern, Q8_0Format)
MNEME_WGMMA_FORMAT(extern, Q4_0Format)
MNEME_WGMMA_FORMAT(extern, Q4_1Format)
MNEME_WGMMA_FORMAT(extern, Q5_0Format)
MNEME_WGMMA_FORMAT(extern, Q5_1Format)
MNEME_WGMMA_FORMAT(extern, Q2KFormat)
MNEME_WGMMA_FORMAT(extern, Q3KFormat)
MNEME_WGMMA_FORMAT(extern, Q4KFormat)
MNEME_WGMMA_FORMAT(extern, Q5KFormat)
MNEME_WGMMA_FORMAT(extern, Q6KFormat)
MNEME_WGMMA_FORMAT(extern, Iq4NlFormat)
MNEME_WGMMA_FORMAT(extern, Iq4XsFormat)
MNEME_WGMMA_FORMAT(extern, Mxfp4Format)
MNEME_WGMMA_FORMAT(extern, Nvfp4Format)
MNEME_WGMMA_FORMAT(extern, Fp8Format)
MNEME_WGMMA_FORMAT(extern, Int4Format)
MNEME_WGMMA_FORMAT(extern, Int8Format)
void launch_wgmma_bf16(SkinnyProblem p, const CudaContext& context);  // skinny_wgmma_bf16.cu

namespace {

// Stands for the kernels of this folder: all are compiled for the same architecture.
__global__ void wgmma_probe_kernel() {}

bool loaded() {
  static const bool has = [] {
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, wgmma_probe_kernel) == cudaSuccess) return true;
    static_cast<void>(cudaGetLastError());
    return false;
  }();
  return has;
}

void launch_format(DType weights, const SkinnyProblem& p, const CudaContext& context) {
  if (weights == DType::kBF16) return launch_wgmma_bf16(p, context);
  with_format(weights, [&](auto format) { launch_wgmma<decltype(format)>(p, context); });
}

}  // namespace
}  // namespace mneme::cuda

namespace mneme {

MNEME_REGISTER_BACKEND(wgmma, cuda::WgmmaGemm, {.loaded = &cuda::loaded, .launch = &cuda::launch_format});

}  // namespace mneme
