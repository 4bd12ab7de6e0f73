#include "src/ops/gemm/device/skinny_launch.cuh"

namespace mneme::cuda {

MNEME_SKINNY_FORMAT(, Q2KFormat)
MNEME_SKINNY_FORMAT(, Q3KFormat)

}  // namespace mneme::cuda
