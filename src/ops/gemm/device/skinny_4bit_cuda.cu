#include "src/ops/gemm/device/skinny_launch.cuh"

namespace mneme::cuda {

MNEME_SKINNY_FORMAT(, Q4_0Format)
MNEME_SKINNY_FORMAT(, Q4_1Format)
MNEME_SKINNY_FORMAT(, Int4Format)
MNEME_SKINNY_FORMAT(, Q4KFormat)

}  // namespace mneme::cuda
