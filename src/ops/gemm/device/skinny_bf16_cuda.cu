#include "src/ops/gemm/device/skinny_launch.cuh"

namespace mneme::cuda {

MNEME_SKINNY_FORMAT(, Bf16Format)

}  // namespace mneme::cuda
