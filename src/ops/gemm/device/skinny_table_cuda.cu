#include "src/ops/gemm/device/skinny_launch.cuh"

namespace mneme::cuda {

MNEME_SKINNY_FORMAT(, Iq4NlFormat)
MNEME_SKINNY_FORMAT(, Iq4XsFormat)
MNEME_SKINNY_FORMAT(, Mxfp4Format)
MNEME_SKINNY_FORMAT(, Nvfp4Format)

}  // namespace mneme::cuda
