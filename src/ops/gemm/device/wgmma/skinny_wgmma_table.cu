#include "src/ops/gemm/device/wgmma/skinny_wgmma.cuh"

namespace mneme::cuda {

MNEME_WGMMA_FORMAT(, Iq4NlFormat)
MNEME_WGMMA_FORMAT(, Iq4XsFormat)
MNEME_WGMMA_FORMAT(, Mxfp4Format)
MNEME_WGMMA_FORMAT(, Nvfp4Format)

}  // namespace mneme::cuda
