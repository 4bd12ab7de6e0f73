// What the device's memory gives to kernels that only read it: the rate under every decode step.
#pragma once

#include <cstddef>

#include "src/kernels/cuda_context.h"

namespace mneme {

// Reads `bytes` (a multiple of 16) once. sink: one float, written only if what was read has a sum that no data has.
void read_all_cuda(const void* from, std::size_t bytes, float* sink, const CudaContext& context);

}  // namespace mneme
