#include "src/ops/gemm/device/skinny_launch.cuh"

namespace mneme::cuda {

MNEME_SKINNY_FORMAT(, Q5_0Format)
MNEME_SKINNY_FORMAT(, Q5_1Format)
MNEME_SKINNY_FORMAT(, Q5KFormat)
MNEME_SKINNY_FORMAT(, Q6KFormat)

}  // namespace mneme::cuda
