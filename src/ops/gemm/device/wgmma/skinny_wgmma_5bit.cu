#include "src/ops/gemm/device/wgmma/skinny_wgmma.cuh"

namespace mneme::cuda {

MNEME_WGMMA_FORMAT(, Q5_0Format)
MNEME_WGMMA_FORMAT(, Q5_1Format)
MNEME_WGMMA_FORMAT(, Q5KFormat)

}  // namespace mneme::cuda
