#include "src/ops/gemm/device/wgmma/skinny_wgmma.cuh"

namespace mneme::cuda {

MNEME_WGMMA_FORMAT(, Q2KFormat)
MNEME_WGMMA_FORMAT(, Q3KFormat)

}  // namespace mneme::cuda
