#include "src/ops/gemm/device/wgmma/skinny_wgmma.cuh"

namespace mneme::cuda {

MNEME_WGMMA_FORMAT(, Q8_0Format)
MNEME_WGMMA_FORMAT(, Q6KFormat)
MNEME_WGMMA_FORMAT(, Fp8Format)
MNEME_WGMMA_FORMAT(, Int8Format)

}  // namespace mneme::cuda
