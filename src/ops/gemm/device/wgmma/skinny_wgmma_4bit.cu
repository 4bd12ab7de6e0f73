#include "src/ops/gemm/device/wgmma/skinny_wgmma.cuh"

namespace mneme::cuda {

MNEME_WGMMA_FORMAT(, Q4_0Format)
MNEME_WGMMA_FORMAT(, Q4_1Format)
MNEME_WGMMA_FORMAT(, Int4Format)
MNEME_WGMMA_FORMAT(, Q4KFormat)

}  // namespace mneme::cuda
