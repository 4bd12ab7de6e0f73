#include "src/ops/gemm/device/skinny_launch.cuh"

namespace mneme::cuda {

MNEME_SKINNY_FORMAT(, Q8_0Format)
MNEME_SKINNY_FORMAT(, Int8Format)
MNEME_SKINNY_FORMAT(, Fp8Format)

}  // namespace mneme::cuda
